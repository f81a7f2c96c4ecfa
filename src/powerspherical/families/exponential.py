"""Exponential families on the sphere: density exp(κT(t) - Ψ(κ)) relative to the uniform distribution.

The statistic T is normalised to T ≤ 0 with T = 0 at the mode t = 1. With Ψ(κ) = log E_U exp(κT),

    E T = Ψ',    Var T = Ψ'',    KL(p‖U) = κΨ' - Ψ,    log p(x) = -log(area) + KL + κ(T - E T).

We evaluate the last expression instead of κT - Ψ, whose terms are large and cancel.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from powerspherical._torch.derivatives import value_and_slope, with_derivatives
from powerspherical._torch.modes import is_plain, is_plain_backward
from powerspherical.families import _quadrature as quadrature
from powerspherical.families._solve import increasing_inverse
from powerspherical.families.base import Family
from powerspherical.special.quadrature import gauss_legendre

_BREGMAN_NODES = 12


class ExponentialFamily(Family):
    """A family with the unnormalised density exp(κ(T + peak)).

    A subclass must define ``statistic``. It should override the methods that have closed forms, first of all
    ``log_partition``.

    The von Mises–Fisher family from its statistic alone:

    >>> class Exponential(ExponentialFamily):
    ...     name = title = "exponential"
    ...
    ...     def statistic(self, one_minus_t, one_plus_t):
    ...         return -one_minus_t
    >>> Exponential().mean_statistic(torch.tensor([0.0, 1.0]), 3)  # E t - 1
    tensor([-1.0000, -0.6870])
    """

    #: The log of the customary unnormalised density at the mode, over κ: log 2 for (1+t)^κ, 1 for e^{κt}.
    peak: ClassVar[float] = 0.0

    @abstractmethod
    def statistic(self, one_minus_t: Tensor, one_plus_t: Tensor) -> Tensor:
        """Return T as a function of 1-t and 1+t, which have one shape; elementwise and differentiable.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> t = torch.tensor([-1.0, 0.0, 1.0])
        >>> POWER_SPHERICAL.statistic(1 - t, 1 + t)  # log((1+t)/2)
        tensor([   -inf, -0.6931, -0.0000])
        """

    def log_kernel(self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
        return self.log_kernel_from_peak(one_minus_t, one_plus_t, kappa, dim) + kappa * self.peak

    def log_kernel_from_peak(
        self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int
    ) -> Tensor:
        return kappa * _finite_at_zero(self.statistic(one_minus_t, one_plus_t), kappa)

    def log_partition(self, kappa: Tensor, dim: int) -> Tensor:
        return super().log_partition(kappa, dim) + kappa * self.peak

    def mean_statistic(self, kappa: Tensor, dim: int) -> Tensor:
        """Return E T ≤ 0.

        The result has the shape of ``kappa``.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> POWER_SPHERICAL.mean_statistic(torch.tensor([0.0, 1.0]), 3)
        tensor([-1.0000, -0.5000])
        """
        return value_and_slope(lambda k: self.log_partition(k, dim), kappa)[1] - self.peak

    def variance_statistic(self, kappa: Tensor, dim: int) -> Tensor:
        """Return Var T, the derivative of ``mean_statistic``.

        The result has the shape of ``kappa``.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> POWER_SPHERICAL.variance_statistic(torch.tensor([0.0, 1.0]), 3)
        tensor([1.0000, 0.2500])
        """
        return value_and_slope(lambda k: self.mean_statistic(k, dim), kappa)[1]

    def relative_entropy(self, kappa: Tensor, dim: int) -> Tensor:
        return kappa * (self.mean_statistic(kappa, dim) + self.peak) - self.log_partition(kappa, dim)

    def offset_and_mean_statistic(self, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """Return -Ψ and Ψ' = E T, where the density relative to the uniform is exp(κT - Ψ).

        A family may compute the two together. Both have the shape of ``kappa``. Their derivatives are not used.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> POWER_SPHERICAL.offset_and_mean_statistic(torch.tensor(1.0), 3)  # ((1+t)/2)·2
        (tensor(0.6931), tensor(-0.5000))
        """
        mean = self.mean_statistic(kappa, dim)
        return self.relative_entropy(kappa, dim) - kappa * mean, mean

    def log_density(self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
        statistic = self.statistic(one_minus_t, one_plus_t)
        if torch.is_grad_enabled() and is_plain(kappa, statistic):
            return _EagerLogDensity.apply(kappa, statistic, self, dim)
        return _log_density(kappa, statistic, self, dim)

    def score(self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
        return self.statistic(one_minus_t, one_plus_t)

    def fitted_concentration(self, mean_score: Tensor, kappa: Tensor, dim: int) -> Tensor:
        return self.concentration_from_mean_statistic(mean_score, dim)

    def concentration_from_mean_statistic(self, mean: Tensor, dim: int) -> Tensor:
        """Return the κ with E T = ``mean`` < 0, or 0 if ``mean`` is at most that of the uniform distribution.

        The result has the shape of ``mean``. If ``mean`` is the mean of T over data, it is the maximum-likelihood
        estimate of κ.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> POWER_SPHERICAL.concentration_from_mean_statistic(torch.tensor([-2.0, -0.4]), 3)
        tensor([0.0000, 1.5000])
        """

        def over_uniform(mean: Tensor) -> Tensor:
            return mean - self.mean_statistic(torch.zeros_like(mean), dim)

        def log_odds(mean: Tensor) -> Tensor:
            return torch.log(over_uniform(mean).clamp(min=0.0) / -mean)

        return increasing_inverse(
            over_uniform(mean).clamp(min=0.0),
            log_odds(mean.detach()),
            lambda kappa: over_uniform(self.mean_statistic(kappa, dim)),
            lambda kappa: log_odds(self.mean_statistic(kappa, dim)),
        )

    def log_offset(self, kappa: Tensor, dim: int) -> Tensor:
        return self.offset_and_mean_statistic(kappa, dim)[0]

    def divergence_from(
        self, p: Family, kappa_p: Tensor, kappa: Tensor, haversine: Tensor, dim: int, *, single: bool = False
    ) -> Tensor:
        """Return KL(p‖self) = KL(p‖U) + Ψ - κ E_p T(νᵀX).

        Arguments and shapes are those of ``Family.divergence_from``. -E_p T(νᵀX) is ``mean_loss`` +
        ``mean_misalignment``. Within the family this is the Bregman divergence of Ψ plus κ times the misalignment.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> kappa_p, kappa, haversine = torch.tensor([[1.0], [0.0], [0.5]], dtype=torch.float64)
        >>> POWER_SPHERICAL.divergence_from(POWER_SPHERICAL, kappa_p, kappa, haversine, 3)  # from the uniform
        tensor([0.1931], dtype=torch.float64)
        """
        misaligned = self.mean_misalignment(p, kappa_p, haversine, dim, single=single)
        if p is self:
            return bregman(kappa_p, kappa, self, dim) + kappa * misaligned
        loss = self.mean_loss(p, kappa_p, dim, single=single) + misaligned
        # Ψ ≤ 0 as a sum of two terms of the same sign
        log_partition = kappa * self.mean_statistic(kappa, dim) - self.relative_entropy(kappa, dim)
        return p.relative_entropy(kappa_p, dim) + log_partition + kappa * loss

    def divergence_from_uniform(self, kappa: Tensor, dim: int) -> Tensor:
        # The uniform is the member κ = 0, with any direction.
        return bregman(torch.zeros_like(kappa), kappa, self, dim)

    def mean_loss(self, p: Family, kappa_p: Tensor, dim: int, *, single: bool = False) -> Tensor:
        """Return -E_p T(μᵀX) ≥ 0, where X has mean direction μ and is from the member κ_p of the family ``p``.

        The result has the shape of ``kappa_p``. With ``single``, float32 accuracy is enough.

        >>> from powerspherical.families import POWER_SPHERICAL, VON_MISES_FISHER
        >>> VON_MISES_FISHER.mean_loss(POWER_SPHERICAL, torch.tensor([0.0, 2.0]), 3)  # 1 - E t
        tensor([1.0000, 0.5000])
        """
        return quadrature.expectation(p, kappa_p, dim, lambda minus, plus: -self.statistic(minus, plus))

    def mean_misalignment(
        self, p: Family, kappa_p: Tensor, haversine: Tensor, dim: int, *, single: bool = False
    ) -> Tensor:
        """Return E_p T(μᵀX) - E_p T(νᵀX) ≥ 0, where (1-μᵀν)/2 = ``haversine``.

        ``kappa_p`` and ``haversine`` have one shape, which the result has, too. With ``single``, float32 accuracy is
        enough.

        >>> from powerspherical.families import POWER_SPHERICAL, VON_MISES_FISHER
        >>> kappa_p, haversine = torch.tensor([[2.0, 2.0], [0.0, 0.25]])
        >>> VON_MISES_FISHER.mean_misalignment(POWER_SPHERICAL, kappa_p, haversine, 3)  # 2 haversine · E t
        tensor([0.0000, 0.2500])
        """

        def difference(minus: Tensor, plus: Tensor, other_minus: Tensor, other_plus: Tensor) -> Tensor:
            return self.statistic(minus, plus) - self.statistic(other_minus, other_plus)

        return quadrature.expectation_in_two_cosines(p, kappa_p, haversine, dim, difference)


@with_derivatives(
    # In the derivative, KL' = κ Var T and -κ dE T/dκ cancel exactly, which leaves T - E T.
    lambda kappa, statistic, family, dim: statistic - family.mean_statistic(kappa, dim),
    lambda kappa, statistic, family, dim: kappa,
)
def _log_density(kappa: Tensor, statistic: Tensor, family: ExponentialFamily, dim: int) -> Tensor:
    """κT - Ψ; differentiable twice."""
    offset, _ = family.offset_and_mean_statistic(kappa, dim)
    return offset + kappa * _finite_at_zero(statistic, kappa)


class _EagerLogDensity(torch.autograd.Function):
    """``_log_density`` in plain eager mode. It keeps T - E T for the backward pass, where E T is expensive."""

    @staticmethod
    def forward(ctx: Any, kappa: Tensor, statistic: Tensor, family: ExponentialFamily, dim: int) -> Tensor:
        offset, mean = family.offset_and_mean_statistic(kappa, dim)
        ctx.family, ctx.dim = family, dim
        ctx.save_for_backward(kappa, statistic, statistic - mean if ctx.needs_input_grad[0] else None)
        return offset + kappa * _finite_at_zero(statistic, kappa)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        kappa, statistic, deviation = ctx.saved_tensors
        in_kappa = in_statistic = None
        if ctx.needs_input_grad[0]:
            # The gradient itself may be differentiated or transformed.
            if not is_plain_backward(grad):
                deviation = statistic - ctx.family.mean_statistic(kappa, ctx.dim)
            in_kappa = (grad * deviation).sum_to_size(kappa.shape)
        if ctx.needs_input_grad[1]:
            in_statistic = (grad * kappa).sum_to_size(statistic.shape)
        return in_kappa, in_statistic, None, None


def _finite_at_zero(statistic: Tensor, kappa: Tensor) -> Tensor:
    """Make T finite where κ = 0: at the antipode T may be -inf, and 0·T would be NaN."""
    smallest = torch.finfo(statistic.dtype).min
    return torch.where(kappa == 0, statistic.clamp(min=smallest), statistic)


@with_derivatives(
    lambda kappa_p, kappa, family, dim: (kappa_p - kappa) * family.variance_statistic(kappa_p, dim),
    lambda kappa_p, kappa, family, dim: (
        family.mean_statistic(kappa, dim) - family.mean_statistic(kappa_p, dim)
    ),
)
def bregman(kappa_p: Tensor, kappa: Tensor, family: ExponentialFamily, dim: int) -> Tensor:
    """Return Ψ(κ) - Ψ(κ_p) - (κ-κ_p)Ψ'(κ_p), the divergence between two members with equal directions."""
    change = kappa - kappa_p
    # If κ and κ_p are close, the difference cancels, and we use Δ²∫₀¹(1-s)Ψ''(κ_p+sΔ)ds instead.
    near = change.abs() < 0.7 * (torch.minimum(kappa_p, kappa) + (dim - 1) / 2)
    nodes, weights = gauss_legendre(_BREGMAN_NODES, kappa_p)
    path = kappa_p.unsqueeze(-1) + torch.where(near, change, 0.0).unsqueeze(-1) * nodes
    curvature = (weights * (1 - nodes) * family.variance_statistic(path, dim)).sum(-1)
    means = family.mean_statistic(kappa, dim) - family.mean_statistic(kappa_p, dim)
    entropies = family.relative_entropy(kappa_p, dim) - family.relative_entropy(kappa, dim)
    return torch.where(near, change * change * curvature, entropies + kappa * means)
