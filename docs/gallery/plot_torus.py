"""
Two angles on a torus
=====================

Model the wind direction in the morning and in the evening as one variable. North is both 0° and 360°, so a cluster of
days may cross the edge of the square of both angles. A product of two circles has no edge.
"""

# %%
# Simulate a thousand days. A day is a pair of unit vectors, of shape (2, 2).

import matplotlib.pyplot as plt
import numpy as np
import torch

from powerspherical import PowerSpherical, ProductOfSpheres


def pairs(degrees):
    """Return pairs of unit vectors (…, 2, 2) for pairs of angles (…, 2)."""
    angles = torch.deg2rad(torch.as_tensor(degrees, dtype=torch.float64))
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


torch.manual_seed(0)
kappa = torch.tensor([[12.0, 12.0], [30.0, 30.0], [12.0, 40.0]])
truth = ProductOfSpheres(PowerSpherical(pairs([[230, 340], [325, 35], [100, 50]]), kappa))
draws = truth.sample((450,))
x = torch.cat([draws[:, 0], draws[:350, 1], draws[:200, 2]])  # (1000, 2, 2)

# %%
# Fit a mixture of three products by expectation maximisation. ``fit`` takes weights, and fits all circles at once.

q, shares = ProductOfSpheres(PowerSpherical(pairs([[180, 0], [300, 0], [60, 0]]), 5.0)), torch.ones(3) / 3
for _ in range(50):
    weights = (q.log_prob(x[:, None]) + shares.log()).softmax(-1)  # (1000, 3)
    circles = PowerSpherical.fit(x[:, None].expand(-1, 3, 2, 2), weights[..., None].expand(-1, 3, 2))
    q, shares = ProductOfSpheres(circles), weights.mean(0)
peaks = torch.atan2(q.base_dist.loc[..., 1], q.base_dist.loc[..., 0]).rad2deg() % 360
for (morning, evening), share in zip(peaks, shares, strict=True):
    print(f"{share:.0%} of the days: {morning:.0f}° in the morning, {evening:.0f}° in the evening")

# %%
# The fitted density on the square and on the torus. Colours show its square root, so that wide clusters are visible.

grid = torch.stack(torch.meshgrid(*[torch.linspace(0, 360, 181)] * 2, indexing="ij"), dim=-1)
density = (q.log_prob(pairs(grid)[..., None, :, :]) + shares.log()).logsumexp(-1).exp()
colors = plt.colormaps["Blues"]((density / density.max()).sqrt().numpy())
figure = plt.figure(figsize=(7, 4.4), layout="constrained")
square, torus = figure.add_subplot(121), figure.add_subplot(122, projection="3d", elev=52, azim=-75)
square.imshow(colors.swapaxes(0, 1), origin="lower", extent=(0, 360, 0, 360))
square.scatter(*(torch.atan2(x[..., 1], x[..., 0]).rad2deg() % 360).T, s=4, color="#D55E00", linewidth=0)
square.set(xlabel="morning, degrees", ylabel="evening, degrees", xticks=(0, 180, 360), yticks=(0, 180, 360))
phi, psi = grid.deg2rad().numpy().transpose(2, 0, 1)
tube, height = 2 - np.sin(psi), np.cos(psi)  # 0° in the evening is at the top
colors[..., :3] *= 0.85 + 0.15 * height[..., None]  # light from above
surface = tube * np.cos(phi), tube * np.sin(phi), height
torus.plot_surface(*surface, facecolors=colors, rcount=181, ccount=181, shade=False, antialiased=False)
torus.set_box_aspect((1, 1, 0.33), zoom=1.4)
torus.set_axis_off()
figure.suptitle("Wind in the morning and in the evening: fitted density on the torus")
