"""The base class of families: the law of the cosine t = μᵀx, which determines everything on the sphere.

If a density depends on x only through t, then x consists of a cosine t in [-1, 1] and an independent uniform direction
in the tangent space at μ (De Cao & Aziz 2020, theorem 1). A ``Family`` is the law of t as a function of the
concentration κ ≥ 0 and the ambient dimension d. It must define the log of its unnormalised density. Everything else has
a default by quadrature, which a family overrides where it has a closed form.
"""

from __future__ import annotations

import functools
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

    A subclass must define ``name``, ``title`` and ``log_kernel``. It should override the methods that have closed
    forms. The defaults assume that the density of artanh t has one mode. They compute in float64 and are
    differentiable. The tests compare them with closed forms, to 1e-8, for d up to 1000 and κ up to 1e5.

    The von Mises–Fisher family from its log-density alone:

    >>> class Exponential(Family):
    ...     name = title = "exponential"
    ...
    ...     def log_kernel(self, one_minus_t, one_plus_t, kappa, dim):
    ...         return -kappa * one_minus_t
    >>> Exponential().mean_cosine(torch.tensor([0.0, 1.0, 10.0]), 3)  # coth κ - 1/κ
    tensor([0.0000, 0.3130, 0.9000])
    """

    #: Unique identifier in the registry, on the command line and in the draw operator.
    name: ClassVar[str]

    #: The name in text.
    title: ClassVar[str]

    def __repr__(self) -> str:
        return f"<{self.title} family>"

    def __reduce__(self) -> str | tuple[object, ...]:
        from powerspherical.families.registry import restored  # the registry imports this module

        return restored, (type(self), self.name)

    @abstractmethod
    def log_kernel(self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
        """Return the log of the unnormalised density at t; 0 for κ = 0.

        Arguments broadcast, and the result has their broadcast shape. It must be differentiable in all of them.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> t = torch.tensor([0.0, 0.5, 1.0])
        >>> POWER_SPHERICAL.log_kernel(1 - t, 1 + t, torch.tensor(2.0), 3).exp()  # (1+t)^κ
        tensor([1.0000, 2.2500, 4.0000])
        """

    def log_kernel_from_peak(
        self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int
    ) -> Tensor:
        """Return ``log_kernel`` plus a function of κ, chosen so that the result is small near the mode.

        Quadratures and mixtures use it, because they normalise in any case and a large common term takes digits. The
        shape is that of ``log_kernel``, which is the default.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> t = torch.tensor([0.0, 0.5, 1.0])
        >>> POWER_SPHERICAL.log_kernel_from_peak(1 - t, 1 + t, torch.tensor(2.0), 3).exp()  # ((1+t)/2)^κ
        tensor([0.2500, 0.5625, 1.0000])
        """
        return self.log_kernel(one_minus_t, one_plus_t, kappa, dim)

    #: Whether log_kernel is linear in t. Then the mean direction of the data is the best direction for every κ.
    linear: ClassVar[bool] = False

    def antipode_power(self, kappa: Tensor) -> Tensor | None:
        """Return the exponent a if the density behaves like (1+t)^a near t = -1; None if it is smooth and positive
        there.

        The result has the shape of ``kappa``.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> POWER_SPHERICAL.antipode_power(torch.tensor([0.0, 2.0]))
        tensor([0., 2.])
        """
        return None

    # Normaliser, density, moments

    def log_partition(self, kappa: Tensor, dim: int) -> Tensor:
        """Return log E_U exp(log_kernel), where E_U is the mean over uniform points.

        The result has the shape of ``kappa``.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> POWER_SPHERICAL.log_partition(torch.tensor([0.0, 2.0]), 3).exp()  # E(1+t)² = 1 + 1/3
        tensor([1.0000, 1.3333])
        """
        return quadrature.log_partition(self, kappa, dim)

    def log_density(self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
        """Return the log of the density at t, relative to the uniform distribution.

        Arguments broadcast, and the result has their broadcast shape.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> t = torch.tensor([0.0, 0.5, 1.0])
        >>> POWER_SPHERICAL.log_density(1 - t, 1 + t, torch.tensor(1.0), 3).exp()  # 1+t
        tensor([1.0000, 1.5000, 2.0000])
        """
        kernel = self.log_kernel(one_minus_t, one_plus_t, kappa, dim)
        return kernel - self.log_partition(kappa, dim).expand_as(kernel)

    def relative_entropy(self, kappa: Tensor, dim: int) -> Tensor:
        """Return KL(p‖U), the divergence from the uniform distribution, in nats.

        The result has the shape of ``kappa``.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> POWER_SPHERICAL.relative_entropy(torch.tensor([0.0, 1.0, 100.0]), 3)
        tensor([0.0000, 0.1931, 3.6250])
        """
        return quadrature.relative_entropy(self, kappa, dim)

    def relative_entropy_and_slope(self, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """Return ``relative_entropy`` and its derivative in κ, both of the shape of ``kappa``.

        A family may compute the two together.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> POWER_SPHERICAL.relative_entropy_and_slope(torch.tensor([0.0, 3.0]), dim=3)
        (tensor([0.0000, 0.6363]), tensor([0.0000, 0.1875]))
        """
        return value_and_slope(lambda k: self.relative_entropy(k, dim), kappa)

    def mean_cosine(self, kappa: Tensor, dim: int) -> Tensor:
        """Return E t, the length of E x.

        The result has the shape of ``kappa``.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> POWER_SPHERICAL.mean_cosine(torch.tensor([0.0, 2.0, 100.0]), 3)  # κ/(κ+d-1)
        tensor([0.0000, 0.5000, 0.9804])
        """
        return 1 - self.mean_cosine_complement(kappa, dim)

    def mean_cosine_complement(self, kappa: Tensor, dim: int) -> Tensor:
        """Return 1 - E t, accurate where it is small.

        The result has the shape of ``kappa``.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> POWER_SPHERICAL.mean_cosine_complement(torch.tensor([0.0, 1e9]), 3)
        tensor([1.0000e+00, 2.0000e-09])
        """
        return quadrature.expectation(self, kappa, dim, lambda minus, plus: minus)

    def variance_cosine(self, kappa: Tensor, dim: int) -> Tensor:
        """Return Var t.

        The result has the shape of ``kappa``.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> POWER_SPHERICAL.variance_cosine(torch.tensor([0.0, 1.0]), 3)  # 1/d at κ = 0
        tensor([0.3333, 0.2222])
        """
        return quadrature.variance_cosine(self, kappa, dim)

    def mean_log1p_cosine(self, kappa: Tensor, dim: int) -> Tensor:
        """Return E log(1+t).

        The result has the shape of ``kappa``.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> POWER_SPHERICAL.mean_log1p_cosine(torch.tensor([0.0, 1.0]), 3)
        tensor([-0.3069,  0.1931])
        """
        return quadrature.expectation(self, kappa, dim, lambda minus, plus: torch.log(plus))

    def mean_log1m_cosine(self, kappa: Tensor, dim: int) -> Tensor:
        """Return E log(1-t).

        The result has the shape of ``kappa``.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> POWER_SPHERICAL.mean_log1m_cosine(torch.tensor([0.0, 1.0]), 3)
        tensor([-0.3069, -0.8069])
        """
        return quadrature.expectation(self, kappa, dim, lambda minus, plus: torch.log(minus))

    # Probabilities of t

    def log_tails(
        self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int
    ) -> tuple[Tensor, Tensor]:
        """Return log P(T ≤ t) and log P(T > t), computed in float64 and rounded to the promoted dtype of the arguments.

        Arguments broadcast, and both results have their broadcast shape. A t outside [-1, 1] is treated as the nearer
        end. Differentiable once.

        For our families the relative error of the probabilities is at most 1e-8, for d and κ up to 1e6 and
        probabilities down to 1e-30.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> t = torch.tensor(0.0)
        >>> log_cdf, log_sf = POWER_SPHERICAL.log_tails(1 - t, 1 + t, torch.tensor(1.0), 3)
        >>> log_cdf.exp(), log_sf.exp()  # the density of t is (1+t)/2
        (tensor(0.2500), tensor(0.7500))
        """
        log_cdf, log_sf = tails.log_tails(*_broadcast_doubles(one_minus_t, one_plus_t, kappa), self, dim)
        dtype = _promoted_dtype(one_minus_t, one_plus_t, kappa)
        return log_cdf.to(dtype), log_sf.to(dtype)

    def quantile(self, u: Tensor, complement: Tensor, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """Return 1-t and 1+t with P(T ≤ t) = u, given u and ``complement`` = 1-u; NaN for u outside [0, 1].

        Arguments broadcast, and both results have their broadcast shape. They are computed in float64 and rounded to
        the promoted dtype of the arguments. Differentiable once.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> u = torch.tensor(0.36)
        >>> POWER_SPHERICAL.quantile(u, 1 - u, torch.tensor(1.0), 3)  # t = 2√u - 1
        (tensor(0.8000), tensor(1.2000))
        """
        one_minus_t, one_plus_t = tails.quantile(*_broadcast_doubles(u, complement, kappa), self, dim)
        dtype = _promoted_dtype(u, complement, kappa)
        return one_minus_t.to(dtype), one_plus_t.to(dtype)

    def log_near_tail(
        self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int
    ) -> tuple[Tensor, Tensor]:
        """Return the log of the probability of one tail at t, preferably the smaller, and whether that tail is T ≤ t.

        This and the next two methods take float64 tensors of one shape and return values of that shape without
        derivatives.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> t = torch.tensor([-0.5, 0.9], dtype=torch.float64)
        >>> log_tail, below = POWER_SPHERICAL.log_near_tail(1 - t, 1 + t, torch.ones_like(t), 3)
        >>> log_tail.exp(), below
        (tensor([0.0625, 0.0975], dtype=torch.float64), tensor([ True, False]))
        """
        return tail_quadrature.log_near_tail(self, one_minus_t, one_plus_t, kappa, dim)

    def quantile_values(
        self, u: Tensor, complement: Tensor, kappa: Tensor, dim: int
    ) -> tuple[Tensor, Tensor]:
        """Return 1-t and 1+t with P(T ≤ t) = u, for 0 < u < 1 and ``complement`` = 1-u.

        All tensors are float64 and of one shape. The default computes a bounded number of entries at a time.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> u = torch.tensor([0.36], dtype=torch.float64)
        >>> POWER_SPHERICAL.quantile_values(u, 1 - u, torch.ones_like(u), 3)
        (tensor([0.8000], dtype=torch.float64), tensor([1.2000], dtype=torch.float64))
        """
        return in_chunks(
            lambda u, complement, kappa: tail_quadrature.quantile(self, u, complement, kappa, dim),
            u,
            complement,
            kappa,
        )

    def implicit_slope(self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
        """Return d artanh(t)/dκ = (dt/dκ)/(1-t²) at a fixed probability (Figurnov et al. 2018).

        Arguments are float64 tensors of one shape. The result broadcasts against them. For our families the relative
        error of dt/dκ is at most 1e-8, for d and κ up to 1e6.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> t = torch.tensor([0.0], dtype=torch.float64)
        >>> POWER_SPHERICAL.implicit_slope(1 - t, 1 + t, torch.ones_like(t), 3)  # t = 2u^{1/(κ+1)} - 1
        tensor([0.3466], dtype=torch.float64)
        """
        return tail_quadrature.implicit_slope(self, one_minus_t, one_plus_t, kappa, dim)

    # Draws

    def draw_cosine(
        self, squared_length: Tensor, kappa: Tensor, dim: int, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Draw one cosine per entry of ``kappa``. Return 1-t, 1+t, and the noise that ``rapidity_slope`` needs.

        Args:
            squared_length: χ²_{d-1} variables, which may be used as noise. They are the squared lengths of the tangent
                Gaussian vectors, which are independent of the directions. The results must not share their memory.
            kappa: concentration, of the same shape as ``squared_length``. The results have that shape, too.
            dim: the ambient dimension d.
            generator: source of further random numbers. Default: torch's generator for the device.

        >>> from powerspherical.families import SPHERICAL_CAUCHY
        >>> _ = torch.manual_seed(0)
        >>> kappa = torch.full((10_000,), 2.0)
        >>> squared_length = torch.randn(10_000, 2).square().sum(-1)
        >>> one_minus_t, one_plus_t, noise = SPHERICAL_CAUCHY.draw_cosine(squared_length, kappa, 3)
        >>> (one_plus_t - 1).mean().round(decimals=1), SPHERICAL_CAUCHY.mean_cosine(kappa[0], 3).round(decimals=1)
        (tensor(0.6000), tensor(0.6000))
        """
        u = torch.rand(kappa.shape, dtype=torch.float64, device=kappa.device, generator=generator)
        # torch's uniform numbers are multiples of 2^-53 from 0 on. Moving them to the mid-points avoids 0 and 1.
        u = u * (1 - 2**-53) + 2**-54
        minus, plus = self.quantile(u, 1 - u, kappa, dim)
        return minus.to(kappa.dtype), plus.to(kappa.dtype), kappa.clone()

    def rapidity_slope(
        self, one_minus_t: Tensor, one_plus_t: Tensor, noise: Tensor, kappa: Tensor, dim: int
    ) -> Tensor:
        """Return d artanh(t)/dκ = (dt/dκ)/(1-t²) of a draw, given the results of ``draw_cosine``.

        All tensors have one shape. The default is ``implicit_slope``. An override may return another derivative with
        the same mean. The caller may overwrite the result.

        >>> from powerspherical.families import SPHERICAL_CAUCHY
        >>> kappa = torch.tensor([1.0, 4.0])
        >>> draw = SPHERICAL_CAUCHY.draw_cosine(torch.tensor([2.0, 2.0]), kappa, 3)
        >>> SPHERICAL_CAUCHY.rapidity_slope(*draw, kappa, 3)  # 1/(1+κ) for every t
        tensor([0.5000, 0.2000])
        """
        with torch.no_grad():
            return in_chunks(
                lambda minus, plus, k: self.implicit_slope(minus, plus, k, dim),
                *_broadcast_doubles(one_minus_t, one_plus_t, kappa),
            ).to(one_minus_t.dtype)

    # Inverses

    def concentration_from_mean_cosine(self, length: Tensor, complement: Tensor, dim: int) -> Tensor:
        """Return the κ with E t = ``length``, given ``complement`` = 1 - length, of the same shape.

        The result has that shape and the dtype of ``length``. Differentiable in ``length``.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> length = torch.tensor([0.0, 0.5])
        >>> POWER_SPHERICAL.concentration_from_mean_cosine(length, 1 - length, 3)
        tensor([0., 2.])
        """

        def log_odds(kappa: Tensor) -> Tensor:
            return torch.log(self.mean_cosine(kappa, dim) / self.mean_cosine_complement(kappa, dim))

        target = length.double()
        goal = torch.log(target.detach() / complement.detach().double())
        kappa = increasing_inverse(target, goal, lambda kappa: self.mean_cosine(kappa, dim), log_odds)
        return kappa.to(length.dtype)

    def concentration_from_relative_entropy(self, nats: Tensor, dim: int) -> Tensor:
        """Return the κ ≥ 0 with KL(p‖U) = ``nats``, or infinity if no κ reaches it.

        The result has the shape and dtype of ``nats``. It is differentiable for nats > 0. At 0 the derivative is
        infinite.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> kappa = POWER_SPHERICAL.concentration_from_relative_entropy(torch.tensor([0.0, 0.5]), 3)
        >>> POWER_SPHERICAL.relative_entropy(kappa, 3)
        tensor([0.0000, 0.5000])
        """

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
        """Return -E log((1+t)/2) ≥ 0. With ``single``, float32 accuracy is enough.

        The result has the shape of ``kappa``.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> POWER_SPHERICAL.mean_log_loss(torch.tensor(1.0), 3)  # 1/2
        tensor(0.5000)
        """
        return quadrature.expectation(self, kappa, dim, lambda *ends: -quadrature.log_half_cosine(*ends))

    def misalignment(self, kappa: Tensor, haversine: Tensor, dim: int, *, single: bool = False) -> Tensor:
        """Return E log(1+μᵀX) - E log(1+νᵀX) ≥ 0 for a unit vector ν with (1-μᵀν)/2 = ``haversine``.

        ``kappa`` and ``haversine`` broadcast, and the result has their broadcast shape. With ``single``, float32
        accuracy is enough.

        >>> from powerspherical.families import SPHERICAL_CAUCHY
        >>> haversine = torch.tensor([0.0, 0.5, 1.0])
        >>> SPHERICAL_CAUCHY.misalignment(torch.tensor(1.0), haversine, 3)  # -log(1 - ¾ haversine)
        tensor([0.0000, 0.4700, 1.3863])
        """
        k, h = _broadcast_doubles(kappa, haversine)

        def log_ratio(minus: Tensor, plus: Tensor, other_minus: Tensor, other_plus: Tensor) -> Tensor:
            log_half = quadrature.log_half_cosine
            return log_half(minus, plus) - log_half(other_minus, other_plus)

        return quadrature.expectation_in_two_cosines(self, k, h, dim, log_ratio)

    def divergence_from(
        self, p: Family, kappa_p: Tensor, kappa: Tensor, haversine: Tensor, dim: int, *, single: bool = False
    ) -> Tensor:
        """Return KL(p‖self) between the member κ_p of the family ``p`` and the member κ of this one.

        Args:
            p: the other family.
            kappa_p, kappa: the concentrations.
            haversine: (1-μᵀν)/2 for the mean directions μ of p and ν of this one, the haversine of their angle.
            dim: the ambient dimension d.
            single: whether float32 accuracy is enough.

        Tensors are float64 and of one shape, which the result has, too. The default integrates over the cosine and the
        azimuth. Its error is about 1e-12 times the larger of the two log-densities.

        >>> from powerspherical.families import POWER_SPHERICAL, VON_MISES_FISHER
        >>> kappa_p, kappa, haversine = torch.tensor([[10.0], [5.0], [0.0]], dtype=torch.float64)
        >>> VON_MISES_FISHER.divergence_from(POWER_SPHERICAL, kappa_p, kappa, haversine, 3)
        tensor([0.0195], dtype=torch.float64)
        """

        def log_kernel(
            minus: Tensor, plus: Tensor, other_minus: Tensor, other_plus: Tensor, k: Tensor
        ) -> Tensor:
            return self.log_kernel(other_minus, other_plus, k, dim)

        cross = quadrature.expectation_in_two_cosines(p, kappa_p, haversine, dim, log_kernel, kappa)
        return p.relative_entropy(kappa_p, dim) + self.log_partition(kappa, dim) - cross

    def divergence_from_uniform(self, kappa: Tensor, dim: int) -> Tensor:
        """Return KL(U‖self) between the uniform distribution and the member κ.

        The result has the shape of ``kappa``.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> POWER_SPHERICAL.divergence_from_uniform(torch.tensor([0.0, 1.0]), 3)  # 1 - log 2 at κ = 1
        tensor([0.0000, 0.3069])
        """
        kernel = quadrature.uniform_expectation(
            lambda minus, plus: self.log_kernel(minus, plus, kappa.unsqueeze(-1), dim), kappa, dim
        )
        return self.log_partition(kappa, dim) - kernel

    # Likelihood: derivatives at single points

    def score(self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
        """Return ∂ log_kernel/∂κ. An exponential family returns its statistic, which differs by a constant.

        The tensors have one shape, which the result has, too.

        >>> from powerspherical.families import VON_MISES_FISHER
        >>> t = torch.tensor([-1.0, 0.0, 1.0])
        >>> VON_MISES_FISHER.score(1 - t, 1 + t, torch.ones_like(t), 3)  # t - 1
        tensor([-2., -1., -0.])
        """
        return value_and_slope(lambda k: self.log_kernel(one_minus_t, one_plus_t, k, dim), kappa)[1]

    def pull_and_bend(
        self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int
    ) -> tuple[Tensor, Tensor]:
        """Return g'/κ and max(-(1-t²)g'', 0)/κ, for g = log_kernel as a function of t.

        The first is how strongly a point at t pulls the mean direction towards itself. The second is how fast that pull
        falls off as the direction moves. All tensors have one shape.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> t = torch.tensor([0.0, 1.0])
        >>> POWER_SPHERICAL.pull_and_bend(1 - t, 1 + t, torch.ones_like(t), 3)  # 1/(1+t) and (1-t)/(1+t)
        (tensor([1.0000, 0.5000]), tensor([1., 0.]))
        """

        def slope(change: Tensor) -> Tensor:
            def kernel(c: Tensor) -> Tensor:
                return self.log_kernel(one_minus_t - c, one_plus_t + c, kappa, dim)

            return value_and_slope(kernel, change)[1]

        pull, second = value_and_slope(slope, torch.zeros_like(one_minus_t))
        scale = 1 / kappa.clamp(min=torch.finfo(kappa.dtype).tiny)
        return pull * scale, (-one_minus_t * one_plus_t * second * scale).clamp(min=0)

    def fitted_concentration(self, mean_score: Tensor, kappa: Tensor, dim: int) -> Tensor:
        """Return κ after one step of Fisher scoring from ``kappa``, for data with this mean ``score`` at ``kappa``.

        The step is (mean score - its expectation) / Var(score). It changes κ by at most about a factor of four. The
        arguments have one shape, which the result has, too. An exponential family returns the maximum-likelihood κ
        instead.

        >>> from powerspherical.families import VON_MISES_FISHER
        >>> mean_score = VON_MISES_FISHER.mean_cosine(torch.tensor(2.5), 3) - 1
        >>> VON_MISES_FISHER.fitted_concentration(mean_score, torch.tensor(9.0), 3)
        tensor(2.5000)
        """
        mean, variance = quadrature.score_moments(self, kappa, dim)
        step = (mean_score - mean) / variance
        return (kappa + step).clamp(min=kappa / 4, max=4 * kappa + 1)

    # Mixtures: k components against b points, as matrices (k, b)

    def log_offset(self, kappa: Tensor, dim: int) -> Tensor:
        """Return the constant that turns ``log_densities_`` with zero offsets into log-densities relative to the
        uniform.

        The result has the shape of ``kappa``.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> cosines, kappa = torch.tensor([[0.0, 0.5, 1.0]]), torch.tensor([[1.0]])
        >>> offsets = POWER_SPHERICAL.log_offset(kappa, 3)
        >>> POWER_SPHERICAL.log_densities_(cosines, kappa, offsets, 3, keep=False)[0].exp()  # 1+t
        tensor([[1.0000, 1.5000, 2.0000]])
        """
        return -self.log_partition(kappa, dim)

    def log_densities_(
        self, cosines: Tensor, kappa: Tensor, offsets: Tensor, dim: int, *, keep: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return unnormalised log-densities plus ``offsets``, (k, b), and with ``keep`` the tensors ``point_sums_``
        needs.

        Args:
            cosines: (k, b), may be overwritten.
            kappa, offsets: (k, 1).
            dim: the ambient dimension d.
            keep: whether ``point_sums_`` will be called.

        Overrides save passes over the matrix. In a few hundred dimensions one pass costs a tenth of the matrix product
        that computes ``cosines``.

        >>> from powerspherical.families import VON_MISES_FISHER
        >>> cosines, kappa = torch.tensor([[0.0, 0.5, 1.0]]), torch.tensor([[2.0]])
        >>> VON_MISES_FISHER.log_densities_(cosines, kappa, torch.zeros(1, 1), 3, keep=False)
        (tensor([[0., 1., 2.]]), ())
        """
        smallest = torch.finfo(cosines.dtype).eps
        ends = (1 - cosines).clamp_(min=smallest), (1 + cosines).clamp_(min=smallest)
        return self.log_kernel_from_peak(*ends, kappa, dim) + offsets, ends if keep else ()

    def point_sums_(self, kept: tuple[Tensor, ...], shares: Tensor, kappa: Tensor, dim: int) -> PointSums:
        """Return the sums over points that the M-step needs.

        Args:
            kept: the second result of ``log_densities_`` with ``keep=True``.
            shares: responsibilities, (k, b), may be overwritten.
            kappa: (k, 1).
            dim: the ambient dimension d.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> cosines, kappa, zeros = torch.tensor([[0.0, 0.5]]), torch.ones(1, 1), torch.zeros(1, 1)
        >>> _, kept = POWER_SPHERICAL.log_densities_(cosines, kappa, zeros, 3, keep=True)
        >>> sums = POWER_SPHERICAL.point_sums_(kept, torch.tensor([[1.0, 0.5]]), kappa, 3)
        >>> sums.total, sums.factor * sums.pulls  # 1/(1+t) times the responsibility
        (tensor([1.5000], dtype=torch.float64), tensor([[1.0000, 0.3333]]))
        """
        one_minus_t, one_plus_t = kept
        column = kappa.expand_as(one_minus_t)
        pull, bend = self.pull_and_bend(one_minus_t, one_plus_t, column, dim)
        score = self.score(one_minus_t, one_plus_t, column, dim)
        bends, scores = ((shares * x).sum(1).double() for x in (bend, score))
        return PointSums(shares.sum(1).double(), shares * pull, bends, scores)
