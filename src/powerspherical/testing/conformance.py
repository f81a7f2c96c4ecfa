"""The conformance suite: tests that every family must pass.

Each closed form is compared with the quadrature default that it overrides. The defaults need only ``log_kernel``.
Densities and moments are also summed over a plain grid, which would reveal a mistake in the defaults.
"""

from __future__ import annotations

import functools
import math
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import scipy.stats
import torch
from torch import Tensor
from torch.distributions import Distribution, kl_divergence

from powerspherical import HypersphericalUniform, RotationallySymmetric, VonMisesFisher
from powerspherical._torch.derivatives import load_forward_mode
from powerspherical.distributions import distribution_named
from powerspherical.families import VON_MISES_FISHER, Family, derived, family_named, family_names
from powerspherical.quadrature.cosine import Cosine
from powerspherical.special.gamma import log_cosine_normalizer

#: Significance level of the randomised tests, whose seed is fixed.
LEVEL = 1e-6


@functools.cache
def plain_twin(family: Family) -> Family:
    """Return a family with the same ``log_kernel``, whose other methods are the defaults by quadrature.

    The defaults are those of ``powerspherical.families.Family``. The suite compares closed forms with them.

    >>> from powerspherical.families import POWER_SPHERICAL
    >>> kappa = torch.tensor([0.5, 20.0], dtype=torch.float64)
    >>> twin = plain_twin(POWER_SPHERICAL)
    >>> error = twin.mean_cosine(kappa, 3) - POWER_SPHERICAL.mean_cosine(kappa, 3)
    >>> error.abs() < 1e-12
    tensor([True, True])
    """

    class PlainTwin(Family):
        name = f"{family.name}_by_quadrature"
        title = f"{family.title} (by quadrature)"

        def log_kernel(self, t: Cosine, kappa: Tensor, dim: int) -> Tensor:
            return family.log_kernel(t, kappa, dim)

    return PlainTwin()


def grid_mean(
    family: Family, kappa: Tensor, dim: int, function: Callable[[Cosine], Tensor] | None = None
) -> Tensor:
    """E function(t), by default the integral of the density, by the trapezoidal rule in artanh t; for d up to 1e4."""
    y = torch.linspace(-40.0, 40.0, 16001, dtype=torch.float64)
    t = Cosine.of_rapidity(y)
    log_cosh = y.abs() + torch.log1p(torch.exp(-2 * y.abs())) - math.log(2)
    log_uniform = log_cosine_normalizer(dim) - (dim - 1) * log_cosh
    density = torch.exp(derived.log_density(family, t, kappa.unsqueeze(-1), dim) + log_uniform)
    values = density if function is None else density * function(t)
    return values.sum(-1) * (y[1] - y[0])


def _ends(*minus: float) -> Cosine:
    first = torch.tensor(minus, dtype=torch.float64)
    return Cosine(first, 2 - first)


COSINES = _ends(1.97, 1.7, 1.4, 1.1, 0.8, 0.5, 0.2, 0.03, 1e-12)
#: Angles between two directions.
ANGLES = _ends(0.0, 0.04, 1.0, 1.8)
_U = torch.tensor([1e-12, 1e-3, 0.1, 0.3, 0.5], dtype=torch.float64)
#: Probabilities and their complements, both with full relative accuracy.
PROBABILITIES = torch.cat((_U, 1 - _U)), torch.cat((1 - _U, _U))


def _with(kappa: Tensor, ends: Cosine) -> tuple[Tensor, Cosine]:
    """Return κ of shape (k, 1) and cosines, broadcast to one shape."""
    kappa, *both = torch.broadcast_tensors(kappa, *ends)
    return kappa, Cosine(*both)


def _quantile(family: Family, kappa: Tensor, dim: int) -> Cosine:
    u, complement, kappa = torch.broadcast_tensors(*PROBABILITIES, kappa)
    return family.quantile(u, complement, kappa, dim)


def _divergence(family: Family, p: Family, kappa: Tensor, dim: int) -> Tensor:
    first, angle = _with(kappa, ANGLES)
    return family.divergence(p, first, 0.6 * first + 1, angle, dim)


#: Functions of (family, κ of shape (k, 1), d) that call the methods which read tables of functions of κ.
FUNCTIONS_OF_KAPPA: dict[str, Callable[[Family, Tensor, int], Any]] = {
    name: lambda f, k, d, name=name: getattr(f, name)(k, d)
    for name in ("offset", "relative_entropy", "mean_cosine", "mean_loss", "variance_cosine")
} | {
    "log_partition": lambda f, k, d: derived.log_partition(f, k, d) - k * f.peak,
    "from_mean_cosine": lambda f, k, d: f.from_mean_cosine(k / (k + 9), 9 / (k + 9), d),
}

#: The same for the other methods that may have a closed form.
CLOSED_FORMS: dict[str, Callable[[Family, Tensor, int], Any]] = {
    "log_tail": lambda f, k, d: derived.log_tails(f, COSINES, k, d),
    "quantile": _quantile,
    "slope": lambda f, k, d: f.slope(_with(k, COSINES)[1], None, _with(k, COSINES)[0], d),
    "misalignment": lambda f, k, d: f.misalignment(*_with(k, ANGLES), d),
    "divergence": lambda f, k, d: (_divergence(f, f, k, d), _divergence(f, VON_MISES_FISHER, k, d)),
    "derivatives": lambda f, k, d: f.derivatives(_with(k, COSINES)[1], _with(k, COSINES)[0], d),
}


def assert_mean(draws: Tensor, expected: Tensor) -> None:
    """Assert, by a z-test, that the mean over the first axis is ``expected``."""
    draws = draws.detach().double()
    error = (draws.mean(0) - expected).abs() * len(draws) ** 0.5
    worst = (error / (draws.std(0) + 1e-9)).max()
    limit = scipy.stats.norm.isf(LEVEL / 2 / error.numel())
    assert worst < limit, f"the mean over {len(draws)} draws is off by {worst:.1f} standard errors"


def assert_law(probabilities: Tensor) -> None:
    """Assert, by a Kolmogorov–Smirnov test, that the CDF evaluated at draws is uniformly distributed."""
    assert probabilities.isfinite().all()
    found = scipy.stats.kstest(probabilities.double().numpy(), "uniform")
    assert found.pvalue > LEVEL, f"Kolmogorov–Smirnov statistic {found.statistic:.4f} of the draws"


class FamilyConformance:
    """Tests of a distribution and its family. pytest collects subclasses whose names begin with ``Test``.

    Attributes:
        distribution: the class to test.
        dims: dimensions d, between 2 and 10,000.
        concentrations: values of κ > 0, from nearly uniform to concentrated.
        rtol: relative tolerance of float64 results against quadrature. The absolute tolerance is a tenth of it.
        single_rtol: relative tolerance of float32 results against float64 results.
        draws: number of draws per randomised test. These tests have significance level 1e-6 and a fixed seed.

    Your own tests in the subclass can use the same members as the suite:

    >>> from powerspherical import PowerSpherical
    >>> class TestMine(FamilyConformance):
    ...     distribution = PowerSpherical
    ...     concentrations = (0.5, 20.0)
    >>> suite = TestMine()
    >>> suite.family.title, suite.make(dim=3).batch_shape
    ('Power Spherical', torch.Size([2]))
    >>> length = suite.make(dim=3).mean.norm(dim=-1)
    >>> suite.assert_close(length, suite.kappa / (suite.kappa + 2))
    """

    distribution: ClassVar[type[RotationallySymmetric]]
    dims: ClassVar[tuple[int, ...]] = (2, 3, 20)
    concentrations: ClassVar[tuple[float, ...]] = (0.1, 4.0, 60.0)
    rtol: ClassVar[float] = 1e-8
    single_rtol: ClassVar[float] = 1e-4
    draws: ClassVar[int] = 20_000

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrise tests by ``dims``, and the quadrature test also by what the family overrides."""
        if "dim" in metafunc.fixturenames:
            metafunc.parametrize("dim", self.dims)
        if "closed_form" in metafunc.fixturenames:
            kind = type(self.family)
            own = [name for name in CLOSED_FORMS if getattr(kind, name) is not getattr(Family, name)]
            metafunc.parametrize("closed_form", [*FUNCTIONS_OF_KAPPA, *own])

    @pytest.fixture(autouse=True)
    def _start(self) -> None:
        load_forward_mode()  # where warnings are errors, the first derivative would fail
        torch.manual_seed(20200607)

    @property
    def family(self) -> Family:
        """The family of the distribution."""
        return self.distribution.family

    @property
    def kappa(self) -> Tensor:
        """The concentrations as a float64 tensor of shape (k,)."""
        return torch.tensor(self.concentrations, dtype=torch.float64)

    def make(self, dim: int, dtype: torch.dtype = torch.float64) -> RotationallySymmetric:
        """Return the distributions of R^dim with a common direction and batch shape (k,), one per concentration."""
        loc = torch.nn.functional.normalize(torch.arange(1, dim + 1, dtype=dtype), dim=0)
        return self.distribution(loc, self.kappa.to(dtype))

    def assert_close(self, actual: object, expected: object, rtol: float | None = None) -> None:
        """Assert closeness with relative tolerance ``rtol`` and absolute tolerance 0.1 ``rtol``."""
        rtol = self.rtol if rtol is None else rtol
        torch.testing.assert_close(actual, expected, rtol=rtol, atol=0.1 * rtol)

    def test_the_density_integrates_to_one(self, dim: int) -> None:
        self.assert_close(grid_mean(self.family, self.kappa, dim), torch.ones_like(self.kappa))

    def test_moments(self, dim: int) -> None:
        kappa, family = self.kappa, self.family

        def mean(function: Callable[[Cosine], Tensor]) -> Tensor:
            return grid_mean(family, kappa, dim, function)

        loss = mean(lambda t: t.minus)
        self.assert_close(family.mean_loss(kappa, dim), loss)
        self.assert_close(family.mean_cosine(kappa, dim), mean(lambda t: t.plus) - 1)
        variance = mean(lambda t: (t.minus - loss.unsqueeze(-1)).square())
        self.assert_close(family.variance_cosine(kappa, dim), variance)
        entropy = mean(lambda t: derived.log_density(family, t, kappa.unsqueeze(-1), dim))
        self.assert_close(family.relative_entropy(kappa, dim), entropy)
        assert (family.mean_cosine(kappa, dim).diff() > 0).all(), "E t must increase with κ"

    def test_closed_forms_agree_with_quadrature(self, closed_form: str, dim: int) -> None:
        kappa, compute = self.kappa.unsqueeze(-1), (FUNCTIONS_OF_KAPPA | CLOSED_FORMS)[closed_form]
        self.assert_close(compute(self.family, kappa, dim), compute(plain_twin(self.family), kappa, dim))

    def test_divergences_vanish_only_from_itself(self, dim: int) -> None:
        p = self.make(dim)
        self.assert_close(kl_divergence(p, p), torch.zeros_like(self.kappa))
        elsewhere = self.distribution(p.loc.roll(1, -1), p.concentration)
        for q in (*self._others(p), elsewhere, self.distribution(p.loc, 2 * p.concentration)):
            assert (kl_divergence(p, q) > 0).all()
            assert (kl_divergence(q, p) > 0).all()

    def _others(self, p: RotationallySymmetric) -> list[Distribution]:
        elsewhere = p.loc.roll(1, -1)
        uniform = HypersphericalUniform(p.dim, dtype=p.loc.dtype)
        return [uniform, VonMisesFisher(elsewhere, 3.0), self.distribution(elsewhere, 1.0)]

    def test_divergences_are_mean_log_ratios(self, dim: int) -> None:
        p = self.make(dim)
        x = p.sample((self.draws,))
        for q in self._others(p):
            assert_mean(p.log_prob(x) - q.log_prob(x), kl_divergence(p, q))

    def test_quantiles_invert_tails(self, dim: int) -> None:
        kappa = self.kappa.unsqueeze(-1)
        t = derived.quantile(self.family, *PROBABILITIES, kappa, dim)
        for found, expected in zip(derived.log_tails(self.family, t, kappa, dim), PROBABILITIES, strict=True):
            self.assert_close(found, expected.log().expand_as(found))

    def test_draws_are_unit_vectors_with_the_law_of_the_marginal(self, dim: int) -> None:
        for dtype in (torch.float64, torch.float32):
            p = self.make(dim, dtype)
            x = p.sample((self.draws // 2,))
            assert x.dtype == dtype
            assert (x.norm(dim=-1) - 1).abs().max() < 8 * torch.finfo(dtype).eps
            t = (x.double() * p.loc.double()).sum(-1).clamp(-1, 1)
            for cosine, kappa in zip(t.unbind(-1), p.concentration, strict=True):
                assert_law(self.distribution(p.loc[0], kappa).marginal.cdf(cosine))

    def _derivative(self, function: Callable[[Tensor], Tensor], kappa: Tensor) -> Tensor:
        """Return the derivative in κ by central differences."""
        step = 1e-4 * (1 + kappa)
        return (function(kappa + step) - function(kappa - step)) / (2 * step)

    def test_derivatives_of_draws(self, dim: int) -> None:
        """The mean of dt/dκ over draws is the derivative of E t."""
        mean = self._derivative(lambda kappa: self.family.mean_cosine(kappa, dim), self.kappa)
        for dtype in (torch.float64, torch.float32):
            kappa = self.kappa.to(dtype).expand(self.draws // 2, -1).contiguous()
            length = 2 * torch.distributions.Gamma(torch.full_like(kappa, (dim - 1) / 2), 1.0).sample()
            t, noise = self.family.draw_cosine(length, kappa, dim)
            assert_mean(t.minus * t.plus * self.family.slope(t, noise, kappa, dim), mean)

    def test_implicit_slopes_are_derivatives_of_quantiles(self, dim: int) -> None:
        u = torch.tensor([1e-4, 0.2, 0.6, 0.999], dtype=torch.float64)
        kappa = self.kappa.unsqueeze(-1).repeat(1, len(u))

        def quantile(kappa: Tensor) -> Cosine:
            return derived.quantile(self.family, u, 1 - u, kappa, dim)

        expected = self._derivative(lambda kappa: quantile(kappa).rapidity, kappa)
        self.assert_close(self.family.slope(quantile(kappa), None, kappa, dim), expected, rtol=1e-5)

    def test_inverses(self, dim: int) -> None:
        p = self.make(dim)
        nats = kl_divergence(p, HypersphericalUniform(dim, dtype=p.loc.dtype))
        self.assert_close(self.distribution.from_kl(p.loc, nats).concentration, p.concentration, 1e-7)
        length = p.mean.norm(dim=-1)
        found = self.distribution.from_mean_length(p.loc, length).concentration
        self.assert_close(found, p.concentration, 1e-7)
        uniform = torch.zeros((), dtype=torch.float64)
        assert self.distribution.from_kl(p.loc[0], uniform).concentration == 0
        assert self.distribution.from_mean_length(p.loc[0], uniform).concentration == 0

    def test_fits_recover_parameters(self, dim: int) -> None:
        """By Wilks' theorem, twice the log-likelihood ratio of fit and truth is about χ² with d degrees of freedom."""
        p = self.make(dim)
        x = p.sample((self.draws // 4,))
        fitted = self.distribution.fit(x)
        gain = 2 * (fitted.log_prob(x) - p.log_prob(x)).sum(0)
        # If the points have hardly any common direction, the fit may end in a local maximum.
        clear = p.mean.norm(dim=-1) > 0.1
        assert (gain > -1e-6)[clear].all(), "the fit is less likely than the truth"
        assert (gain < scipy.stats.chi2.isf(LEVEL, dim)).all()
        ratio = fitted.concentration / p.concentration
        assert ((ratio - 1).abs() < 0.25)[clear].all()

    def test_concentration_zero_is_the_uniform(self, dim: int) -> None:
        zero = torch.zeros(1, dtype=torch.float64)
        family, nothing = self.family, torch.zeros(9, dtype=torch.float64)
        assert torch.equal(family.log_kernel(COSINES, zero, dim), nothing)
        self.assert_close(derived.log_density(family, COSINES, zero, dim), nothing)
        self.assert_close(family.mean_cosine(zero, dim), zero)
        self.assert_close(family.relative_entropy(zero, dim), zero)
        self.assert_close(family.variance_cosine(zero, dim), zero + 1 / dim)

    def test_derivatives_in_both_modes(self, dim: int) -> None:
        kappa = self.kappa.requires_grad_()
        t = Cosine(*(end[:-1, None] for end in COSINES))
        for function in (
            lambda k: derived.log_density(self.family, t, k, dim),
            lambda k: self.family.relative_entropy(k, dim),
            lambda k: self.family.mean_cosine(k, dim),
            lambda k: derived.from_relative_entropy(self.family, k / 10, dim),
            lambda k: derived.log_tails(self.family, t, k, dim)[0],
        ):
            assert torch.autograd.gradcheck(function, kappa, fast_mode=True, atol=1e-6, rtol=1e-4)
            _, forward, *_ = torch.func.jvp(function, (self.kappa,), (torch.ones_like(self.kappa),))
            (reverse,) = torch.autograd.grad(function(kappa).sum(), kappa)
            self.assert_close(forward.reshape(-1, len(kappa)).sum(0), reverse)

    def _members(self, p: RotationallySymmetric, x: Tensor, t: Tensor) -> list[Tensor]:
        uniform = HypersphericalUniform(p.dim, dtype=p.loc.dtype)
        return [p.mean, p.variance, p.entropy(), p.log_prob(x), p.marginal.cdf(t), kl_divergence(p, uniform)]

    def test_nan_concentration_gives_nan(self, dim: int) -> None:
        p = self.distribution(self.make(dim).loc[0], torch.nan, validate_args=False)
        u = torch.tensor(0.3, dtype=torch.float64)
        for value in (*self._members(p, p.loc, u), p.sample(), p.marginal.icdf(u)):
            assert value.isnan().all()

    def test_single_precision(self, dim: int) -> None:
        exact, single = self.make(dim), self.make(dim, torch.float32)
        x = exact.sample((5,))
        t = (x * exact.loc).sum(-1).clamp(-1, 1).float()
        found, expected = self._members(single, x.float(), t), self._members(exact, x, t.double())
        assert {value.dtype for value in found} == {torch.float32}
        self.assert_close([value.double() for value in found], expected, self.single_rtol)

    def test_the_registry_knows_the_family(self) -> None:
        name = self.family.name
        assert name.isidentifier()
        assert name in family_names()
        assert family_named(name) is self.family
        assert distribution_named(name) is self.distribution
        assert self.family.title in repr(self.family)

    def test_pickles(self) -> None:
        copy = pickle.loads(pickle.dumps(self.family))
        assert type(copy) is type(self.family)
        p = self.make(3)
        q = pickle.loads(pickle.dumps(p))
        assert torch.equal(p.log_prob(p.loc), q.log_prob(p.loc))
