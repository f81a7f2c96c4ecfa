"""A module that turns features into distributions on the sphere."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import Tensor, nn

from powerspherical._torch.operators import is_ours
from powerspherical.distributions import ProductOfSpheres, RotationallySymmetric, validation
from powerspherical.distributions.rotational import distribution_of
from powerspherical.kernels.registry import Bounds, Settings
from powerspherical.nn._latents import packed, parameters
from powerspherical.nn._layout import Layout, outputs_hint

#: Settings that are read-only. The linear layer depends on most of them.
_READ_ONLY = {"in_features", "dim", "family", "distribution", "axis", "concentration", "nats", "product"}


class SphericalHead(nn.Module):
    r"""Maps features h to a distribution on the sphere, through a linear layer (v, r) = Wh + b:

    .. math:: \mu = \frac{v}{\lVert v \rVert}, \qquad
              \kappa = \kappa_{\min} + \frac{s}{1 + s / (\kappa_{\max} - \kappa_{\min})}, \quad
              s = \log(1 + e^r).

    κ lies in [``minimum``, ``maximum``] for any features. Far below ``maximum`` it is close to ``minimum`` +
    softplus(r). For large s its derivative in s decays as ((κ_max - κ_min)/s)², not exponentially. With the default
    ``maximum``, float32 draws still differ from μ. If v is zero (every |vᵢ| ≤ 1e-12), the direction is the first unit
    vector, with a finite gradient.

    Under autocast the distribution is computed in float32, or in float64 if the linear layer is float64.
    ``torch.compile(fullgraph=True)`` works.

    Args:
        in_features: number of features. None for a head without a linear layer: the features are (v, r) themselves,
            d + 1 numbers per sphere with r last, or v alone if κ is fixed.
        dim: ambient dimension d ≥ 2 of the sphere.
        family: name of a family, such as "von_mises_fisher", or a class such as ``powerspherical.VonMisesFisher``.
        axis: axis of the features: -1, or 1 for images of shape (B, C, H, W), which give the batch shape (B, H, W).
            The batch shape is the shape of the features without this axis.
        minimum: lower bound of κ, ≥ 0. At κ = 0 the distribution is uniform. Papers on the hyperspherical VAE use 1.
        maximum: upper bound of κ; ``math.inf`` for none, as in the common κ = softplus(r) + 1 with ``minimum=1.0``.
        initial: κ at zero features before training. Default: whatever the linear layer gives, about 0.7.
        concentration: fixed κ ≥ 0, instead of a κ that depends on the features.
        nats: fixed rate KL(q‖U) > 0 per sphere, instead of a κ that depends on the features.
        product: number m of spheres in a product. The distribution is then a ``ProductOfSpheres`` with event shape
            (m, d), and each factor has its own μ and κ. Default: one sphere, event shape (d,).
        validate_args: passed to the distribution. The parameters are valid unless the features are infinite or NaN.

    The settings are attributes. You can change ``minimum``, ``maximum`` and ``validate_args``, for example to anneal κ.
    The others are read-only. ``distribution`` is the class of the distribution.

    >>> head = SphericalHead(32, dim=16, initial=10.0)
    >>> q = head(torch.randn(8, 100, 32))
    >>> q.batch_shape, q.rsample().shape
    (torch.Size([8, 100]), torch.Size([8, 100, 16]))
    >>> head.minimum, head.maximum = 1.0, 1000.0
    >>> bool((head(1e9 * torch.randn(8, 32)).concentration <= 1000).all())
    True

    Images, channels first, and a product of four circles with three nats each:

    >>> SphericalHead(32, dim=16, axis=1)(torch.randn(8, 32, 4, 4)).batch_shape
    torch.Size([8, 4, 4])
    >>> head = SphericalHead(32, dim=2, family="von_mises_fisher", nats=3.0, product=4)
    >>> head(torch.randn(8, 32)).event_shape, round(head.fixed_rate, 4)
    (torch.Size([4, 2]), 12.0)
    """

    #: What ``_latents.latents`` needs. None if κ is fixed, or if the family is not one of this package's.
    packed_settings: str | None

    #: Whether the outputs (v, r) are the features. A subclass may change them.
    _returns_features: bool

    def __init__(
        self,
        in_features: int | None,
        dim: int,
        family: str | type[RotationallySymmetric] = "power_spherical",
        *,
        axis: int = -1,
        minimum: float = 0.0,
        maximum: float = 1e6,
        initial: float | None = None,
        concentration: float | None = None,
        nats: float | None = None,
        product: int | None = None,
        validate_args: bool | None = False,
    ) -> None:
        super().__init__()
        self.in_features, self.dim, self.axis = in_features, validation.dimension(dim), operator.index(axis)
        self.distribution = distribution_of(family)
        self.family = self.distribution.family
        if nats is not None and not 0 < nats < math.inf:
            raise ValueError(f"nats must be a finite rate > 0, got {nats}")
        if concentration is not None and not 0 <= concentration < math.inf:
            raise ValueError(f"concentration must be a finite κ ≥ 0, got {concentration}")
        given = {"concentration": concentration, "nats": nats, "initial": initial}
        told = [f"{name}={value}" for name, value in given.items() if value is not None]
        if len(told) > 1:
            raise ValueError(f"{told[0]} fixes κ, so {told[1]} has no meaning: leave one of them out")
        if initial is not None and in_features is None:
            raise ValueError(
                f"initial={initial} sets the bias of the head's linear layer, but with in_features=None it has none: "
                "set the bias of your own layer"
            )
        if product is not None and product < 1:
            raise ValueError(f"product is the number of spheres and must be ≥ 1, got {product}")
        if nats is not None:
            pole = torch.eye(1, self.dim, dtype=torch.float64, device="cpu")[0]
            concentration = self.distribution.from_kl(pole, nats).concentration.item()
        self.nats, self.product = nats, None if product is None else operator.index(product)
        self.concentration, self.validate_args = concentration, validate_args
        layout = self._layout = Layout(self.axis, self.product or 0)
        self._set_bounds(minimum, maximum)
        #: KL(q‖U) in nats, summed over the spheres of a product, if κ is fixed, else None.
        self.fixed_rate: float | None = None
        if concentration is not None:
            kappa = torch.tensor(concentration, dtype=torch.float64, device="cpu")
            self.fixed_rate = layout.spheres * self.family.relative_entropy(kappa, self.dim).item()
        self._per_sphere = self.dim + (concentration is None)  # number of outputs for each sphere
        outputs = layout.spheres * self._per_sphere
        self._entries = outputs if in_features is None else in_features
        self.linear: nn.Module = nn.Identity() if in_features is None else nn.Linear(in_features, outputs)
        if initial is not None:
            self._set_initial(initial)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _READ_ONLY and name in self.__dict__:
            raise AttributeError(f"{name} of a SphericalHead cannot be changed to {value!r}: make a new head")
        super().__setattr__(name, value)
        if name == "linear":  # an attribute, because torch.compile guards each step of a property
            self._returns_features = type(self) is SphericalHead and isinstance(value, nn.Identity)

    @property
    def minimum(self) -> float:
        """The lower bound of κ, which can be set."""
        return self._bounds.minimum

    @minimum.setter
    def minimum(self, value: float) -> None:
        self._set_bounds(value, self.maximum)

    @property
    def maximum(self) -> float:
        """The upper bound of κ, which can be set."""
        return self._bounds.maximum

    @maximum.setter
    def maximum(self, value: float) -> None:
        self._set_bounds(self.minimum, value)

    def _set_bounds(self, minimum: float, maximum: float) -> None:
        """Check and set the bounds of κ, and pack the settings once for all calls."""
        if not 0 <= minimum < maximum or math.isinf(minimum):
            found = f"got {minimum} and {maximum}"
            raise ValueError(f"the bounds of κ must satisfy 0 ≤ minimum < maximum, {found}")
        self._bounds = Bounds(float(minimum), float(maximum))
        self.packed_settings = None
        if self.concentration is None and is_ours(type(self.family)):
            self.packed_settings = packed(Settings(self.family.name, self.dim, self._bounds), self._layout)

    def _set_initial(self, initial: float) -> None:
        """Set the bias of each r to the one that gives κ = ``initial``."""
        minimum, maximum = self._bounds
        if not minimum < initial < maximum:
            raise ValueError(f"initial must lie between {minimum} and {maximum}, got {initial}")
        excess = initial - minimum
        softplus = excess / (1 - excess / (maximum - minimum))
        bias: Any = self.linear.bias
        with torch.no_grad():
            bias.view(-1, self._per_sphere)[:, -1] = softplus + math.log(-math.expm1(-softplus))

    def _joined(self, vectors: Tensor, raw: Tensor) -> Tensor:
        """(v, r) of each sphere along the last axis, for v and r in two tensors."""
        if self.in_features is not None or self.concentration is not None:
            raise ValueError(
                "raw is for heads with in_features=None and without a fixed κ, but this head has "
                f"in_features={self.in_features} and concentration={self.concentration}: leave raw out"
            )
        v = self._layout.per_sphere("features", vectors, self.dim)
        r = self._layout.per_sphere("raw", raw, 1)
        if v.shape[:-1] != r.shape[:-1]:
            raise ValueError(
                f"features and raw must agree except along axis {self.axis}, got the shapes {tuple(vectors.shape)} "
                f"and {tuple(raw.shape)}"
            )
        return torch.cat((v, r), -1)

    def forward(self, features: Tensor, raw: Tensor | None = None, *, outputs_only: bool = False) -> Any:
        """Return the distribution for features of shape (…, in_features). Its batch shape is (…).

        Args:
            features: ``in_features`` entries along ``axis``. Without a linear layer, the entries are (v, r).
            raw: r, for a head without a linear layer whose ``features`` are v alone. It has m entries along ``axis``,
                and v has m·d, such as (B, 1) and (B, d).
            outputs_only: if True, return (v, r) as one tensor of shape (…, d + 1), or (…, m, d + 1) for a product,
                instead of the distribution. With a fixed κ, return v.

        >>> v, r = torch.tensor([[0.0, 0.0, 2.0]]), torch.tensor([[50.0]])
        >>> q = SphericalHead(None, dim=3)(v, r)
        >>> q.loc, q.concentration
        (tensor([[0., 0., 1.]]), tensor([49.9975]))
        """
        if raw is not None:
            outputs = self._joined(features, raw)
        else:
            are_outputs = self.in_features is None and self.concentration is None
            hint = outputs_hint(self.dim) if are_outputs else ""
            entries = self._layout.axis_last("features", features, self._entries, hint)
            outputs = self._layout.split(self.linear(entries), self._per_sphere)
        return outputs if outputs_only else self.distribution_from_outputs(outputs)

    def distribution_from_outputs(self, outputs: Tensor) -> RotationallySymmetric | ProductOfSpheres:
        """Return the distribution for outputs (v, r), which ``forward`` returns if ``outputs_only`` is set.

        >>> SphericalHead(None, dim=3).distribution_from_outputs(torch.tensor([0.0, 0.0, 2.0, 50.0])).loc
        tensor([0., 0., 1.])
        """
        loc, kappa = parameters(outputs, self.dim, self._bounds)
        concentration: Any = self.concentration if kappa is None else kappa
        q = self.distribution(loc, concentration, validate_args=self.validate_args)
        return q if self.product is None else ProductOfSpheres(q, validate_args=False)

    def extra_repr(self) -> str:
        fixed = "concentration" if self.nats is None else "nats"
        names = ("minimum", "maximum", "product") if self.concentration is None else (fixed, "product")
        shown = "".join(
            f", {name}={getattr(self, name):g}" for name in names if getattr(self, name) is not None
        )
        return f"dim={self.dim}, family={self.family.name!r}, axis={self.axis}{shown}"
