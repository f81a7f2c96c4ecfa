"""
Earthquakes on the globe
========================

Find the active regions in a catalogue of epicentres, in which some quakes belong to no region. The catalogue is
simulated.
"""

# %%
# The catalogue has two regions of 400 quakes each, and a background of 300 that is uniform on the globe. Its rows are
# unit vectors.

import matplotlib.pyplot as plt
import numpy as np
import torch

from powerspherical import HypersphericalUniform, VonMisesFisher
from powerspherical.mixture import VonMisesFisherMixture


def vectors(longitude, latitude):
    """Return the unit vectors (…, 3) at these angles in radians."""
    level = np.cos(latitude)
    return np.stack([level * np.cos(longitude), level * np.sin(longitude), np.sin(latitude)], axis=-1)


torch.manual_seed(0)
centres = torch.from_numpy(vectors(np.radians([140, -75]), np.radians([38, -20])))
regions = VonMisesFisher(centres, torch.tensor([60.0, 25.0])).sample((400,)).flatten(0, 1)
X = torch.cat([regions, HypersphericalUniform(3).sample((300,))]).numpy()

# %%
# ``"free"`` gives each component its own κ. The third component gets a κ near 0. So it is almost uniform, and takes the
# background.

mixture = VonMisesFisherMixture(3, concentration_type="free", random_state=0).fit(X)
order = np.argsort(-mixture.concentrations_)
for k in order:
    x, y, z = mixture.mean_directions_[k]
    place = f"{np.degrees(np.arctan2(y, x)):4.0f}° east, {np.degrees(np.arcsin(z)):3.0f}° north"
    print(f"{place}: {mixture.weights_[k]:.0%} of the quakes, κ = {mixture.concentrations_[k]:.1f}")

# %%
# The Mollweide projection preserves areas. So equal densities look equal everywhere on the map.

longitude, latitude = np.meshgrid(np.linspace(-np.pi, np.pi, 241), np.linspace(-np.pi / 2, np.pi / 2, 121))
log_density = mixture.score_samples(vectors(longitude, latitude).reshape(-1, 3)).reshape(longitude.shape)

figure = plt.figure(figsize=(7, 4.4), layout="constrained")
ax = figure.add_subplot(projection="mollweide")
levels = np.linspace(-3, 1, 9)
ax.contourf(longitude, latitude, log_density, levels, extend="max", cmap="Greys", alpha=0.6)
labels, names = mixture.predict(X), ("first region", "second region", "background")
for k, color, name in zip(order, ("#0072B2", "#D55E00", "#9a9a9a"), names, strict=True):
    x, y, z = X[labels == k].T
    ax.scatter(np.arctan2(y, x), np.arcsin(z), s=6, linewidth=0, color=color, label=name)
ax.grid(alpha=0.4)
ax.set_longitude_grid(60)
ax.set_latitude_grid(30)
ax.set_title("Epicentres by region, with the log-density of the mixture")
figure.legend(frameon=False, loc="outside lower center", ncols=3, markerscale=3)
