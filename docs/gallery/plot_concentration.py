"""
κ for a given rate or mean cosine
=================================

The same κ means different things in different dimensions: κ = 20 is a narrow cap in three dimensions, and almost
uniform in a thousand. Choose the rate in nats or the mean cosine instead, and let the library find κ.
:doc:`Choosing a family and κ </choosing>` says which to take.
"""

# %%
# The rate is KL(q‖U), the KL divergence to the uniform distribution. The mean cosine is E μᵀx. Three distributions with
# the same rate of 4 nats:

import matplotlib.pyplot as plt
import torch

from powerspherical import PowerSpherical

for dim in (3, 64, 768):
    q = PowerSpherical.from_kl(torch.eye(1, dim, dtype=torch.float64)[0], 4.0)
    print(f"d = {dim:3}: κ = {q.concentration:6.1f}, mean cosine {q.mean.norm():.3f}")

# %%
# ``from_kl`` and ``from_mean_length`` also take tensors, so one call computes a curve. At a given mean cosine, κ is
# proportional to d − 1. At a given rate it is not: the curves cross.

dims = (2, 3, 8, 64, 768)
nats = torch.logspace(-2, 3, 200, dtype=torch.float64)
cosines = torch.linspace(0.01, 0.995, 200, dtype=torch.float64)

figure, (left, right) = plt.subplots(1, 2, figsize=(7, 4.9), sharey=True, layout="constrained")
for place, dim in enumerate(dims):
    color = plt.colormaps["viridis"](place / len(dims))
    loc = torch.eye(1, dim, dtype=torch.float64)[0]
    rates = nats[nats < 4 * (dim - 1)]  # beyond, κ is too large for the picture
    left.loglog(rates, PowerSpherical.from_kl(loc, rates).concentration, color=color, linewidth=2)
    kappa = PowerSpherical.from_mean_length(loc, cosines).concentration
    right.semilogy(cosines, kappa, color=color, linewidth=2, label=f"d = {dim}")
left.set(xlabel="rate, nats", ylabel="κ", ylim=(1e-2, 1e5), title="κ for a given rate")
right.set(xlabel="mean cosine", title="κ for a given mean cosine")
right.legend(frameon=False, loc="upper left", ncols=2)
for ax in (left, right):
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
