"""The distribution of the cosine t = μᵀx, for any family."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints

from powerspherical._torch.precision import back, with_float64
from powerspherical._torch.vectors import computing
from powerspherical.distributions import validation
from powerspherical.distributions.sampling import Draws
from powerspherical.families import POWER_SPHERICAL, SPHERICAL_CAUCHY, VON_MISES_FISHER, Family, derived
from powerspherical.quadrature.cosine import Cosine, value_of
from powerspherical.quadrature.expectations import expectation
from powerspherical.sampling import draw
from powerspherical.sampling.noise import cosine
from powerspherical.special.gamma import log_cosine_normalizer


class Marginal(Draws):
    """The law of t = μᵀx on [-1, 1] under a family on the unit sphere of R^dim.

    Its density is that of the family times the density c(1-t²)^{(d-3)/2} of one coordinate of a uniform point.

    Args:
        dim: the ambient dimension d ≥ 2.
        concentration: κ ≥ 0, a number or a tensor; its shape is the batch shape.
        validate_args: whether to check values. Default: torch's global setting. Without checks, ``log_prob`` is -inf
            and the cdf 0 or 1 outside [-1, 1], and the quantile of a probability outside [0, 1] is NaN.
        family: the family, unless a subclass names it.

    Arguments of the methods broadcast against the batch shape, and results have the broadcast shape and at least
    float32. Tail probabilities and quantiles are computed in float64 and are differentiable once in t (or the
    probability) and κ. For our families the relative error of a probability is at most 1e-8 in float64, in both tails,
    for d and κ up to 1e6 and probabilities down to 1e-30.

    >>> marginal = Marginal(3, torch.tensor(1.0), family=POWER_SPHERICAL)  # density (1+t)/2
    >>> marginal.log_prob(torch.tensor([0.0, 0.5])).exp()
    tensor([0.5000, 0.7500])
    >>> marginal.cdf(torch.tensor([-1.0, 0.0, 1.0])), marginal.icdf(torch.tensor(0.25))
    (tensor([0.0000, 0.2500, 1.0000]), tensor(0.))
    >>> marginal.log_cdf(torch.tensor(0.0)), marginal.log_sf(torch.tensor(0.0))
    (tensor(-1.3863), tensor(-0.2877))
    >>> marginal.mean, marginal.variance, marginal.entropy()
    (tensor(0.3333), tensor(0.2222), tensor(0.5000))
    >>> t = marginal.quantile(torch.tensor(0.36), torch.tensor(0.64))
    >>> t.value, marginal.tails(t)[0].exp()
    (tensor(0.2000, dtype=torch.float64), tensor(0.3600, dtype=torch.float64))
    >>> marginal.expand((4, 2)).sample().shape
    torch.Size([4, 2])
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {"concentration": constraints.nonnegative}
    support = constraints.interval(-1.0, 1.0)

    family: Family
    dim: int
    concentration: Tensor

    def __init__(
        self,
        dim: int,
        concentration: Tensor | float,
        validate_args: bool | None = None,
        *,
        family: Family | None = None,
    ) -> None:
        if family is not None:
            self.family = family
        if not isinstance(getattr(self, "family", None), Family):
            raise TypeError(
                "Marginal needs family=…, such as powerspherical.families.POWER_SPHERICAL, or a subclass such as "
                f"PowerSphericalMarginal; got {family!r}"
            )
        self.dim = validation.dimension(dim)
        self.concentration = validation.number_or_tensor("concentration", concentration)
        self._start(self.concentration.shape, torch.Size(), validate_args)
        if self._validate_args:
            validation.require([validation.non_negative("concentration", self.concentration)])

    def _broadcast(self, batch_shape: torch.Size) -> None:
        self.concentration = self.concentration.expand(batch_shape)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(dim: {self.dim}, concentration: {self.concentration})"

    @property
    def _exact_concentration(self) -> Tensor:
        return self.concentration.to(computing(self.concentration.dtype))

    @property
    def _doubles(self) -> Tensor:
        return with_float64(self.concentration).double()

    def _result_type(self, value: Tensor) -> torch.dtype:
        return computing(torch.promote_types(self.concentration.dtype, value.dtype))

    def _result(self, found: Tensor, value: Tensor) -> Tensor:
        """Return what was computed in float64 for ``value``, in the dtype and on the device of results."""
        return back(found.to(self._result_type(value)), self.concentration)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density at t = ``value``, of the broadcast shape; differentiable twice."""
        self._check(value, -1.0, 1.0)
        dtype = self._result_type(value)
        value, concentration = torch.broadcast_tensors(value.to(dtype), self.concentration.to(dtype))
        outside = value.abs() > 1
        value = value.clamp(-1, 1)
        minus, plus = 1 - value, 1 + value
        power = 0.5 * (self.dim - 3)
        # At t = -1 two infinite logarithms may cancel: the sum of their powers decides.
        bottom = plus == 0
        plus = torch.where(
            bottom, 16 * torch.finfo(dtype).tiny, plus
        )  # log1p of torch 2.6 overflows at 2 / tiny
        density = derived.log_density(self.family, Cosine(minus, plus), concentration, self.dim)
        density = density + log_cosine_normalizer(self.dim)
        if power:
            density = density + power * (torch.log(minus) + torch.log(plus))
        total = power + derived.antipode_power(self.family, concentration, self.dim)
        at_end = torch.where(outside, -torch.inf, -torch.inf * total.detach().sign())
        ends = (outside | (bottom & (total != 0))) & ~concentration.isnan()
        return torch.where(ends, at_end, density)

    def tails(self, t: Cosine) -> tuple[Tensor, Tensor]:
        """Return log P(T ≤ t) and log P(T > t) in float64, of the broadcast shape."""
        ends = (with_float64(end) for end in t)
        return derived.log_tails(self.family, Cosine(*ends), self._doubles, self.dim)

    def quantile(self, probability: Tensor, complement: Tensor) -> Cosine:
        """Return the t in float64 with P(T ≤ t) = ``probability`` = 1 - ``complement``, of the broadcast shape."""
        given = with_float64(probability), with_float64(complement)
        return derived.quantile(self.family, *given, self._doubles, self.dim)

    def log_cdf(self, value: Tensor) -> Tensor:
        """Return log P(T ≤ value), of the broadcast shape."""
        return self._log_tail(value, 0)

    def log_sf(self, value: Tensor) -> Tensor:
        """Return log P(T > value), of the broadcast shape."""
        return self._log_tail(value, 1)

    def cdf(self, value: Tensor) -> Tensor:
        """Return P(T ≤ value), of the broadcast shape."""
        return self._log_tail(value, 0).exp()

    def _log_tail(self, value: Tensor, side: int) -> Tensor:
        """Return log P(T ≤ value) for side 0, and log P(T > value) for side 1."""
        self._check(value, -1.0, 1.0)
        exact = with_float64(value).double()
        return self._result(self.tails(Cosine(1 - exact, 1 + exact))[side], value)

    def icdf(self, value: Tensor) -> Tensor:
        """Return the t with P(T ≤ t) = ``value``, of the broadcast shape."""
        self._check(value, 0.0, 1.0)
        exact = with_float64(value).double()
        return self._result(value_of(self.quantile(exact, 1 - exact)), value)

    def _draws(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        concentration = self._exact_concentration
        # On a circle through the mean direction, t is the first coordinate.
        pole = torch.nn.functional.pad(concentration.new_ones(1), (0, 1))
        points = draw(self.family, pole, concentration, shape, self.dim, generator)
        return points[..., 0].to(self.concentration.dtype)

    @property
    def _like(self) -> Tensor:  # type: ignore[override]
        return self.concentration

    def _points(self, noise: Tensor) -> Tensor:
        t = cosine(self.family, noise, self._exact_concentration, self.dim)
        return value_of(t).to(self.concentration.dtype)

    @property
    def mean(self) -> Tensor:
        """E t, of the batch shape."""
        return self.family.mean_cosine(self._exact_concentration, self.dim).to(self.concentration.dtype)

    @property
    def variance(self) -> Tensor:
        """Var t, of the batch shape."""
        return self.family.variance_cosine(self._exact_concentration, self.dim).to(self.concentration.dtype)

    def entropy(self) -> Tensor:
        """Return -E log p(t) = -KL - log c - (d-3)/2 · E log(1-t²), of the batch shape; differentiable twice."""
        concentration = self._doubles
        logs = expectation(self.family, concentration, self.dim, lambda t: t.minus.log() + t.plus.log())
        divergence = self.family.relative_entropy(concentration, self.dim)
        entropy = -divergence - log_cosine_normalizer(self.dim) - 0.5 * (self.dim - 3) * logs
        return self._result(entropy, self.concentration)

    def _check(self, value: Tensor, low: float, high: float) -> None:
        validation.floating_tensor("value", value)
        validation.broadcast_shape(**{"value.shape": value.shape, "batch_shape": self.batch_shape})
        if self._validate_args:
            validation.require([validation.between("value", value, low, high)])


class PowerSphericalMarginal(Marginal):
    """The law of t = μᵀx for x Power Spherical: T = 2Z-1 with Z ~ Beta(β+κ, β), β = (dim-1)/2.

    Arguments, with their shapes, are those of :class:`Marginal`.

    >>> t = PowerSphericalMarginal(3, torch.tensor(1.0, dtype=torch.float64))
    >>> t.cdf(torch.tensor(0.0, dtype=torch.float64))  # density (1+t)/2
    tensor(0.2500, dtype=torch.float64)
    """

    family = POWER_SPHERICAL


class VonMisesFisherMarginal(Marginal):
    """The law of t = μᵀx for x von Mises–Fisher: density ∝ e^{κt}(1-t²)^{(d-3)/2}.

    Arguments, with their shapes, are those of :class:`Marginal`.

    >>> t = VonMisesFisherMarginal(3, torch.tensor(2.0, dtype=torch.float64))
    >>> t.mean  # coth 2 - 1/2
    tensor(0.5373, dtype=torch.float64)
    """

    family = VON_MISES_FISHER


class SphericalCauchyMarginal(Marginal):
    """The law of t = μᵀx for x spherical Cauchy: a uniform point's cosine with artanh t shifted by log(1+κ).

    Arguments, with their shapes, are those of :class:`Marginal`.

    >>> t = SphericalCauchyMarginal(2, torch.tensor(2.0, dtype=torch.float64))
    >>> t.mean  # κ/(κ+2) on the circle
    tensor(0.5000, dtype=torch.float64)
    """

    family = SPHERICAL_CAUCHY
