"""The base class of families: the law of the cosine t = μᵀx, which determines everything on the sphere.

If a density depends on x only through t, then x consists of a cosine t in [-1, 1] and an independent uniform direction
in the tangent space at μ (De Cao & Aziz 2020, theorem 1). A ``Family`` is the law of t as a function of the
concentration κ ≥ 0 and the ambient dimension d. It must define the log of its unnormalised density. Everything else has
a default by quadrature, which a family overrides where it has a closed form.
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


def _broadcast_doubles(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Convert tensors to float64 and broadcast them."""
    return torch.broadcast_tensors(*(x.double() for x in tensors))


def _promoted_dtype(*tensors: Tensor) -> torch.dtype:
    return functools.reduce(torch.promote_types, (x.dtype for x in tensors))


class PointSums(NamedTuple):
    """Sums over b points for k mixture components, weighted by responsibilities; see ``Family.pull_and_bend``.

    Attributes:
        total: (k,), the sum of the responsibilities, float64.
        pulls: (k, b), the pull of each point. The sum over points is ``factor``·Σ pulls·x.
        bend: (k,), Σ bend, float64.
        score: (k,), Σ score, float64. Zero for families that are linear in t, which need only Σ pulls·x.
        factor: see ``pulls``.
    """

    total: Tensor
    pulls: Tensor
    bend: Tensor
    score: Tensor
    factor: float = 1.0


class Family(ABC):
    """A rotationally symmetric family on the unit sphere of R^d, as functions of κ (``kappa``) and d (``dim``).

    ``kappa`` is a float32 or float64 tensor of any shape with entries ≥ 0; ``dim`` is a Python integer ≥ 2. The cosine
    t is always passed as 1-t and 1+t, because each is accurate where it is small. κ = 0 must be the uniform
    distribution, and E t must increase with κ.

    The defaults assume that the density of artanh t has one mode. They compute in float64 and are differentiable.
    """

    #: Unique identifier in the registry, on the command line and in the draw operator.
    name: ClassVar[str]

    #: The name in text.
    title: ClassVar[str]

    def __repr__(self) -> str:
        return f"<{self.title} family>"

    def __reduce__(self) -> str | tuple[object, ...]:
        return type(self), ()  # families have no state

    @abstractmethod
    def log_kernel(self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
        """log of the unnormalised density at t; 0 for κ = 0. Arguments broadcast. Differentiable in all of them."""

    #: Whether log_kernel is linear in t. Then the mean direction of the data is the best direction for every κ.
    linear: ClassVar[bool] = False

    def antipode_power(self, kappa: Tensor) -> Tensor | None:
        """The exponent a if the density behaves like (1+t)^a near t = -1; None if it is smooth and positive there."""
        return None

    # Normaliser, density, moments

    def log_partition(self, kappa: Tensor, dim: int) -> Tensor:
        """log E_U exp(log_kernel), where E_U is the mean over uniform points."""
        return quadrature.log_partition(self, kappa, dim)

    def log_density(self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
        """log of the density relative to the uniform distribution."""
        kernel = self.log_kernel(one_minus_t, one_plus_t, kappa, dim)
        return kernel - self.log_partition(kappa, dim).expand_as(kernel)

    def relative_entropy(self, kappa: Tensor, dim: int) -> Tensor:
        """KL(p‖U), the divergence from the uniform distribution."""
        return quadrature.relative_entropy(self, kappa, dim)

    def relative_entropy_and_slope(self, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """``relative_entropy`` and its derivative in κ, which a family may compute together."""
        return value_and_slope(lambda k: self.relative_entropy(k, dim), kappa)

    def mean_cosine(self, kappa: Tensor, dim: int) -> Tensor:
        """E t, the length of E x."""
        return 1 - self.mean_cosine_complement(kappa, dim)

    def mean_cosine_complement(self, kappa: Tensor, dim: int) -> Tensor:
        """1 - E t, accurate where it is small."""
        return quadrature.expectation(self, kappa, dim, lambda minus, plus: minus)

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
        """log P(T ≤ t) and log P(T > t), computed in float64 and rounded to the promoted dtype of the arguments.

        Arguments broadcast. A t outside [-1, 1] is treated as the nearer end. Differentiable once.
        """
        log_cdf, log_sf = tails.log_tails(*_broadcast_doubles(one_minus_t, one_plus_t, kappa), self, dim)
        dtype = _promoted_dtype(one_minus_t, one_plus_t, kappa)
        return log_cdf.to(dtype), log_sf.to(dtype)

    def quantile(self, u: Tensor, complement: Tensor, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """1-t and 1+t with P(T ≤ t) = u, given u and ``complement`` = 1-u; NaN for u outside [0, 1].

        Computed in float64 and rounded to the promoted dtype of the arguments, which broadcast. Differentiable once.
        """
        one_minus_t, one_plus_t = tails.quantile(*_broadcast_doubles(u, complement, kappa), self, dim)
        dtype = _promoted_dtype(u, complement, kappa)
        return one_minus_t.to(dtype), one_plus_t.to(dtype)

    def log_near_tail(
        self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int
    ) -> tuple[Tensor, Tensor]:
        """log of the probability of one tail at t, preferably the smaller, and whether that tail is T ≤ t.

        This and the next two methods take float64 tensors of one shape and return values without derivatives.
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
        """Draw one cosine per entry of ``kappa``: 1-t, 1+t, and the noise that ``rapidity_slope`` needs.

        All tensors have the shape of ``kappa``. ``squared_length`` ~ χ²_{d-1} may be used as noise: it is the squared
        length of the tangent Gaussian vector, which is independent of its direction. The results must not share its
        memory.
        """
        u = torch.rand(kappa.shape, dtype=torch.float64, device=kappa.device, generator=generator)
        # torch's uniform numbers are multiples of 2^-53 from 0 on. Moving them to the mid-points avoids 0 and 1.
        u = u * (1 - 2**-53) + 2**-54
        minus, plus = self.quantile(u, 1 - u, kappa, dim)
        return minus.to(kappa.dtype), plus.to(kappa.dtype), kappa.clone()

    def rapidity_slope(
        self, one_minus_t: Tensor, one_plus_t: Tensor, noise: Tensor, kappa: Tensor, dim: int
    ) -> Tensor:
        """d artanh(t)/dκ = (dt/dκ)/(1-t²) of a draw, given the results of ``draw_cosine``.

        The default is ``implicit_slope``. An override may return another derivative with the same mean. The caller may
        overwrite the result.
        """
        with torch.no_grad():
            return in_chunks(
                lambda minus, plus, k: self.implicit_slope(minus, plus, k, dim),
                *_broadcast_doubles(one_minus_t, one_plus_t, kappa),
            ).to(one_minus_t.dtype)

    # Inverses

    def concentration_from_mean_cosine(self, length: Tensor, complement: Tensor, dim: int) -> Tensor:
        """The κ with E t = ``length``, given ``complement`` = 1 - length; differentiable in ``length``."""

        def log_odds(kappa: Tensor) -> Tensor:
            return torch.log(self.mean_cosine(kappa, dim) / self.mean_cosine_complement(kappa, dim))

        target = length.double()
        goal = torch.log(target.detach() / complement.detach().double())
        kappa = increasing_inverse(target, goal, lambda kappa: self.mean_cosine(kappa, dim), log_odds)
        return kappa.to(length.dtype)

    def concentration_from_relative_entropy(self, nats: Tensor, dim: int) -> Tensor:
        """The κ ≥ 0 with KL(p‖U) = nats; differentiable for nats > 0 (at 0 the derivative is infinite)."""

        def log_expm1(x: Tensor) -> Tensor:
            return x + torch.log(-torch.expm1(-x))

        def entropy(kappa: Tensor) -> Tensor:
            return self.relative_entropy(kappa, dim)

        target = nats.double()
        goal = log_expm1(target.detach())
        return increasing_inverse(target, goal, entropy, lambda kappa: log_expm1(entropy(kappa))).to(
            nats.dtype
        )

    # Divergences

    def mean_log_loss(self, kappa: Tensor, dim: int, *, single: bool = False) -> Tensor:
        """-E log((1+t)/2) ≥ 0. With ``single``, float32 accuracy is enough."""
        return math.log(2) - self.mean_log1p_cosine(kappa, dim)

    def misalignment(self, kappa: Tensor, half_chord: Tensor, dim: int, *, single: bool = False) -> Tensor:
        """E log(1+μᵀX) - E log(1+νᵀX) ≥ 0 for a unit vector ν with (1-μᵀν)/2 = ``half_chord``."""
        k, h = _broadcast_doubles(kappa, half_chord)
        return quadrature.expectation_in_two_cosines(
            self, k, h, dim, lambda minus, plus, other_minus, other_plus: torch.log(plus / other_plus)
        )

    def divergence_from(
        self, p: Family, kappa_p: Tensor, kappa: Tensor, half_chord: Tensor, dim: int, *, single: bool = False
    ) -> Tensor:
        """KL between the member κ_p of the family ``p`` and the member κ of this one: KL(p‖self).

        Args:
            half_chord: (1-μᵀν)/2 for the mean directions μ of p and ν of this one.
            single: whether float32 accuracy is enough.

        Tensors are float64 and of one shape. The default integrates over the cosine and the azimuth. Its error is about
        1e-12 times the larger of the two log-densities.
        """

        def log_kernel(
            minus: Tensor, plus: Tensor, other_minus: Tensor, other_plus: Tensor, k: Tensor
        ) -> Tensor:
            return self.log_kernel(other_minus, other_plus, k, dim)

        cross = quadrature.expectation_in_two_cosines(p, kappa_p, half_chord, dim, log_kernel, kappa)
        return p.relative_entropy(kappa_p, dim) + self.log_partition(kappa, dim) - cross

    def divergence_from_uniform(self, kappa: Tensor, dim: int) -> Tensor:
        """KL(U‖self) between the uniform distribution and the member κ."""
        kernel = quadrature.uniform_expectation(
            lambda minus, plus: self.log_kernel(minus, plus, kappa.unsqueeze(-1), dim), kappa, dim
        )
        return self.log_partition(kappa, dim) - kernel

    # Likelihood: derivatives at single points

    def score(self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
        """∂ log_kernel/∂κ."""
        return value_and_slope(lambda k: self.log_kernel(one_minus_t, one_plus_t, k, dim), kappa)[1]

    def pull_and_bend(
        self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int
    ) -> tuple[Tensor, Tensor]:
        """g'/κ and max(-(1-t²)g'', 0)/κ, for g = log_kernel as a function of t.

        The first is how strongly a point at t pulls the mean direction towards itself. The second is how fast that pull
        falls off as the direction moves.
        """

        def slope(change: Tensor) -> Tensor:
            def kernel(c: Tensor) -> Tensor:
                return self.log_kernel(one_minus_t - c, one_plus_t + c, kappa, dim)

            return value_and_slope(kernel, change)[1]

        pull, second = value_and_slope(slope, torch.zeros_like(one_minus_t))
        scale = 1 / kappa.clamp(min=torch.finfo(kappa.dtype).tiny)
        return pull * scale, (-one_minus_t * one_plus_t * second * scale).clamp(min=0)

    def fitted_concentration(self, mean_score: Tensor, kappa: Tensor, dim: int) -> Tensor:
        """One step of Fisher scoring from ``kappa``, for data with this mean ``score`` at ``kappa``.

        The step is (mean score - its expectation) / Var(score). It changes κ by at most about a factor of four.
        """
        mean, variance = quadrature.score_moments(self, kappa, dim)
        step = (mean_score - mean) / variance
        return (kappa + step).clamp(min=kappa / 4, max=4 * kappa + 1)

    # Mixtures: k components against b points, as matrices (k, b)

    def log_offset(self, kappa: Tensor, dim: int) -> Tensor:
        """The constant that turns ``log_densities_`` with zero offsets into log-densities relative to the uniform."""
        return -self.log_partition(kappa, dim)

    def log_densities_(
        self, cosines: Tensor, kappa: Tensor, offsets: Tensor, dim: int, *, keep: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Unnormalised log-densities plus ``offsets``, (k, b), and with ``keep`` the tensors ``point_sums_`` needs.

        Args:
            cosines: (k, b), may be overwritten.
            kappa, offsets: (k, 1).

        Overrides save passes over the matrix. In a few hundred dimensions one pass costs a tenth of the matrix product
        that computes ``cosines``.
        """
        smallest = torch.finfo(cosines.dtype).eps
        ends = (1 - cosines).clamp_(min=smallest), (1 + cosines).clamp_(min=smallest)
        return self.log_kernel(*ends, kappa, dim) + offsets, ends if keep else ()

    def point_sums_(self, kept: tuple[Tensor, ...], shares: Tensor, kappa: Tensor, dim: int) -> PointSums:
        """The sums over points that the M-step needs, for responsibilities ``shares`` (k, b); may overwrite them."""
        one_minus_t, one_plus_t = kept
        column = kappa.expand_as(one_minus_t)
        pull, bend = self.pull_and_bend(one_minus_t, one_plus_t, column, dim)
        score = self.score(one_minus_t, one_plus_t, column, dim)
        bends, scores = ((shares * x).sum(1).double() for x in (bend, score))
        return PointSums(shares.sum(1).double(), shares * pull, bends, scores)
