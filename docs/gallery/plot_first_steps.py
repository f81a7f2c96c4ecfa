"""
Draws on the sphere
===================

Draw points around a direction at four concentrations, and see how κ changes their spread.
"""

# %%
# ``loc`` is the mean direction, a unit vector. ``concentration`` is κ: the larger it is, the closer the points are to
# ``loc``, and 0 is the uniform distribution. A batch of four concentrations makes four distributions.

import matplotlib.pyplot as plt
import torch

from powerspherical import PowerSpherical
from powerspherical.plot import plot_density

torch.manual_seed(0)
loc = torch.tensor([0.48, -0.64, 0.6])
q = PowerSpherical(loc, torch.tensor([1.0, 10.0, 50.0, 250.0]))
x = q.sample((300,))  # (300, 4, 3): draws, distributions, coordinates
print(x.shape)

# %%
# Blue shows the density, and black dots are draws.

figure = plt.figure(figsize=(7, 4.9), layout="constrained")
globes = figure.subplots(2, 2, subplot_kw={"projection": "3d"}).flat
for k, globe in enumerate(globes):
    one = PowerSpherical(loc, q.concentration[k])
    plot_density(one, globe, points=x[:, k], label="", colorbar=False, color="#56B4E9", view=(30, -25))
    globe.set_box_aspect((1, 1, 1), zoom=1.4)
    globe.set_title(f"κ = {one.concentration:.0f}")
figure.suptitle("300 draws and the density, at four concentrations")

# %%
# The closer the draws are to each other, the longer is their mean. Compare its length, for the 300 draws, with the
# exact value κ/(κ + d − 1).

print(x.mean(dim=0).norm(dim=-1))
print(q.mean.norm(dim=-1))
