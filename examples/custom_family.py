"""Add a distribution that the package does not have, from its log-density alone: the Poisson kernel on the sphere.

Relative to the uniform distribution its density is (1-ρ²)/‖x - ρμ‖^d, 0 ≤ ρ < 1 (Golzy & Markatou 2020). A Brownian
motion that starts at ρμ leaves the unit ball at a point with this distribution, so the mean is exactly ρμ. On the
circle it is the spherical Cauchy distribution.

Run it with ``python examples/custom_family.py`` (needs the extra ``mixture``).
"""

import torch
from torch import Tensor
from torch.distributions import kl_divergence

from powerspherical import HypersphericalUniform, RotationallySymmetric, SphericalCauchy, VonMisesFisher
from powerspherical.families import Cosine, Family
from powerspherical.mixture import SphericalMixture


class PoissonKernelFamily(Family):
    """The distribution of t = μᵀx. The concentration is κ ≥ 0 with ρ = κ/(κ+2), as for spherical Cauchy.

    1-ρ = 2/(κ+2) is accurate for every κ, while a ρ near 1 has lost its digits. And κ needs no upper bound.
    """

    name = "poisson_kernel"
    title = "Poisson kernel"

    def log_kernel(self, t: Cosine, kappa: Tensor, dim: int) -> Tensor:
        """Return log(1-ρ²) - d log‖x-ρμ‖, where ‖x-ρμ‖² = (1-ρ)² + 2ρ(1-t) = (1-ρ)²(1 + κ(κ+2)(1-t)/2)."""
        constant = torch.log1p(kappa) + (dim - 2) * torch.log1p(kappa / 2)
        return constant - 0.5 * dim * torch.log1p(0.5 * kappa * (kappa + 2) * t.minus)


class PoissonKernel(RotationallySymmetric):
    """The Poisson kernel distribution, with a mean direction ``loc`` and a ``concentration``."""

    family = PoissonKernelFamily()

    @property
    def rho(self) -> Tensor:
        """ρ = κ/(κ+2), the length of the mean."""
        return self.concentration / (self.concentration + 2)


class PoissonKernelMixture(SphericalMixture):
    """A mixture of Poisson kernels, as a scikit-learn estimator."""

    distribution = PoissonKernel


def main() -> None:
    """Sample, score, differentiate, fit, compare and cluster."""
    torch.manual_seed(0)
    north, east, up = torch.eye(3, dtype=torch.float64)
    p = PoissonKernel(north, 6.0)
    x = p.sample((20_000,))
    print(f"ρ = {p.rho:.4f}, ‖E x‖ = {p.mean.norm():.4f}, mean of 20,000 draws {x.mean(0).norm():.4f}")
    print(f"entropy {p.entropy():.4f}, minus the mean log density of the draws {-p.log_prob(x).mean():.4f}")
    print(f"half of the mass lies within {p.cap_angle(0.5).rad2deg():.1f}° of the mean direction")

    kappa = torch.tensor(6.0, dtype=torch.float64, requires_grad=True)
    draws = PoissonKernel(north, kappa).rsample((20_000,))
    (slope,) = torch.autograd.grad(draws[:, 0].mean(), kappa)
    print(f"d E t/dκ by draws {slope:.4f}, exactly {2 / (6 + 2) ** 2:.4f}")

    fitted = PoissonKernel.fit(x)
    angle = torch.rad2deg(torch.acos((fitted.loc * north).sum()))
    print(f"fit: κ = {fitted.concentration:.2f} instead of 6, direction off by {angle:.2f}°")

    others = {
        "uniform": HypersphericalUniform(3, dtype=torch.float64),
        "von Mises–Fisher, κ = 5": VonMisesFisher(north, 5.0),
        "Poisson kernel at 90°, κ = 2": PoissonKernel(east, 2.0),
    }
    for name, q in others.items():
        sampled = (p.log_prob(x) - q.log_prob(x)).mean()
        print(f"KL to {name}: {kl_divergence(p, q):.4f}, by Monte Carlo {sampled:.4f}")

    circle = torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64)
    cauchy = SphericalCauchy(circle[0], 6.0).log_prob(circle)
    difference = (PoissonKernel(circle[0], 6.0).log_prob(circle) - cauchy).abs().max()
    print(f"largest difference from spherical Cauchy on the circle: {difference:.0e}")

    points = PoissonKernel(torch.stack((north, east, up)), 12.0).sample((500,)).transpose(0, 1).reshape(-1, 3)
    mixture = PoissonKernelMixture(3, random_state=0).fit(points.numpy())
    labels = torch.from_numpy(mixture.predict(points.numpy())).reshape(3, 500)
    agreement = torch.stack([(row == row.mode().values).double().mean() for row in labels]).mean()
    print(
        f"mixture: κ = {mixture.concentrations_[0]:.1f} instead of 12, {agreement:.0%} of points in their cluster"
    )


if __name__ == "__main__":
    main()
