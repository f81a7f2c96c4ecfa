"""The base class of distributions on the sphere that depend on x only through t = μᵀx.

Such a distribution is a law of t, a ``Family``, and a uniform direction in the tangent space at μ (De Cao & Aziz 2020,
theorem 1; the direction lies on S^{d-2}, where the paper prints S^{d-1}). Everything else follows from the family here.
"""

from __future__ import annotations

import copyreg
import inspect
import math
import operator
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.distributions import Distribution, constraints
from typing_extensions import Self

from powerspherical._torch.precision import back, with_float64
from powerspherical._torch.private import look_up_divergences, untraced, validates_by_default
from powerspherical._torch.vectors import computing, cosine_between, unit_vectors_as
from powerspherical.distributions import validation
from powerspherical.distributions.constraints import unit_vector
from powerspherical.distributions.fit import maximum_likelihood
from powerspherical.distributions.marginal import Marginal
from powerspherical.distributions.matrix import log_density_matrix, offset_table
from powerspherical.distributions.sampling import Draws
from powerspherical.distributions.uniform import HypersphericalUniform
from powerspherical.families import Family, derived, family_named, register_family
from powerspherical.kernels import differentiable
from powerspherical.kernels.registry import DensityOptions
from powerspherical.quadrature.cosine import Cosine
from powerspherical.sampling import draw
from powerspherical.sampling import noise as explicit
from powerspherical.special.gamma import log_sphere_area

#: The distribution class of each family, by the family's name.
_DISTRIBUTIONS: dict[str, type[RotationallySymmetric]] = {}


def distribution_named(name: str) -> type[RotationallySymmetric]:
    """Return the distribution class of the family registered under this name, and make one if there is none.

    >>> distribution_named("power_spherical").__name__
    'PowerSpherical'
    """
    family = family_named(name)  # raises if there is no such family
    if name not in _DISTRIBUTIONS:
        title = "".join(map(str.capitalize, name.split("_")))
        _Made(title, (RotationallySymmetric,), {"family": family, "__module__": __name__})
    return _DISTRIBUTIONS[name]


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


class _Made(type):
    """The type of classes that ``distribution_named`` makes. They are in no module, so ``pickle`` keeps the family."""


def _restored(family: Family) -> type[RotationallySymmetric]:
    """Return the distribution class of a family. In a new process this registers the family."""
    return distribution_named(register_family(family).name)


def _described(made: Any) -> tuple[Any, ...]:
    return _restored, (made.family,)


copyreg.pickle(_Made, _described)


@untraced
def _look_up_divergences(cls: type[RotationallySymmetric]) -> None:
    """Prepare ``kl_divergence`` for the compiler: between all classes, because a table that grows is not valid."""
    look_up_divergences({cls, HypersphericalUniform, *_DISTRIBUTIONS.values()})


#: The default of an argument that has none. Signatures do not show it.
_REQUIRED: Any = inspect.Parameter.empty


def _wrong_call(name: str, unknown: dict[str, Any]) -> TypeError:
    """Return the error for a call without a concentration, or with ``unknown`` keyword arguments."""
    given = f", got {', '.join(unknown)}" if unknown else ""
    if "scale" in unknown:
        given += ": use concentration, or a class of powerspherical.compat, which takes scale"
    return TypeError(f"{name} takes loc, concentration and validate_args{given}")


def _no_order(name: str, angles: str) -> NotImplementedError:
    return NotImplementedError(
        f"points on a sphere have no order, so there is no {name}: use q.marginal.{name} for the cosine with loc, or "
        f"q.{angles} for the angle"
    )


class RotationallySymmetric(Draws):
    """A distribution on the unit sphere of R^d with a mean direction ``loc`` and a ``concentration``.

    A subclass only names its ``family``, which registers it. Arguments are those of ``PowerSpherical``. The attributes
    ``loc`` and ``concentration`` have the batch shape, and ``dim`` is d.

    >>> from powerspherical.families import POWER_SPHERICAL
    >>> class Mine(RotationallySymmetric):
    ...     family = POWER_SPHERICAL
    >>> p = Mine(torch.eye(3)[0], torch.tensor([1.0, 10.0]))
    >>> p.dim, p.batch_shape, p.event_shape, p.expand((4, 2)).sample().shape
    (3, torch.Size([2]), torch.Size([3]), torch.Size([4, 2, 3]))
    >>> p.mean  # κ/(κ+2) along loc
    tensor([[0.3333, 0.0000, 0.0000],
            [0.8333, 0.0000, 0.0000]])
    >>> p.marginal.mean, p.mode.shape, p.mean_direction.shape
    (tensor([0.3333, 0.8333]), torch.Size([2, 3]), torch.Size([2, 3]))
    >>> p.marginal.cdf(torch.tensor(0.0)), p.marginal.icdf(torch.tensor(0.25))
    (tensor([0.2500, 0.0005]), tensor([0.0000, 0.7632]))
    >>> p.variance
    tensor([[0.2222, 0.3333, 0.3333],
            [0.0235, 0.1410, 0.1410]])
    >>> p.covariance_matrix.shape
    torch.Size([2, 3, 3])
    >>> p.entropy(), p.log_normalizer  # log of the integral of (1+t)^κ
    (tensor([2.3379, 1.0422]), tensor([2.5310, 7.0646]))
    >>> p.log_prob(torch.eye(3)[0])
    tensor([-1.8379, -0.1331])
    >>> p.log_prob(torch.eye(3)[:, None]).shape, p.log_prob_matrix(torch.eye(3)).shape  # all pairs
    (torch.Size([3, 2]), torch.Size([2, 3]))
    >>> p.cap_probability(torch.pi / 4), p.cap_angle(0.95).rad2deg()
    (tensor([0.2714, 0.8248]), tensor([123.5584,  58.4534]))
    >>> Mine.from_mean_length(torch.eye(3)[0], 0.9).mean
    tensor([0.9000, 0.0000, 0.0000])
    >>> Mine.from_kl(torch.eye(3)[0], 2.0).entropy()  # log 4π - 2
    tensor(0.5310)
    >>> Mine.fit(p.sample((10_000,))).concentration.round()
    tensor([ 1., 10.])
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "loc": unit_vector,
        "concentration": constraints.nonnegative,
    }
    support = unit_vector

    #: The law of the cosine t = ``loc``ᵀx.
    family: ClassVar[Family]

    _marginal_class: ClassVar[type[Marginal]] = Marginal

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "family" in cls.__dict__:
            register_family(cls.family)
            _DISTRIBUTIONS.setdefault(cls.family.name, cls)

    dim: int
    loc: Tensor
    concentration: Tensor
    _parameters: tuple[Tensor, Tensor]

    def __init__(
        self,
        loc: Tensor,
        concentration: Tensor | float = _REQUIRED,
        validate_args: bool | None = None,
        **unknown: Any,
    ) -> None:
        if concentration is _REQUIRED or unknown:
            raise _wrong_call(type(self).__name__, unknown)
        if not hasattr(self, "family"):
            raise TypeError(f"{type(self).__name__} has no family: use a subclass such as PowerSpherical")
        if is_dynamo_compiling():
            _look_up_divergences(type(self))
        # For a small batch each call counts, so we call a check only if it is going to raise.
        if not isinstance(loc, Tensor) or not loc.is_floating_point() or not loc.dim() or loc.shape[-1] < 2:
            validation.vectors("loc", loc)
        self.dim = operator.index(loc.shape[-1])  # the compiler specialises on d
        dtype, shape = loc.dtype, loc.shape
        # In training, dtypes, devices and shapes usually agree. Then we skip all that brings them together.
        if (
            not isinstance(concentration, Tensor)
            or concentration.dtype != dtype
            or concentration.device != loc.device
        ):
            concentration = validation.number_or_tensor(
                "concentration", concentration, computing(dtype), loc.device
            )
            if concentration.dim():
                # This is torch.result_type(loc, concentration), which the compiler cannot trace.
                dtype = torch.promote_types(dtype, concentration.dtype)
        batch_shape = shape[:-1]
        agree = concentration.shape == batch_shape
        if not agree:
            batch_shape = validation.paired_shape("loc", loc, "concentration", concentration)
        if validate_args is None:
            validate_args = validates_by_default()
        if validate_args and not validation.are_proper(loc, concentration):
            usable = validation.non_negative("concentration", concentration, computing(dtype))
            loc = validation.unit_vectors("loc", loc, usable)
        if loc.dtype != dtype:
            loc = unit_vectors_as(loc, dtype)
        self._parameters = loc, concentration
        if agree:
            self.loc, self.concentration = loc, concentration
        else:
            self._broadcast(batch_shape)
        # What torch's constructor does, without its checks.
        self._batch_shape, self._event_shape, self._validate_args = batch_shape, shape[-1:], validate_args
        super(Distribution, self).__init__()

    def _broadcast(self, batch_shape: torch.Size) -> None:
        """Expand the public parameters to the batch shape. Draws use the original ones, which may be smaller."""
        loc, concentration = self._parameters
        # A view would be recorded and differentiated even if the shapes agree.
        self.loc = loc if loc.shape[:-1] == batch_shape else loc.expand(*batch_shape, -1)
        agrees = concentration.shape == batch_shape
        self.concentration = concentration if agrees else concentration.expand(batch_shape)

    @classmethod
    def from_kl(cls, loc: Tensor, nats: Tensor | float, validate_args: bool | None = None) -> Self:
        """Return the distribution whose KL divergence from the uniform is ``nats``; differentiable.

        ``nats`` holds numbers ≥ 0 that broadcast against ``loc.shape[:-1]``. Without validation, negative ones give
        NaN. At 0 the derivative is +∞. κ is computed and stored in at least float32. In float64 the divergence of the
        result agrees with ``nats`` to about 1e-13.
        """
        number, dim, dtype = cls._paired("nats", nats, loc)
        concentration = derived.from_relative_entropy(cls.family, number, dim)
        reachable = validation.reachable("nats", number, concentration, dim, computing(dtype))
        checks = [validation.non_negative("nats", number), reachable]
        return cls._with_exact(loc, concentration, dtype, validate_args, checks)

    @classmethod
    def from_mean_length(cls, loc: Tensor, length: Tensor | float, validate_args: bool | None = None) -> Self:
        """Return the distribution whose mean resultant length ‖E x‖ is ``length``; differentiable.

        ``length`` holds numbers in [0, 1) that broadcast against ``loc.shape[:-1]``. Without validation, others give
        NaN.
        """
        number, dim, dtype = cls._paired("length", length, loc)
        check = validation.between("length", number, 0.0, 1.0, below=True)
        number = torch.where(check[0], number, torch.nan)
        concentration = cls.family.from_mean_cosine(number, 1 - number, dim)
        return cls._with_exact(loc, concentration, dtype, validate_args, [check])

    @classmethod
    def fit(
        cls, x: Tensor, weights: Tensor | None = None, *, bias_correction: bool = False, max_iter: int = 200
    ) -> Self:
        """Return the maximum-likelihood distribution for points on the sphere.

        Args:
            x: unit vectors of shape (n, *batch, d), n ≥ 1, the shape of ``sample((n,))``. Norms and precision are
                treated as those of ``loc``. No gradient flows back to ``x``.
            weights: numbers ≥ 0 of shape (n, *batch) with a positive sum. Default: equal weights.
            bias_correction: whether to remove the bias of κ. Because the direction is fitted too, the
                maximum-likelihood κ is too large, by a lot if κ is small relative to d/√n. The corrected κ is 0 if the
                points cannot be told from uniform ones. For d ≥ 384, n ≥ 5 and ‖E x‖ ≥ 0.3 the remaining bias is
                below 2 %; at d = 3, n = 20 and ‖E x‖ ≥ 0.6 it is 4 to 8 %. With weights, n is (Σw)²/Σw².
            max_iter: the maximum number of steps in the search for the direction (von Mises–Fisher needs none). If
                they are not enough, ``fit`` warns with a ``ConvergenceWarning``.

        The direction is accurate to 3e-11 (float64) or 1e-4 (float32) radians, typically to 1e-12 or 4e-6, and κ to the
        rounding of the mean statistic. The result is never NaN. For points that coincide, κ is (d-1)/2 · 1e9 (float64)
        or 1e6 (float32). If no direction is better than others, it is arbitrary.
        """
        found = maximum_likelihood(cls.family, x, weights, max_iter, bias_correction)
        return cls(*found, validate_args=False)

    @staticmethod
    def _paired(name: str, value: Tensor | float, loc: Tensor) -> tuple[Tensor, int, torch.dtype]:
        """Return a value for each direction in at least float32, d, and the dtype of draws, mean and mode."""
        dim = validation.vectors("loc", loc)
        number = validation.number_or_tensor(name, value, computing(loc.dtype), loc.device)
        validation.paired_shape("loc", loc, name, number)
        dtype = torch.promote_types(loc.dtype, number.dtype) if number.dim() else loc.dtype
        return number.to(torch.promote_types(computing(loc.dtype), computing(number.dtype))), dim, dtype

    @classmethod
    def _with_exact(
        cls,
        loc: Tensor,
        concentration: Tensor,
        dtype: torch.dtype,
        validate_args: bool | None,
        checks: list[validation.Check],
    ) -> Self:
        """Return the distribution whose draws, mean and mode have this dtype. κ is not rounded to it."""
        if validation.is_enabled(validate_args):
            validation.require(checks)
        new = cls(loc, concentration, validate_args)
        new._parameters = new._parameters[0].to(dtype), concentration
        new._broadcast(new.batch_shape)
        return new

    @property
    def mean_direction(self) -> Tensor:
        """Alias of ``loc``, of shape batch_shape + (d,)."""
        return self.loc

    @property
    def _exact_loc(self) -> Tensor:
        return unit_vectors_as(self.loc, computing(self.loc.dtype))

    @property
    def _exact_concentration(self) -> Tensor:
        return self.concentration.to(computing(self.loc.dtype))

    @property
    def marginal(self) -> Marginal:
        """The distribution of t = ``loc``ᵀx, with the batch shape and the ``validate_args`` of this one."""
        kappa = self._exact_concentration
        marginal = self._marginal_class(self.dim, kappa, validate_args=False, family=self.family)
        marginal._validate_args = self._validate_args  # set afterwards: the concentration is checked already
        return marginal

    @property
    def log_normalizer(self) -> Tensor:
        """The log of the integral of the unnormalised density, of the batch shape; as accurate as ``entropy``."""
        log_partition = derived.log_partition(self.family, self._exact_concentration, self.dim)
        return log_partition + log_sphere_area(self.dim)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density at the unit vectors ``value`` (…, d), in at least float32; differentiable twice.

        Their shape without d broadcasts against the batch shape. Norms are treated as those of ``loc``.
        """
        value = validation.on_sphere("value", value, self.dim, self._validate_args, self.batch_shape)
        loc, concentration = self._parameters
        # At least float32, as for half precision ``computing`` says.
        dtype = torch.promote_types(torch.promote_types(loc.dtype, value.dtype), torch.float32)
        density = _log_density(self.family, value, loc, concentration.to(dtype))
        if density.shape[density.dim() - len(self.batch_shape) :] == self.batch_shape:
            return density
        # After ``expand`` the batch shape may be larger than those of the parameters.
        return density.expand(torch.broadcast_shapes(density.shape, self.batch_shape))

    def log_prob_matrix(self, x: Tensor) -> Tensor:
        """Return the log densities of all ``x`` under all distributions of the batch, by one matrix product.

        Args:
            x: unit vectors of shape (N, d), or (…, d). Norms may be off by 1 %: they are normalised.

        The result has the shape batch_shape + (N,), or batch_shape + (…), in at least float32. It is differentiable
        twice. Beyond the result, the first derivative needs the memory of a block: in float32 about 30 MB on a CPU and
        250 MB on CUDA.

        Accuracy: t = μᵀx has an absolute error of about ε (1.2e-7 in float32), so the error is that of ``log_prob``
        plus a few ε·|d log p/dt|. The slope is κ for von Mises–Fisher, κ/(1+t) for Power Spherical, and at most
        (d-1)κ(κ+2)/2 for the spherical Cauchy. In float32 the error exceeds 0.01 from κ = 3e4 on, or κ = 40 for a
        spherical Cauchy in 64 dimensions: use float64 there, or ``log_prob``. At t = -1 the Power Spherical density is
        ε^κ of that at the mode. A lower precision of matrix products, such as TF32, applies here too.
        """
        x = validation.on_sphere("x", x, self.dim, self._validate_args)
        return log_density_matrix(self.family, self.loc, self.concentration, x)

    def _draws(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        loc, concentration = self._parameters
        dtype = loc.dtype
        # Half precision is computed in float32.
        if concentration.dtype != dtype or dtype.itemsize < 4:
            concentration = concentration.to(computing(dtype))
        return draw(self.family, loc, concentration, shape, generator=generator)

    @property
    def _like(self) -> Tensor:  # type: ignore[override]
        return self.loc

    def _points(self, noise: Tensor) -> Tensor:
        loc, concentration = self._parameters
        kappa = concentration.to(noise.dtype).expand(self.batch_shape)
        return explicit.point(self.family, noise, unit_vectors_as(loc, noise.dtype), kappa).to(loc.dtype)

    def entropy(self) -> Tensor:
        """Return the differential entropy, log(area) minus KL from the uniform, of the batch shape.

        Differentiable twice. The error is at most 2e-6 of the larger term in float32, also where the two nearly cancel.
        """
        return log_sphere_area(self.dim) - self.family.relative_entropy(self._exact_concentration, self.dim)

    @property
    def mean(self) -> Tensor:
        """E x = E[t]·loc, of shape batch_shape + (d,)."""
        length = self.family.mean_cosine(self._exact_concentration, self.dim)
        return (length.unsqueeze(-1) * self._exact_loc).to(self.loc.dtype)

    @property
    def mode(self) -> Tensor:
        """``loc``, of shape batch_shape + (d,). At κ = 0, the uniform, every point is a mode."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """The variance of each coordinate, of shape batch_shape + (d,): the diagonal of ``covariance_matrix``."""
        along, across = (x.unsqueeze(-1) for x in self._variances())
        squares = self._exact_loc.square()
        return (along * squares + across * (1 - squares)).to(self.loc.dtype)

    @property
    def covariance_matrix(self) -> Tensor:
        """Var[t] μμᵀ + (1 - E t²)/(d-1) (I - μμᵀ), of shape batch_shape + (d, d)."""
        along, across = (x[..., None, None] for x in self._variances())
        loc = self._exact_loc
        outer = loc.unsqueeze(-1) * loc.unsqueeze(-2)
        identity = torch.eye(self.dim, dtype=loc.dtype, device=loc.device)
        return (along * outer + across * (identity - outer)).to(self.loc.dtype)

    def _variances(self) -> tuple[Tensor, Tensor]:
        """Return Var t, and the variance (1 - E t²)/(d-1) along each tangent direction."""
        concentration = self._exact_concentration
        variance = self.family.variance_cosine(concentration, self.dim)
        loss = self.family.mean_loss(concentration, self.dim)
        return variance, (loss * (2 - loss) - variance) / (self.dim - 1)

    def _number(self, name: str, value: Tensor | float, low: float, high: float) -> Tensor:
        """Return an argument in [low, high] that broadcasts against the batch shape, in at least float32."""
        dtype = computing(self.loc.dtype)
        number = validation.number_or_tensor(name, value, dtype, self.loc.device)
        if self._validate_args:
            validation.require([validation.between(name, number, low, high)])
        validation.broadcast_shape(**{f"{name}.shape": number.shape, "batch_shape": self.batch_shape})
        return number.to(torch.promote_types(dtype, computing(number.dtype)))

    def cdf(self, value: Tensor) -> Tensor:
        """Raise: points on a sphere have no order. ``marginal.cdf`` takes cosines (…)."""
        raise _no_order("cdf", "cap_probability")

    def icdf(self, value: Tensor) -> Tensor:
        """Raise: points on a sphere have no order. ``marginal.icdf`` returns cosines (…)."""
        raise _no_order("icdf", "cap_angle")

    def cap_probability(self, angle: Tensor | float) -> Tensor:
        """Return the probability within ``angle`` (radians in [0, π]) of ``loc``, in at least float32.

        ``angle`` broadcasts against the batch shape. Without validation the probability is 0 for angles below 0 and 1
        above π. It is computed in float64, and is not accurate for angles below 1e-147.
        """
        angle = self._number("angle", angle, 0.0, math.pi + 1e-6)
        half = with_float64(angle).double().clamp(0.0, math.pi) / 2
        t = Cosine(2 * torch.sin(half).square(), 2 * torch.cos(half).square())
        return back(self.marginal.tails(t)[1].exp().to(angle.dtype), self.concentration)

    def cap_angle(self, probability: Tensor | float) -> Tensor:
        """Return the angle of the cone around ``loc`` with this ``probability``: the inverse of ``cap_probability``.

        ``probability`` broadcasts against the batch shape. Without validation, numbers outside [0, 1] give NaN. Angles
        below 1e-160 underflow.
        """
        probability = self._number("probability", probability, 0.0, 1.0)
        inner = with_float64(probability).double()
        t = self.marginal.quantile(1 - inner, inner)
        # At both ends a square root has an infinite slope, but the angle is constant.
        inside = (t.minus > 0) & (t.plus > 0)
        near, far = (torch.sqrt(torch.where(inside, x, 1.0)) for x in t)
        at_end = (t.minus * (math.pi / 2)).detach()  # 0 or π, or NaN
        angle = torch.where(inside, 2 * torch.atan2(near, far), at_end)
        return back(angle.to(probability.dtype), self.concentration)


def _log_density(family: Family, x: Tensor, loc: Tensor, kappa: Tensor) -> Tensor:
    """Return the log-density at unit vectors x (…, d), in the dtype of ``kappa``. Batch shapes broadcast.

    In plain eager mode our families take one kernel per pass. On CUDA exponential families take one more for their
    functions of κ alone.
    """

    def compose(x: Tensor, loc: Tensor, kappa: Tensor, *_: Tensor) -> Tensor:
        t = Cosine(*cosine_between(unit_vectors_as(x, kappa.dtype), unit_vectors_as(loc, kappa.dtype)))
        dim = operator.index(x.shape[-1])  # specialises compiled code on d
        return derived.log_density(family, t, kappa, dim) - log_sphere_area(dim)

    def options() -> DensityOptions:
        dim = x.shape[-1]
        return family.name, offset_table(family, dim, kappa), log_sphere_area(dim)

    return differentiable("density", compose, options, x, loc, kappa, dim=x.shape[-1], family=family.name)
