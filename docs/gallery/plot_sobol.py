"""
Sobol noise against random noise
================================

Average a function over a distribution with few draws: take their noise from a Sobol sequence.
"""

# %%
# ``noise`` returns standard normals, and ``rsample(noise=…)`` turns them into points. On the circle, a histogram of
# points with Sobol noise follows the density closely. :doc:`/noise` explains how the noise becomes a point.

import matplotlib.pyplot as plt
import torch

from powerspherical import VonMisesFisher
from powerspherical.plot import plot_density

torch.manual_seed(0)
q = VonMisesFisher(torch.tensor([0.0, 1.0]), 2.0)
figure, panels = plt.subplots(1, 2, figsize=(7, 4.9), layout="constrained")
for ax, sobol, color in zip(panels, (False, True), ("#D55E00", "#0072B2"), strict=True):
    x = q.rsample(noise=q.noise(512, sobol=sobol))
    plot_density(q, ax, points=x, label="", color=color)
    ax.set(xlim=(-1.3, 1.3), ylim=(-1.2, 1.7), title="Sobol noise" if sobol else "random noise")
figure.suptitle("512 points on the circle, and their density")

# %%
# Now estimate E exp(aᵀx) on the sphere. The exact value is the normaliser of κ' = ‖κμ + a‖ divided by that of κ.
# ``expand`` makes a batch of 100 equal distributions, which gives 100 uncorrelated estimates.

loc, a = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 2.0, 0.0])
q = VonMisesFisher(loc, 2.0).expand((100,))
tilted = VonMisesFisher(loc, torch.linalg.vector_norm(2 * loc + a))
exact = torch.exp(tilted.log_normalizer - q.log_normalizer)
numbers = [2**k for k in range(4, 13)]

figure, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
for sobol, name, color in ((False, "random", "#D55E00"), (True, "Sobol", "#0072B2")):
    errors = []
    for n in numbers:
        estimates = torch.exp(q.rsample(noise=q.noise(n, sobol=sobol)) @ a).mean(0)
        errors.append(((estimates / exact - 1) ** 2).mean().sqrt().item())
    ax.loglog(numbers, errors, "o-", base=2, color=color, linewidth=2, label=f"{name} noise")
    print(f"{name} noise, {numbers[-1]} draws: relative error {errors[-1]:.3%}")
ax.set(xlabel="number of draws", ylabel="relative error (root mean square)", yscale="log")
ax.set_title("Error of an average over draws")
ax.grid(alpha=0.3)
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False)
