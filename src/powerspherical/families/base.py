"""What a family is: the law of one cosine t = μᵀx, from which everything on the sphere follows.

A distribution that depends on x only through t is a law of t on [-1, 1] and a uniform direction in the tangent space at
μ (De Cao & Aziz 2020, theorem 1). A ``Family`` is that law as a function of a concentration κ ≥ 0 and the ambient
dimension d. It must know the logarithm of its unnormalised density. Everything else has a default by quadrature, and a
family overrides what it knows in closed form.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from powerspherical._torch.chunks import in_chunks
from powerspherical._torch.derivatives import value_and_slope
from powerspherical.families import _quadrature as quadrature
from powerspherical.families import _tail_quadrature as tail_quadrature
from powerspherical.families import _tails as tails
from powerspherical.families._solve import increasing_inverse


def _doubles(*tensors: Tensor) -> tuple[Tensor, ...]:
    """In float64 and of one shape."""
    return torch.broadcast_tensors(*(x.double() for x in tensors))


def _widest(*tensors: Tensor) -> torch.dtype:
    return functools.reduce(torch.promote_types, (x.dtype for x in tensors))


def _row_sums(matrix: Tensor) -> Tensor:
    return matrix.sum(1).double()


class PointSums(NamedTuple):
    """Sums over b points for k components, float64 but for the first.

    Attributes:
        pulls: (k, b), the weights of the points in Σ pull·x, up to ``factor``.
        bend: (k,), Σ bend.
        score: (k,), Σ score; zero where the family is linear in t, because Σ pull·x has it.
        factor: what Σ pulls·x is to be multiplied by.
    """

    pulls: Tensor
    bend: Tensor
    score: Tensor
    factor: float = 1.0


class Family(ABC):
    """A rotationally symmetric family on the unit sphere of R^d, as functions of κ (``kappa``) and d (``dim``).

    ``kappa`` is a float32 or float64 tensor of any shape with entries ≥ 0, ``dim`` a Python integer ≥ 2. The cosine t
    is always given by 1-t and 1+t, because each keeps its digits where it is small. κ = 0 is the uniform distribution,
    and κ ↦ E t must increase.

    The defaults assume that the density of artanh t has one mode. They compute in float64 and are differentiable.
    """

    #: Unique identifier: the key in the registry, the choice on the command line, the argument of the draw operator.
    name: ClassVar[str]

    #: How prose refers to the family.
    title: ClassVar[str]

    def __repr__(self) -> str:
        return f"<{self.title} family>"

    def __reduce__(self) -> str | tuple[object, ...]:
        return type(self), ()  # a family has no state

    @abstractmethod
    def log_kernel(self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
        """log of the unnormalised density at t; 0 for κ = 0. Arguments broadcast; differentiable in all of them."""

    #: Whether log_kernel is linear in t, so that the mean direction of points is their best one for every κ.
    linear: ClassVar[bool] = False

    def antipode_power(self, kappa: Tensor) -> Tensor | None:
        """The exponent a if the density behaves as (1+t)^a near t = -1; None where it is smooth and positive."""
        return None

    # Normaliser, density, moments

    def log_partition(self, kappa: Tensor, dim: int) -> Tensor:
        """log E_U exp(log_kernel), E_U the mean over uniform points."""
        return quadrature.log_partition(self, kappa, dim)

    def log_density(self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
        """log of the density relative to the uniform distribution."""
        kernel = self.log_kernel(one_minus_t, one_plus_t, kappa, dim)
        return kernel - self.log_partition(kappa, dim).expand_as(kernel)

    def relative_entropy(self, kappa: Tensor, dim: int) -> Tensor:
        """KL(p‖U), the divergence from the uniform distribution."""
        return quadrature.relative_entropy(self, kappa, dim)

    def mean_cosine(self, kappa: Tensor, dim: int) -> Tensor:
        """E t, the length of E x."""
        return 1 - self.mean_cosine_complement(kappa, dim)

    def mean_cosine_complement(self, kappa: Tensor, dim: int) -> Tensor:
        """1 - E t, accurate where it is small."""
        return quadrature.mean_cosine_complement(self, kappa, dim)

    def variance_cosine(self, kappa: Tensor, dim: int) -> Tensor:
        """Var t."""
        return quadrature.variance_cosine(self, kappa, dim)

    def mean_log1p_cosine(self, kappa: Tensor, dim: int) -> Tensor:
        """E log(1+t)."""
        return quadrature.expectation(self, kappa, dim, lambda minus, plus: torch.log(plus))

    def mean_log1m_cosine(self, kappa: Tensor, dim: int) -> Tensor:
        """E log(1-t)."""
        return quadrature.expectation(self, kappa, dim, lambda minus, plus: torch.log(minus))

    # Probabilities of t

    def log_tails(
        self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int
    ) -> tuple[Tensor, Tensor]:
        """log P(T ≤ t) and log P(T > t), computed in float64 and rounded to the widest dtype of the arguments.

        Arguments broadcast; t beyond an end counts as that end; differentiable once.
        """
        log_cdf, log_sf = tails.log_tails(*_doubles(one_minus_t, one_plus_t, kappa), self, dim)
        dtype = _widest(one_minus_t, one_plus_t, kappa)
        return log_cdf.to(dtype), log_sf.to(dtype)

    def quantile(self, u: Tensor, complement: Tensor, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """1-t and 1+t with P(T ≤ t) = u, given u and 1-u, each accurate where it is small; NaN outside [0, 1].

        Computed in float64 and rounded to the widest dtype of the arguments, which broadcast; differentiable once.
        """
        one_minus_t, one_plus_t = tails.quantile(*_doubles(u, complement, kappa), self, dim)
        dtype = _widest(u, complement, kappa)
        return one_minus_t.to(dtype), one_plus_t.to(dtype)

    def log_near_tail(
        self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int
    ) -> tuple[Tensor, Tensor]:
        """log of the probability of one of the two tails at t, preferably the smaller, and whether it is P(T ≤ t).

        Float64 tensors of one shape, as for the next two: values without derivatives.
        """
        return tail_quadrature.log_near_tail(self, one_minus_t, one_plus_t, kappa, dim)

    def quantile_values(
        self, u: Tensor, complement: Tensor, kappa: Tensor, dim: int
    ) -> tuple[Tensor, Tensor]:
        """1-t and 1+t with P(T ≤ t) = u for 0 < u < 1."""
        return tail_quadrature.quantile(self, u, complement, kappa, dim)

    def implicit_slope(self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
        """d artanh(t)/dκ = (dt/dκ)/(1-t²) at a fixed probability (Figurnov et al. 2018)."""
        return tail_quadrature.implicit_slope(self, one_minus_t, one_plus_t, kappa, dim)

    # Draws

    def draw_cosine(
        self, squared_length: Tensor, kappa: Tensor, dim: int, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """1-t and 1+t of a draw for each entry of ``kappa``, and a tensor of its shape for ``rapidity_slope``.

        ``squared_length`` ~ χ²_{d-1}, of the shape of ``kappa``, may be used as noise: it is the squared length of the
        tangent Gaussian vector, independent of its direction. What is returned must not share its memory.
        """
        u = torch.rand(kappa.shape, dtype=torch.float64, device=kappa.device, generator=generator)
        # The grid of torch's uniform numbers starts at 0: their mid-points keep clear of both ends.
        u = u * (1 - 2**-53) + 2**-54
        minus, plus = self.quantile(u, 1 - u, kappa, dim)
        return minus.to(kappa.dtype), plus.to(kappa.dtype), kappa.clone()

    def rapidity_slope(
        self, one_minus_t: Tensor, one_plus_t: Tensor, noise: Tensor, kappa: Tensor, dim: int
    ) -> Tensor:
        """d artanh(t)/dκ = (dt/dκ)/(1-t²) of a draw, given what ``draw_cosine`` returned.

        The default is ``implicit_slope``. Any derivative with the same mean will do. The caller overwrites the result.
        """

        def rows(one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor) -> Tensor:
            return self.implicit_slope(one_minus_t, one_plus_t, kappa, dim)

        with torch.no_grad():
            return in_chunks(rows, *_doubles(one_minus_t, one_plus_t, kappa)).to(one_minus_t.dtype)

    # Concentrations from what a user knows

    def concentration_from_mean_cosine(self, length: Tensor, complement: Tensor, dim: int) -> Tensor:
        """The inverse of ``mean_cosine``, given the length and 1 - length; differentiable in ``length``."""

        def log_odds(kappa: Tensor) -> Tensor:
            return torch.log(self.mean_cosine(kappa, dim) / self.mean_cosine_complement(kappa, dim))

        target = length.double()
        goal = torch.log(target.detach() / complement.detach().double())
        return increasing_inverse(target, goal, lambda kappa: self.mean_cosine(kappa, dim), log_odds).to(
            length.dtype
        )

    def concentration_from_relative_entropy(self, nats: Tensor, dim: int) -> Tensor:
        """The κ ≥ 0 with KL(p‖U) = nats; differentiable for nats > 0, where the derivative is finite."""

        def log_expm1(x: Tensor) -> Tensor:
            return x + torch.log(-torch.expm1(-x))

        def entropy(kappa: Tensor) -> Tensor:
            return self.relative_entropy(kappa, dim)

        target = nats.double()
        return increasing_inverse(
            target, log_expm1(target.detach()), entropy, lambda kappa: log_expm1(entropy(kappa))
        ).to(nats.dtype)

    # Divergences

    def mean_log_loss(self, kappa: Tensor, dim: int, *, single: bool = False) -> Tensor:
        """-E log((1+t)/2) ≥ 0. ``single`` says that float32 accuracy will do."""
        return math.log(2) - self.mean_log1p_cosine(kappa, dim)

    def misalignment(self, kappa: Tensor, half_chord: Tensor, dim: int, *, single: bool = False) -> Tensor:
        """E log(1+μᵀX) - E log(1+νᵀX) ≥ 0 for a unit vector ν with (1-μᵀν)/2 = ``half_chord``."""
        k, h = _doubles(kappa, half_chord)
        return quadrature.expectation_elsewhere(
            self, k, h, dim, lambda minus, plus, minus_there, plus_there: torch.log(plus / plus_there)
        )

    def divergence_from(
        self, p: Family, kappa_p: Tensor, kappa: Tensor, half_chord: Tensor, dim: int, *, single: bool = False
    ) -> Tensor:
        """KL(p‖self) of the member κ_p of the family ``p`` and the member κ of this one, at any angle.

        Arguments are float64 and of one shape. ``single`` says that float32 accuracy will do. The default integrates
        over the cosine and the azimuth; its error is about 1e-12 of the larger of the two log densities.
        """

        def log_kernel(
            minus: Tensor, plus: Tensor, one_minus_t: Tensor, one_plus_t: Tensor, k: Tensor
        ) -> Tensor:
            return self.log_kernel(one_minus_t, one_plus_t, k, dim)

        cross = quadrature.expectation_elsewhere(p, kappa_p, half_chord, dim, log_kernel, kappa)
        return p.relative_entropy(kappa_p, dim) + self.log_partition(kappa, dim) - cross

    def divergence_from_uniform(self, kappa: Tensor, dim: int) -> Tensor:
        """KL(U‖self), of the uniform distribution from the member κ."""
        kernel = quadrature.uniform_expectation(
            lambda minus, plus: self.log_kernel(minus, plus, kappa.unsqueeze(-1), dim), kappa, dim
        )
        return self.log_partition(kappa, dim) - kernel

    # Likelihood: how single points pull at the parameters

    def score(self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
        """∂ log_kernel/∂κ."""
        return value_and_slope(lambda k: self.log_kernel(one_minus_t, one_plus_t, k, dim), kappa)[1]

    def pull_and_bend(
        self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int
    ) -> tuple[Tensor, Tensor]:
        """g' and -(1-t²)g'', or 0 where that is negative, for g = log_kernel as a function of t; both divided by κ.

        They say how a point pulls at the mean direction, and how the pull slackens as the direction moves.
        """

        def slope(change: Tensor) -> Tensor:
            def kernel(c: Tensor) -> Tensor:
                return self.log_kernel(one_minus_t - c, one_plus_t + c, kappa, dim)

            return value_and_slope(kernel, change)[1]

        still = torch.zeros_like(one_minus_t)
        pull, second = value_and_slope(slope, still)
        scale = 1 / kappa.clamp(min=torch.finfo(kappa.dtype).tiny)
        return pull * scale, (-one_minus_t * one_plus_t * second * scale).clamp(min=0)

    def fitted_concentration(self, mean_score: Tensor, kappa: Tensor, dim: int) -> Tensor:
        """A better κ than the present one for points with this mean ``score`` at the present one: Fisher scoring.

        The step is the mean score relative to its expectation, divided by the variance of the score, and at most a
        factor of four.
        """
        mean, variance = quadrature.score_moments(self, kappa, dim)
        step = (mean_score - mean) / variance
        return (kappa + step).clamp(min=kappa / 4, max=4 * kappa + 1)

    # Mixtures: k components against b points, as matrices (k, b)

    def log_offset(self, kappa: Tensor, dim: int) -> Tensor:
        """What ``log_densities_`` needs to be added for log densities relative to the uniform."""
        return -self.log_partition(kappa, dim)

    def log_densities_(
        self, cosines: Tensor, kappa: Tensor, offsets: Tensor, dim: int, *, keep: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Log densities plus ``offsets`` (k, 1) for (k, b) ``cosines``, which may be overwritten, and (k, 1) ``kappa``.

        Also returns what ``point_sums_`` takes, if ``keep`` asks for it. At a few hundred dimensions one pass over such
        a matrix costs a tenth of the matrix product that made it: families that override this save passes.
        """
        smallest = torch.finfo(cosines.dtype).eps
        ends = (1 - cosines).clamp_(min=smallest), (1 + cosines).clamp_(min=smallest)
        return self.log_kernel(*ends, kappa, dim) + offsets, ends if keep else ()

    def point_sums_(self, kept: tuple[Tensor, ...], shares: Tensor, kappa: Tensor, dim: int) -> PointSums:
        """The sums over points that a maximisation step needs, for responsibilities ``shares`` (k, b)."""
        one_minus_t, one_plus_t = kept
        column = kappa.expand_as(one_minus_t)
        pull, bend = self.pull_and_bend(one_minus_t, one_plus_t, column, dim)
        score = self.score(one_minus_t, one_plus_t, column, dim)
        return PointSums(shares * pull, _row_sums(shares * bend), _row_sums(shares * score))
