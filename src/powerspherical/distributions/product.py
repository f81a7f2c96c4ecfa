"""Products of spheres: independent unit vectors as one event.

``ProductOfSpheres`` stacks factors of one family and dimension, which are then computed as one batch.
``ConcatenatedSpheres`` concatenates factors of any families and dimensions, which are computed one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import add
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.distributions import Independent, constraints, kl_divergence, register_kl
from torch.distributions.constraint_registry import transform_to
from torch.distributions.transforms import CatTransform

from powerspherical.distributions import validation
from powerspherical.distributions.constraints import NormalizeTransform, unit_vector
from powerspherical.distributions.rotational import RotationallySymmetric, distribution_named
from powerspherical.distributions.sampling import Draws, Reparameterised
from powerspherical.distributions.uniform import HypersphericalUniform

#: A distribution on one sphere.
Factor = RotationallySymmetric | HypersphericalUniform


def distribution_of(family: str | type[RotationallySymmetric]) -> type[RotationallySymmetric]:
    """Return the distribution class of a family, given by its name or as the class itself."""
    if isinstance(family, str):
        return distribution_named(family)
    if isinstance(family, type) and issubclass(family, RotationallySymmetric):
        return family
    raise ValueError(
        'family must be a name such as "power_spherical" or a class such as powerspherical.PowerSpherical, '
        f"got {family!r}"
    )


class ProductOfSpheres(Draws, Independent):
    """m independent unit vectors of one family and dimension d, as one event of shape (m, d).

    It is a ``torch.distributions.Independent`` over the last batch axis of ``factors``. All factors are computed at
    once. ``log_prob``, ``entropy`` and ``kl_divergence`` add the terms of the factors and are as accurate as those. In
    ``kl_divergence`` a product with m = 1 is compared with every factor of the other. For factors of different
    dimensions or families use ``ConcatenatedSpheres``.

    Args:
        factors: distribution with batch shape (…, m) and event shape (d,): a rotationally symmetric one such as
            ``PowerSpherical``, or ``HypersphericalUniform``. It is kept as ``base_dist``.
        validate_args: as for torch's ``Independent``. ``factors`` checks its own values.

    A product of two circles for each of three positions, and its rate, the divergence from the uniform:

    >>> import torch
    >>> from torch.distributions import kl_divergence
    >>> from powerspherical import HypersphericalUniform, PowerSpherical
    >>> loc = torch.tensor([1.0, 0.0]).expand(3, 2, 2)
    >>> q = ProductOfSpheres(PowerSpherical(loc, torch.tensor([1.0, 10.0])))
    >>> q.dim, q.batch_shape, q.event_shape, q.rsample((5,)).shape
    (2, torch.Size([3]), torch.Size([2, 2]), torch.Size([5, 3, 2, 2]))
    >>> uniform = ProductOfSpheres(HypersphericalUniform(2).expand((2,)))
    >>> kl_divergence(q, uniform)
    tensor([1.5555, 1.5555, 1.5555])
    >>> uniform.expand((4,)).entropy()  # 2 log 2π
    tensor([3.6758, 3.6758, 3.6758, 3.6758])
    >>> uniform.log_prob(torch.eye(2))
    tensor(-3.6758)
    """

    base_dist: Factor

    def __init__(self, factors: Factor, validate_args: bool | None = None) -> None:
        if not isinstance(factors, Factor):
            raise ValueError(
                "factors must be one distribution on the sphere, such as PowerSpherical, with a batch axis for the "
                f"factors, got {factors!r}; for a list of distributions use ConcatenatedSpheres"
            )
        if not factors.batch_shape:
            raise ValueError(
                "factors must have the batch shape (…, m) for a product of m spheres, got (); use factors.expand((m,))"
            )
        super().__init__(factors, 1, validate_args)

    @property
    def dim(self) -> int:
        """The ambient dimension d of each sphere."""
        return self.base_dist.dim

    @classmethod
    def fit(
        cls,
        x: Tensor,
        weights: Tensor | None = None,
        *,
        family: str | type[RotationallySymmetric] = "power_spherical",
        **options: Any,
    ) -> Self:
        """Return the maximum-likelihood product for points of shape (n, *batch, m, d).

        The likelihood is a product over factors, so each factor is fitted on its own.

        Args:
            x: unit vectors, the shape of ``sample((n,))``.
            weights: numbers ≥ 0 of shape (n, *batch), one per point of the product. Default: equal weights.
            family: name or distribution class of the factors' family.
            options: ``bias_correction`` and ``max_iter`` of ``RotationallySymmetric.fit``, which states the accuracy.

        >>> import torch
        >>> from powerspherical import PowerSpherical
        >>> _ = torch.manual_seed(0)
        >>> truth = PowerSpherical(torch.eye(4)[:2], torch.tensor([3.0, 30.0]))
        >>> found = ProductOfSpheres.fit(ProductOfSpheres(truth).sample((20_000,)))
        >>> (found.base_dist.concentration / truth.concentration).round(decimals=1)
        tensor([1., 1.])
        """
        distribution = distribution_of(family)
        validation.vectors("x", x)
        if x.dim() < 3:
            raise ValueError(f"x must have the shape (n, …, m, d), got {tuple(x.shape)}")
        if weights is not None:
            weights = _checked_weights(weights, x.shape[:-2]).unsqueeze(-1).expand(x.shape[:-1])
        return cls(distribution.fit(x, weights, **options), validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Self:
        """Return this distribution with the batch shape ``batch_shape``, to which its own must expand. No memory is
        copied.
        """
        return super().expand(batch_shape, self._get_checked_instance(ProductOfSpheres, _instance))

    @property
    def _like(self) -> Tensor:  # type: ignore[override]
        return self.base_dist._like

    def _draws(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        return self.base_dist._draws(shape + self.event_shape[:1], generator)

    def _points(self, noise: Tensor) -> Tensor:
        return self.base_dist._points(noise)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density at ``value`` of shape (…, m, d), the sum over the factors.

        The result has the shape (…), broadcast against the batch shape.
        """
        validation.floating_tensor("value", value)
        # A value of shape (d,) or (1, d) would broadcast to all factors.
        if value.shape[-2:] != self.event_shape:
            expected = ", ".join(map(str, self.event_shape))
            raise ValueError(f"value must have the shape (…, {expected}), got {tuple(value.shape)}")
        return self.base_dist.log_prob(value).sum(-1)

    def entropy(self) -> Tensor:
        """Return the sum of the factors' entropies, of the batch shape."""
        return self.base_dist.entropy().sum(-1)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_dist})"


class ConcatenatedUnitVectors(constraints.Constraint):
    """Vectors of length Σd that consist of unit vectors of lengths ``dims``, each to within 1 %.

    >>> import torch
    >>> from torch.distributions import transform_to
    >>> transform_to(ConcatenatedUnitVectors((2, 2)))(torch.tensor([3.0, 4.0, 0.0, 2.0]))
    tensor([0.6000, 0.8000, 0.0000, 1.0000])
    """

    event_dim = 1

    def __init__(self, dims: Sequence[int]) -> None:
        self.dims = tuple(dims)

    def __repr__(self) -> str:
        return f"concatenated_unit_vectors{self.dims}"

    def check(self, value: Tensor) -> Tensor:
        """Return whether each part of ``value`` (…, Σd) is a unit vector to within 1 %, of shape (…).

        >>> import torch
        >>> ConcatenatedUnitVectors((2, 2)).check(torch.tensor([0.6, 0.8, 0.0, 1.0]))
        tensor(True)
        """
        return torch.stack([unit_vector.check(part) for part in value.split(self.dims, -1)]).all(0)


@transform_to.register(ConcatenatedUnitVectors)
def _to_concatenated_unit_vectors(constraint: ConcatenatedUnitVectors) -> CatTransform:
    return CatTransform([NormalizeTransform() for _ in constraint.dims], -1, constraint.dims)


class ConcatenatedSpheres(Reparameterised):
    """Independent unit vectors of any families and dimensions, concatenated to one event of length Σd.

    ``log_prob``, ``entropy`` and ``kl_divergence`` add the terms of the factors and are as accurate as those. If all
    factors have the same family and dimension, ``ProductOfSpheres`` is faster.

    Args:
        factors: distributions on one sphere each, such as ``PowerSpherical`` or ``HypersphericalUniform``. Their batch
            shapes are broadcast.
        validate_args: whether to check values, in addition to the checks of the factors. Default: torch's setting.

    A circle and a sphere:

    >>> import torch
    >>> from torch.distributions import kl_divergence
    >>> from powerspherical import HypersphericalUniform, PowerSpherical, VonMisesFisher
    >>> circle = PowerSpherical(torch.eye(2)[0], 10.0)
    >>> sphere = VonMisesFisher(torch.eye(3)[0], torch.tensor([1.0, 5.0]))
    >>> q = ConcatenatedSpheres([circle, sphere])
    >>> q.batch_shape, q.event_shape, q.rsample((4,)).shape
    (torch.Size([2]), torch.Size([5]), torch.Size([4, 2, 5]))
    >>> q.dims, q.support, q.expand((3, 2)).batch_shape
    ((2, 3), concatenated_unit_vectors(2, 3), torch.Size([3, 2]))
    >>> uniform = ConcatenatedSpheres([HypersphericalUniform(2), HypersphericalUniform(3)])
    >>> kl_divergence(q, uniform)
    tensor([1.4002, 2.5517])
    >>> uniform.entropy(), uniform.log_prob(torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0]))  # log 2π + log 4π
    (tensor(4.3689), tensor(-4.3689))
    >>> uniform.mean, uniform.mode
    (tensor([0., 0., 0., 0., 0.]), tensor([nan, nan, nan, nan, nan]))
    >>> uniform.variance
    tensor([0.5000, 0.5000, 0.3333, 0.3333, 0.3333])
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    def __init__(self, factors: Iterable[Factor], validate_args: bool | None = None) -> None:
        factors = (factors,) if isinstance(factors, Factor) else tuple(factors)
        if not factors or not all(isinstance(factor, Factor) for factor in factors):
            raise ValueError(
                "factors must be at least one distribution on the sphere, such as PowerSpherical or "
                f"HypersphericalUniform, got {factors!r}"
            )
        batch_shape = validation.broadcast_shape(
            **{f"factors[{i}].batch_shape": factor.batch_shape for i, factor in enumerate(factors)}
        )
        self.factors: tuple[Factor, ...] = tuple(
            factor if factor.batch_shape == batch_shape else factor.expand(batch_shape) for factor in factors
        )
        super().__init__(batch_shape, torch.Size((sum(self.dims),)), validate_args)

    @property
    def dims(self) -> tuple[int, ...]:
        """The ambient dimension of each factor."""
        return tuple(factor.dim for factor in self.factors)

    @constraints.dependent_property(is_discrete=False, event_dim=1)
    def support(self) -> ConcatenatedUnitVectors:
        """The constraint that each part of an event (…, Σd) is a unit vector."""
        return ConcatenatedUnitVectors(self.dims)

    @classmethod
    def fit(
        cls,
        x: Tensor,
        dims: Sequence[int],
        weights: Tensor | None = None,
        *,
        family: str
        | type[RotationallySymmetric]
        | Sequence[str | type[RotationallySymmetric]] = "power_spherical",
        **options: Any,
    ) -> Self:
        """Return the maximum-likelihood product for points of shape (n, *batch, Σd).

        The likelihood is a product over factors, so each factor is fitted on its own.

        Args:
            x: concatenated unit vectors, the shape of ``sample((n,))``.
            dims: ambient dimension of each factor; Σd is their sum.
            weights: numbers ≥ 0 of shape (n, *batch). Default: equal weights.
            family: name or distribution class of the family, or one for each factor.
            options: ``bias_correction`` and ``max_iter`` of ``RotationallySymmetric.fit``, which states the accuracy.

        >>> import torch
        >>> from powerspherical import PowerSpherical, VonMisesFisher
        >>> _ = torch.manual_seed(0)
        >>> truth = [PowerSpherical(torch.eye(2)[0], 9.0), VonMisesFisher(torch.eye(3)[0], 5.0)]
        >>> x = ConcatenatedSpheres(truth).sample((20_000,))
        >>> found = ConcatenatedSpheres.fit(x, (2, 3), family=("power_spherical", "von_mises_fisher"))
        >>> [round(factor.concentration.item()) for factor in found.factors]
        [9, 5]
        """
        dims = tuple(validation.dimension(dim) for dim in dims)
        families = (family,) * len(dims) if isinstance(family, (str, type)) else tuple(family)
        if len(families) != len(dims):
            raise ValueError(f"family must name one family, or one for each of dims={dims}, got {family!r}")
        distributions = [distribution_of(each) for each in families]
        _checked_event("x", x, dims)
        if weights is not None:
            _checked_weights(weights, x.shape[:-1])
        parts = zip(distributions, x.split(dims, -1), strict=True)
        return cls((each.fit(part, weights, **options) for each, part in parts), validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Self:
        """Return this distribution with the batch shape ``batch_shape``, to which its own must expand. No memory is
        copied.
        """
        new = self._get_checked_instance(ConcatenatedSpheres, _instance)
        batch_shape = torch.Size(batch_shape)
        new.factors = tuple(factor.expand(batch_shape) for factor in self.factors)
        super(ConcatenatedSpheres, new).__init__(batch_shape, self.event_shape, self._validate_args)
        return new

    def _parts(self, event: Tensor) -> Iterable[tuple[Factor, Tensor]]:
        """Pair each factor with its part of an event (…, Σd)."""
        return zip(self.factors, event.split(self.dims, -1), strict=True)

    def _draws(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        sample_shape = shape[: len(shape) - len(self.batch_shape)]
        return torch.cat([factor.rsample(sample_shape, generator=generator) for factor in self.factors], -1)

    @property
    def _like(self) -> Tensor:  # type: ignore[override]
        tensors = [factor._like for factor in self.factors]
        dtype = reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
        return tensors[0].new_empty(0, dtype=dtype)

    def _points(self, noise: Tensor) -> Tensor:
        return torch.cat([factor.rsample(noise=part) for factor, part in self._parts(noise)], -1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density at ``value`` of shape (…, Σd), the sum over the factors.

        The result has the shape (…), broadcast against the batch shape.
        """
        _checked_event("value", value, self.dims)
        return _total(factor.log_prob(part) for factor, part in self._parts(value))

    def entropy(self) -> Tensor:
        """Return the sum of the factors' entropies, of the batch shape."""
        return _total(factor.entropy() for factor in self.factors)

    @property
    def mean(self) -> Tensor:
        """The concatenated means of the factors, of shape batch_shape + (Σd,)."""
        return torch.cat([factor.mean for factor in self.factors], -1)

    @property
    def mode(self) -> Tensor:
        """The concatenated modes of the factors, of shape batch_shape + (Σd,). That of a uniform factor is NaN."""
        return torch.cat([factor.mode for factor in self.factors], -1)

    @property
    def variance(self) -> Tensor:
        """The variance of each coordinate, of shape batch_shape + (Σd,)."""
        return torch.cat([factor.variance for factor in self.factors], -1)

    def __repr__(self) -> str:
        return f"{type(self).__name__}([{', '.join(map(repr, self.factors))}])"


# ``ProductOfSpheres`` uses torch's divergence of ``Independent``. If we registered another, torch would have to choose
# between the two, and the compiler cannot trace that.
@register_kl(ConcatenatedSpheres, ConcatenatedSpheres)
def _kl_concatenated(p: ConcatenatedSpheres, q: ConcatenatedSpheres) -> Tensor:
    if p.dims != q.dims:
        raise ValueError(
            f"kl_divergence needs two products of the same spheres, got the dimensions {p.dims} and {q.dims}"
        )
    return _total(kl_divergence(*factors) for factors in zip(p.factors, q.factors, strict=True))


def _total(terms: Iterable[Tensor]) -> Tensor:
    return reduce(add, terms)


def _checked_event(name: str, value: Tensor, dims: tuple[int, ...]) -> None:
    validation.floating_tensor(name, value)
    if value.dim() < 1 or value.shape[-1] != sum(dims):
        raise ValueError(
            f"{name} must have the shape (…, {sum(dims)}) for spheres of dimensions {dims}, got {tuple(value.shape)}"
        )


def _checked_weights(weights: Tensor, shape: torch.Size) -> Tensor:
    validation.floating_tensor("weights", weights)
    if weights.shape != shape:
        raise ValueError(
            f"weights must have the shape {tuple(shape)}, one per point of the product, got {tuple(weights.shape)}"
        )
    return weights
