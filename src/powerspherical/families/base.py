"""The base classes of families: the law of the cosine t = μᵀx, which determines everything on the sphere.

If a density depends on x only through t, then x consists of a cosine t in [-1, 1] and an independent uniform direction
in the tangent space at μ (De Cao & Aziz 2020, theorem 1). A ``Family`` is the law of t as a function of the
concentration κ ≥ 0 and the ambient dimension d, with defaults by quadrature. An ``ExponentialFamily`` defines its
statistic instead of the density. ``derived`` has what follows for every family from these methods.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from powerspherical._torch.constants import called_plainly
from powerspherical._torch.derivatives import value_and_slope, with_derivatives
from powerspherical._torch.elementary import log_of_share
from powerspherical._torch.precision import back, needs_float64, with_float64
from powerspherical._torch.random import uniform_doubles
from powerspherical.families.derived import information, mean_score
from powerspherical.quadrature import expectations, gauss_legendre, law
from powerspherical.quadrature.cosine import Cosine, dtype_of, log_half_cosine
from powerspherical.special import curves, tables
from powerspherical.special.moments import Array

_numbers = itertools.count()
_BREGMAN_NODES = 12


class Family(ABC):
    """A rotationally symmetric family on the unit sphere of R^d, as functions of κ (``kappa``) and d (``dim``).

    ``kappa`` is a float32 or float64 tensor of any shape with entries ≥ 0; ``dim`` is a Python integer ≥ 2. A cosine t
    is a ``Cosine``, the pair 1-t and 1+t, because each is accurate where it is small. κ = 0 must be the uniform
    distribution, and E t must increase with κ.

    A subclass must define ``name``, ``title`` and ``log_kernel``. It should override the methods that have closed
    forms. The defaults assume that the density of artanh t has one mode, and that functions of κ are smooth. The tests
    compare them with closed forms, to 1e-8, for d up to 1000 and κ up to 1e5.

    The von Mises–Fisher family from its log-density alone:

    >>> class Exponential(Family):
    ...     name = title = "exponential"
    ...
    ...     def log_kernel(self, t, kappa, dim):
    ...         return -kappa * t.minus
    >>> Exponential().mean_cosine(torch.tensor([0.0, 1.0, 10.0]), 3)  # coth κ - 1/κ
    tensor([0.0000, 0.3130, 0.9000])

    Power Spherical at d = 3, where the density of t is ∝ (1+t)^κ:

    >>> from powerspherical.families import POWER_SPHERICAL as p
    >>> zero, one, kappa = torch.tensor([[0.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    >>> t = Cosine(one, one)
    >>> p.log_kernel(t, kappa, 3).exp(), p.score(t, kappa, 3)  # ((1+t)/2)^κ, log((1+t)/2)
    (tensor([0.5000, 0.2500]), tensor([-0.6931, -0.6931]))
    >>> p.derivatives(t, kappa, 3)  # κ/(1+t), -κ/(1+t)²
    (tensor([1., 2.]), tensor([-1., -2.]))
    >>> p.mode_rapidity(kappa, 3), p.offset(kappa, 3).exp()  # ½ log(1+κ), κ+1
    (tensor([0.3466, 0.5493]), tensor([2., 3.]))
    >>> p.mean_cosine(kappa, 3), p.mean_loss(kappa, 3)  # κ/(κ+2), 2/(κ+2)
    (tensor([0.3333, 0.5000]), tensor([0.6667, 0.5000]))
    >>> p.relative_entropy(kappa, 3), p.variance_cosine(kappa, 3)
    (tensor([0.1931, 0.4319]), tensor([0.2222, 0.1500]))
    >>> p.from_mean_cosine(one / 3, 2 * one / 3, 3)
    tensor([1., 1.])
    >>> p.draw_cosine(one, kappa, 3)[0].value  # 2e^{-S/(2κ+2)} - 1 for S = 1
    tensor([0.5576, 0.6930])
    >>> p.misalignment(kappa, t, 3), p.divergence(p, one, kappa, Cosine(zero, 2 * one), 3)
    (tensor([0.5000, 0.6250], dtype=torch.float64), tensor([0.0000, 0.0945], dtype=torch.float64))
    >>> u, kappa = torch.tensor([[0.36], [1.0]], dtype=torch.float64)
    >>> t = p.quantile(u, 1 - u, kappa, 3)
    >>> t.value, p.slope(t, None, kappa, 3)  # t = 2u^{1/(κ+1)} - 1
    (tensor([0.2000], dtype=torch.float64), tensor([0.3193], dtype=torch.float64))
    >>> p.log_tail(t, kappa, 3)
    (tensor([-1.0217], dtype=torch.float64), tensor([True]))
    """

    #: Unique identifier in the registry, on the command line and in the draw operator.
    name: ClassVar[str]

    #: The name in text.
    title: ClassVar[str]

    #: Whether log_kernel is linear in t. Then the mean direction of the data is the best direction for every κ.
    linear: ClassVar[bool] = False

    #: The c for which exp(log_kernel + cκ) is the customary unnormalised density, such as (1+t)^κ.
    peak: ClassVar[float] = 0.0

    #: Where ``special.curves`` finds the family's functions of κ.
    key: ClassVar[str]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # A new law has tables of its own. A subclass that only overrides other methods shares those of its parent.
        if "key" not in vars(cls) and not any(
            hasattr(base, "key") and _same_law(cls, base) for base in cls.__bases__
        ):
            cls.key = f"{cls.__qualname__} {next(_numbers)}"
            tables.register(cls.key, lambda dim: called_plainly(_tables, cls(), int(dim)))

    def __repr__(self) -> str:
        return f"<{self.title} family>"

    def __reduce__(self) -> str | tuple[object, ...]:
        from powerspherical.families.registry import restored  # the registry imports this module

        return restored, (type(self), self.name)

    # The density

    @abstractmethod
    def log_kernel(self, t: Cosine, kappa: Tensor, dim: int) -> Tensor:
        """Return the log of the unnormalised density at t; 0 for κ = 0, and preferably 0 at the mode.

        Arguments broadcast, and the result has their broadcast shape. It must be differentiable in all of them.
        """

    def score(self, t: Cosine, kappa: Tensor, dim: int) -> Tensor:
        """Return the derivative of ``log_kernel`` in κ, in the shape to which the arguments broadcast."""
        kappa = kappa.expand(torch.broadcast_shapes(kappa.shape, t.minus.shape))
        return value_and_slope(lambda k: self.log_kernel(t, k, dim), kappa)[1]

    def derivatives(self, t: Cosine, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """Return the first and the second derivative of ``log_kernel`` in t. All tensors have one shape."""

        def first(change: Tensor) -> Tensor:
            def kernel(c: Tensor) -> Tensor:
                return self.log_kernel(Cosine(t.minus - c, t.plus + c), kappa, dim)

            return value_and_slope(kernel, change)[1]

        return value_and_slope(first, torch.zeros_like(t.minus))

    def mode_rapidity(self, kappa: Tensor, dim: int) -> Tensor | None:
        """Return the mode of the density of artanh t, in the shape of ``kappa``; None to have it searched for."""
        return None

    # Functions of κ

    def offset(self, kappa: Tensor, dim: int) -> Tensor:
        """Return -log E_U exp(log_kernel), where E_U is the mean over uniform points, in the shape of ``kappa``."""
        return curves.value(kappa, self.key, "offset", dim)

    def relative_entropy(self, kappa: Tensor, dim: int) -> Tensor:
        """Return KL(p‖U), the divergence from the uniform distribution in nats, in the shape of ``kappa``."""
        return curves.value(kappa, self.key, "relative_entropy", dim)

    def mean_cosine(self, kappa: Tensor, dim: int) -> Tensor:
        """Return E t, the length of E x, in the shape of ``kappa``."""
        return curves.value(kappa, self.key, "mean", dim)

    def mean_loss(self, kappa: Tensor, dim: int) -> Tensor:
        """Return 1 - E t, accurate where it is small, in the shape of ``kappa``."""
        return curves.value(kappa, self.key, "loss", dim)

    def variance_cosine(self, kappa: Tensor, dim: int) -> Tensor:
        """Return Var t, in the shape of ``kappa``."""
        return curves.value(kappa, self.key, "variance", dim)

    def from_mean_cosine(self, length: Tensor, loss: Tensor, dim: int) -> Tensor:
        """Return the κ with E t = ``length`` = 1 - ``loss``, of the same shape; differentiable in ``length``.

        The result has the dtype of ``length``.
        """
        return curves.inverse_mean(length, loss, self.key, dim)

    # Probabilities of t, in float64, without derivatives, which ``derived`` adds.

    def log_tail(self, t: Cosine, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """Return the log of the probability of one tail at t, preferably the smaller, and whether that tail is T ≤ t.

        All tensors have one shape.
        """
        return law.log_near_tail(self, t, kappa, dim)

    def quantile(self, u: Tensor, complement: Tensor, kappa: Tensor, dim: int) -> Cosine:
        """Return the t with P(T ≤ t) = u, for 0 < u < 1 and ``complement`` = 1-u, tensors of one shape."""
        return law.quantile(self, u, complement, kappa, dim)

    # Draws

    def draw_cosine(
        self, squared_length: Tensor, kappa: Tensor, dim: int, generator: torch.Generator | None = None
    ) -> tuple[Cosine, Tensor]:
        """Draw one cosine per entry of ``kappa``. Return it and the noise that ``slope`` needs.

        Args:
            squared_length: χ²_{d-1} variables, which may be used as noise. They are the squared lengths of the tangent
                Gaussian vectors, which are independent of the directions. The results must not share their memory.
            kappa: concentration, of the same shape as ``squared_length``. The results have that shape, too.
            dim: the ambient dimension d.
            generator: source of further random numbers. Default: torch's generator for the device.
        """
        u = uniform_doubles(kappa, generator)
        t = self.quantile(u, 1 - u, with_float64(kappa).double(), dim).to(kappa.dtype)
        return Cosine(*(back(end, kappa) for end in t)), kappa.clone()

    @needs_float64
    def slope(self, t: Cosine, noise: Tensor | None, kappa: Tensor, dim: int) -> Tensor:
        """Return d artanh(t)/dκ = (dt/dκ)/(1-t²) at a fixed probability of t, or for a draw with this ``noise``.

        Without ``noise`` it is the derivative at a fixed probability (Figurnov et al. 2018), and tensors are float64.
        For a draw with noise it may be another derivative with the same mean. All tensors have one shape. The result
        has the dtype of t, and the caller may overwrite it.
        """
        return law.slope(self, t.to(torch.float64), kappa.double(), dim).to(dtype_of(t))

    # Divergences. κ in float32 asks for float32 accuracy, but results are always float64.

    def misalignment(self, kappa: Tensor, angle: Cosine, dim: int) -> Tensor:
        """Return E log(1+μᵀX) - E log(1+νᵀX) ≥ 0 for a unit vector ν at ``angle`` from μ.

        The divergence from this family to Power Spherical needs it. The tensors have one shape, which the result has,
        too.
        """
        return expectations.excess(self, kappa, angle, dim, lambda t: -log_half_cosine(t))

    def divergence(self, p: Family, kappa_p: Tensor, kappa: Tensor, angle: Cosine, dim: int) -> Tensor:
        """Return KL(p‖self) between the member κ_p of the family ``p`` and the member κ of this one.

        ``angle`` is that of the two mean directions. The tensors have one shape, which the result has, too. The default
        integrates over the cosine and the azimuth. Its error is about 1e-12 times the larger of the two log-densities.
        """
        kappa_p, kappa, angle = kappa_p.double(), kappa.double(), angle.to(torch.float64)
        cross = expectations.expectation_in_two_cosines(
            p, kappa_p, angle, dim, lambda _, other, k: self.log_kernel(other, k, dim), kappa
        )
        return p.relative_entropy(kappa_p, dim) - self.offset(kappa, dim) - cross


def _same_law(first: type, second: type) -> bool:
    return all(getattr(first, x, None) is getattr(second, x, None) for x in ("log_kernel", "statistic"))


def _tables(family: Family, dim: int) -> dict[str, tables.Curve]:
    """Return the functions of κ at a fixed d, by a quadrature at some 3,500 κ."""

    def formula(kappa: Array, _: float) -> dict[str, Array]:
        found = expectations.moments(family, torch.from_numpy(kappa), dim)
        # A normalised kernel has the offset 0 up to rounding, which no polynomial fits. So we fit 1 + offset.
        found["offset"] += 1
        return {name: values.numpy() for name, values in found.items()}

    found = tables.sampled_curves(formula, dim)
    wanted = {"offset", "relative_entropy", "mean", "loss", "log_loss", "variance", "information"}
    missing = sorted(wanted - found.keys())
    if missing:
        raise ValueError(
            f"functions of κ of the {family.title} family cannot be tabulated at d = {dim}: {', '.join(missing)}. "
            "log_kernel must be a smooth function of κ, without kinks or rounding errors above 1e-9"
        )
    found["offset"] = found["offset"].minus(1.0)
    found.setdefault("score_loss", found["offset"].slope)  # it may be zero up to rounding, too
    return found


class ExponentialFamily(Family):
    """A family with the unnormalised density exp(κT). Its statistic T is ≤ 0, and 0 at the mode t = 1.

    With Ψ = log E_U exp(κT), which is minus the ``offset``, E T = Ψ', Var T = Ψ'' and KL(p‖U) = κΨ' - Ψ.

    A subclass must define ``statistic``. The von Mises–Fisher family from its statistic alone:

    >>> class Exponential(ExponentialFamily):
    ...     name = title = "exponential"
    ...
    ...     def statistic(self, t):
    ...         return -t.minus
    >>> Exponential().mean_cosine(torch.tensor([0.0, 1.0]), 3)  # coth κ - 1/κ
    tensor([0.0000, 0.3130])

    >>> from powerspherical.families import POWER_SPHERICAL, SPHERICAL_CAUCHY
    >>> one, double = torch.ones(1), torch.ones(1, dtype=torch.float64)
    >>> POWER_SPHERICAL.statistic(Cosine(one, one))  # log((1+t)/2) at t = 0
    tensor([-0.6931])
    >>> POWER_SPHERICAL.losses(SPHERICAL_CAUCHY, one, Cosine(double, double), 2)  # 2 log(3/2), -log(5/8)
    (tensor([0.8109], dtype=torch.float64), tensor([0.4700], dtype=torch.float64))
    """

    @abstractmethod
    def statistic(self, t: Cosine) -> Tensor:
        """Return T at t, in the shape of t; differentiable."""

    def log_kernel(self, t: Cosine, kappa: Tensor, dim: int) -> Tensor:
        return _product(kappa, self.statistic(t))

    def score(self, t: Cosine, kappa: Tensor, dim: int) -> Tensor:
        return self.statistic(t)

    def divergence(self, p: Family, kappa_p: Tensor, kappa: Tensor, angle: Cosine, dim: int) -> Tensor:
        # KL(p‖U) + Ψ - κ E_p T(νᵀX). Within the family, the Bregman divergence of Ψ and what the angle adds to it.
        loss, misaligned = self.losses(p, kappa_p, angle, dim)
        kappa_p, kappa = kappa_p.double(), kappa.double()
        if p.key == self.key:
            return bregman(kappa_p, kappa, self, dim) + kappa * misaligned
        return p.relative_entropy(kappa_p, dim) - self.offset(kappa, dim) + kappa * (loss + misaligned)

    def losses(self, p: Family, kappa_p: Tensor, angle: Cosine, dim: int) -> tuple[Tensor, Tensor]:
        """Return -E T(μᵀX) ≥ 0 and E T(μᵀX) - E T(νᵀX) ≥ 0 in float64, for the member κ_p of the family ``p``.

        X has the mean direction μ, and ν is at ``angle`` from it. The tensors have one shape, which the results have,
        too. The default integrates over the cosine and the azimuth.
        """

        def loss(t: Cosine) -> Tensor:
            return -self.statistic(t)

        own = expectations.expectation(p, kappa_p.double(), dim, loss)
        return own, expectations.excess(p, kappa_p, angle, dim, loss)


@with_derivatives(lambda kappa, statistic: statistic, lambda kappa, statistic: kappa)
def _product(kappa: Tensor, statistic: Tensor) -> Tensor:
    """Return κT, and 0 for κ = 0 also where T = -inf, as at the antipode."""
    lowest = torch.where(kappa == 0, -1e30, -math.inf).to(kappa.dtype)
    return kappa * torch.maximum(statistic, lowest)


@with_derivatives(
    lambda kappa_p, kappa, family, dim: (kappa_p - kappa) * information(family, kappa_p, dim),
    lambda kappa_p, kappa, family, dim: mean_score(family, kappa, dim) - mean_score(family, kappa_p, dim),
)
def bregman(kappa_p: Tensor, kappa: Tensor, family: ExponentialFamily, dim: int) -> Tensor:
    """Return Ψ(κ) - Ψ(κ_p) - (κ-κ_p)Ψ'(κ_p), the divergence between two members with equal directions."""
    change = kappa - kappa_p
    # If κ and κ_p are close, the difference cancels, and we use Δ²∫₀¹(1-s)Ψ''(κ_p+sΔ)ds instead.
    near = change.abs() < 0.7 * (torch.minimum(kappa_p, kappa) + (dim - 1) / 2)
    nodes, weights = gauss_legendre(kappa_p, _BREGMAN_NODES).unbind()
    path = kappa_p.unsqueeze(-1) + torch.where(near, change, 0.0).unsqueeze(-1) * nodes
    curvature = (weights * (1 - nodes) * information(family, path, dim)).sum(-1)
    means = mean_score(family, kappa, dim) - mean_score(family, kappa_p, dim)
    entropies = family.relative_entropy(kappa_p, dim) - family.relative_entropy(kappa, dim)
    return torch.where(near, change * change * curvature, entropies + kappa * means)


def squared_length(u: Tensor, complement: Tensor) -> Tensor:
    """Return the S with e^{-S/2} = u for draws on S² by inversion, given u and 1-u; NaN for u outside [0, 1]."""
    log_u = log_of_share(u, complement)
    return torch.where(log_u <= 0, -2 * log_u, torch.nan)
