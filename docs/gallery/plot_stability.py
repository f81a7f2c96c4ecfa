r"""
Where a closed form loses its digits
====================================

The KL divergence of a Power Spherical distribution to the uniform has a closed form. Evaluated as written, it subtracts
large numbers that nearly cancel. Map its relative error over d and κ, and compare with the library.
"""

# %%
# With :math:`\beta = (d-1)/2` and :math:`\alpha = \beta + \kappa`, the closed form is
#
# .. math:: \kappa \bigl(\psi(\alpha) - \psi(\alpha + \beta)\bigr)
#           - \log\frac{\Gamma(\alpha)\,\Gamma(2\beta)}{\Gamma(\alpha + \beta)\,\Gamma(\beta)}.
#
# The same function evaluates it with torch and, for the exact values, with 60 digits of mpmath.

import matplotlib.pyplot as plt
import mpmath
import torch
from matplotlib.colors import LogNorm
from torch.distributions import kl_divergence

from powerspherical import HypersphericalUniform, PowerSpherical


def closed_form(dim, kappa, log_gamma=torch.lgamma, digamma=torch.digamma):
    alpha, beta = (dim - 1) / 2 + kappa, (dim - 1) / 2
    gammas = log_gamma(alpha) - log_gamma(alpha + beta) + log_gamma(2 * beta) - log_gamma(beta)
    return kappa * (digamma(alpha) - digamma(alpha + beta)) - gammas


def library(dim, kappa):
    q = PowerSpherical(torch.eye(1, int(dim), dtype=kappa.dtype)[0], kappa)
    return kl_divergence(q, HypersphericalUniform(int(dim)))


dims = (2 * 10 ** torch.arange(0, 5.5, 0.2)).round()  # 2 to 500,000
kappas = 2.0 ** torch.arange(-10, 21)  # 0.001 to a million, exact in float32
with mpmath.workdps(60):
    exact = [
        [float(closed_form(mpmath.mpf(dim), kappa, mpmath.loggamma, mpmath.digamma)) for dim in dims.tolist()]
        for kappa in kappas.tolist()
    ]
exact = torch.tensor(exact, dtype=torch.float64)

# %%
# Darker is worse. In float64 too, the closed form has no correct digit where κ is small and d is large.

figure, axes = plt.subplots(2, 2, figsize=(7, 5.2), sharex=True, sharey=True, layout="constrained")
for (name, kl), row in zip({"closed form": closed_form, "library": library}.items(), axes, strict=True):
    for dtype, ax in zip((torch.float32, torch.float64), row, strict=True):
        values = torch.stack([kl(dim, kappas.to(dtype)) for dim in dims.to(dtype)], dim=-1)
        error = ((values.double() - exact) / exact).abs().clamp(min=1e-16).numpy()
        image = ax.pcolormesh(dims.numpy(), kappas.numpy(), error, norm=LogNorm(1e-16, 1), cmap="magma_r")
        ax.set(xscale="log", yscale="log", title=f"{name}, {str(dtype)[6:]}")
        print(f"{name}, {str(dtype)[6:]}: largest relative error {error.max():.0e}")
figure.suptitle("Relative error of the KL divergence to the uniform")
figure.supxlabel("d")
figure.supylabel("κ")
figure.colorbar(image, ax=axes, label="relative error")
