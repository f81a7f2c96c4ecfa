"""Six families as the quadrature sees them: log-kernels with scores by forward-mode AD, and no closed form."""

from __future__ import annotations

import torch
from torch import Tensor

from powerspherical.quadrature.cosine import Cosine


class Kernel:
    def log_kernel(self, t: Cosine, kappa: Tensor, dim: int) -> Tensor:
        raise NotImplementedError

    def score(self, t: Cosine, kappa: Tensor, dim: int) -> Tensor:
        kappa = kappa.expand_as(t.minus).contiguous()
        return torch.func.jvp(lambda k: self.log_kernel(t, k, dim), (kappa,), (torch.ones_like(kappa),))[1]

    def mode_rapidity(self, kappa: Tensor, dim: int) -> Tensor | None:
        return None

    offset = mode_rapidity


class PowerSpherical(Kernel):
    def log_kernel(self, t: Cosine, kappa: Tensor, dim: int) -> Tensor:
        return -kappa * torch.log1p(t.minus / t.plus)


class VonMisesFisher(Kernel):
    def log_kernel(self, t: Cosine, kappa: Tensor, dim: int) -> Tensor:
        return -kappa * t.minus


class SphericalCauchy(Kernel):
    def log_kernel(self, t: Cosine, kappa: Tensor, dim: int) -> Tensor:
        return (dim - 1) * (torch.log1p(kappa) - torch.log1p(0.5 * t.minus * kappa * (kappa + 2)))


class Squared(Kernel):
    def log_kernel(self, t: Cosine, kappa: Tensor, dim: int) -> Tensor:
        return -kappa * t.minus.square()


class Mixed(Kernel):
    """A Power Spherical plus a von Mises–Fisher kernel of 3κ."""

    def log_kernel(self, t: Cosine, kappa: Tensor, dim: int) -> Tensor:
        return torch.logaddexp(-kappa * torch.log1p(t.minus / t.plus), -3 * kappa * t.minus)


class Pole(Kernel):
    """A von Mises–Fisher kernel with a pole at the antipode."""

    def log_kernel(self, t: Cosine, kappa: Tensor, dim: int) -> Tensor:
        return -kappa * t.minus - 0.3 * kappa / (1 + kappa) * torch.log(t.plus / 2)


class Hinted(VonMisesFisher):
    """von Mises–Fisher on the sphere of R³ with its closed forms."""

    def mode_rapidity(self, kappa: Tensor, dim: int) -> Tensor:
        return 0.5 * torch.asinh(kappa)  # from κ sech² y = 2 tanh y

    def offset(self, kappa: Tensor, dim: int) -> Tensor:
        return torch.log(2 * kappa / -torch.expm1(-2 * kappa))


KERNELS: dict[str, Kernel] = {
    "power_spherical": PowerSpherical(),
    "von_mises_fisher": VonMisesFisher(),
    "spherical_cauchy": SphericalCauchy(),
    "squared": Squared(),
    "mixed": Mixed(),
    "pole": Pole(),
}
