"""Exponential tilts of the uniform distribution on the sphere.

Both families of this library have, relative to the uniform distribution on S^{d-1}, a density

    exp(κ T(t) - Ψ(κ)),    t = μᵀx,    Ψ(κ) = log E_U exp(κ T(t)),

and differ only in the statistic T, normalised here to T ≤ 0 with T = 0 at the mode t = 1. Everything follows
from Ψ: E T = Ψ', Var T = Ψ'', the relative entropy KL(p‖U) = κΨ' - Ψ, and

    log p(x) = -log(area) + KL + κ(T - E T),

whose terms are small where those of κT - Ψ would be large and cancel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Arc(NamedTuple):
    """Points at angles φ' = φ ± h from the mean direction, seen from φ; last axis: the points.

    Attributes:
        cosine_change: cos φ' - cos φ.
        one_plus_cosine: 1 + cos φ, of shape (…, 1).
        to_antipode: π - φ'.
    """

    cosine_change: Tensor
    one_plus_cosine: Tensor
    to_antipode: Tensor


class Tilt(ABC):
    """One family, as pure functions of the concentration ``kappa`` (a tensor) and ``dim`` (a static integer)."""

    #: Whether the density is not smooth at the antipode, as a power of the distance to it.
    kink_at_antipode: bool

    @staticmethod
    @abstractmethod
    def statistic(one_minus_t: Tensor, one_plus_t: Tensor) -> Tensor:
        """T, from 1-t and 1+t: each is accurate where it is small."""

    @staticmethod
    @abstractmethod
    def mean_statistic(kappa: Tensor, dim: int) -> Tensor:
        """E T ≤ 0; differentiable twice."""

    @staticmethod
    @abstractmethod
    def variance_statistic(kappa: Tensor, dim: int) -> Tensor:
        """Var T, the derivative of ``mean_statistic``."""

    @staticmethod
    @abstractmethod
    def relative_entropy(kappa: Tensor, dim: int) -> Tensor:
        """KL(p‖U) = κ E T - Ψ(κ); differentiable twice."""

    @staticmethod
    @abstractmethod
    def log_partition(kappa: Tensor, dim: int) -> Tensor:
        """log of E_U of the family's own unnormalised density, (1+t)^κ or e^{κt}."""

    @staticmethod
    @abstractmethod
    def mean_cosine(kappa: Tensor, dim: int) -> Tensor:
        """E t, the length of E x."""

    @staticmethod
    @abstractmethod
    def mean_cosine_complement(kappa: Tensor, dim: int) -> Tensor:
        """1 - E t, accurate where it is small."""

    @staticmethod
    @abstractmethod
    def variance_cosine(kappa: Tensor, dim: int) -> Tensor:
        """Var t."""

    @staticmethod
    @abstractmethod
    def concentration_from_mean_cosine(length: Tensor, complement: Tensor, dim: int) -> Tensor:
        """The inverse of ``mean_cosine``, given the length and 1 - length; differentiable in ``length``."""

    @staticmethod
    @abstractmethod
    def concentration_from_mean_statistic(mean: Tensor, dim: int) -> Tensor:
        """The inverse of ``mean_statistic`` for a ``mean`` < 0; 0 where it is not above that of the uniform.

        It is the maximum-likelihood estimate of κ where ``mean`` is the mean of T over the data.
        """

    @staticmethod
    @abstractmethod
    def pull_and_bend(one_minus_t: Tensor, one_plus_t: Tensor) -> tuple[Tensor, Tensor]:
        """dT/dt and -(1-t²) d²T/dt² ≥ 0: how a point pulls at the mean direction, and how that slackens."""

    @staticmethod
    @abstractmethod
    def concentration_guess(nats: Tensor, dim: int) -> Tensor:
        """A start for the solution κ of ``relative_entropy`` = nats."""

    @classmethod
    def below_mean(cls, one_minus_t: Tensor, deviation: Tensor, kappa: Tensor, dim: int) -> Tensor:
        """Whether t < E t, where T - E T = ``deviation``."""
        return one_minus_t > cls.mean_cosine_complement(kappa, dim)

    @staticmethod
    @abstractmethod
    def statistic_slope(sine: Tensor, half_tangent: Tensor) -> Tensor:
        """dT/dφ at the angle φ = acos t, from sin φ and tan(φ/2)."""

    @staticmethod
    @abstractmethod
    def statistic_curvature(kappa: Tensor) -> Tensor:
        """A lower bound of -κ d²T/dφ² that sets the width of the quadrature window."""

    @staticmethod
    @abstractmethod
    def statistic_change(arc: Arc) -> Tensor:
        """T(φ') - T(φ), without subtracting the two."""

    @staticmethod
    def widened_window(window: Tensor, t: Tensor, kappa: Tensor, exponent: float) -> Tensor:
        """The window towards the antipode, where the curvature bound may be too optimistic."""
        return window

    @staticmethod
    @abstractmethod
    def log_shrink(kappa: Tensor, lower: Tensor, gap: Tensor, dim: int) -> Tensor:
        """log e(lower)/e(lower + gap) of the generating function e, see ``overlap``."""

    def log_density(self, kappa: Tensor, statistic: Tensor, dim: int) -> Tensor:
        """log of the density relative to the uniform, KL + κ(T - E T); differentiable twice."""
        return _LogDensity.apply(kappa, statistic, self, dim)


class _LogDensity(torch.autograd.Function):
    """Spares the derivative in κ the cancellation of KL' = κ Var T against κ dE T/dκ: what is left is T - E T."""

    generate_vmap_rule = True

    @staticmethod
    def forward(kappa: Tensor, statistic: Tensor, tilt: Tilt, dim: int) -> Tensor:
        deviation = statistic - tilt.mean_statistic(kappa, dim)
        # κ = 0 is the uniform, also at the antipode, where T may be -inf and 0·T would be NaN.
        deviation = torch.where(kappa == 0, deviation.clamp(min=-1.0), deviation)
        return tilt.relative_entropy(kappa, dim) + kappa * deviation

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tilt, int], output: Tensor) -> None:
        kappa, statistic, ctx.tilt, ctx.dim = inputs
        ctx.save_for_backward(kappa, statistic)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        kappa, statistic = ctx.saved_tensors
        return grad * (statistic - ctx.tilt.mean_statistic(kappa, ctx.dim)), grad * kappa, None, None
