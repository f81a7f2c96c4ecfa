"""The derivative in κ of a draw's cosine at fixed random numbers: each engine against formulas of other kinds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special
import torch
from torch import Tensor

from helpers.draws import draw, exact_ends, slopes
from helpers.engines import Engine
from helpers.examples import DOUBLE, FLOAT, family_objects
from powerspherical.families import POWER_SPHERICAL, SPHERICAL_CAUCHY, VON_MISES_FISHER, Family
from powerspherical.quadrature import law
from powerspherical.quadrature.cosine import Cosine

TOLERANCE = {FLOAT: 3e-6, DOUBLE: 1e-11}

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, in Triton's interpreter


def on(engine: Engine, dtype: torch.dtype, *tensors: Tensor) -> list[Tensor]:
    return [tensor.to(engine.device, dtype) for tensor in tensors]


# Von Mises–Fisher: a function of t and κ


def fixed_probability(minus: Tensor, plus: Tensor, kappa: Tensor, dim: int, width: int = 2) -> Tensor:
    """Return the slope of von Mises–Fisher on the CPU. The noise of the draw has no influence."""
    return slopes(VON_MISES_FISHER, minus, plus, minus, kappa, dim, width).cpu()


def quantiles(kappa: Tensor, dim: int, least: float = 1e-7) -> tuple[Tensor, Tensor, Tensor]:
    """Return 1-t, 1+t and κ at probabilities from ``least`` to 1 - ``least``, for each κ, flattened, in float64."""
    log_odds = torch.linspace(-1, 1, 15, dtype=DOUBLE) * math.log(1 / least - 1)
    log_odds, kappa = (x.reshape(-1) for x in torch.meshgrid(log_odds, kappa.double(), indexing="ij"))
    t = VON_MISES_FISHER.quantile(torch.sigmoid(log_odds), torch.sigmoid(-log_odds), kappa, dim)
    return *t, kappa


LOW = [0.0, 1e-4, 0.1, 0.3, 2.0, 7.0, 11.0, 15.9, 17.0, 24.0, 33.0, 39.9]
HIGH = [40.0, 41.0, 70.0, 300.0, 1e3, 3e4, 1e6, 1e9]


@pytest.mark.parametrize("dim", [2, 5, 12, 32, 48, 63, 100, 1000, 10_000])
def test_von_mises_fisher_against_a_quadrature(engine: Engine, dtype: torch.dtype, dim: int) -> None:
    """Low and high concentrations apart, and all in one call. ``tests/quadrature`` has the quadrature and mpmath.

    The series in float32 is least accurate at d = 32, the first dimension where it serves for all concentrations.
    """
    if engine.is_interpreted and dim in (12, 63, 10_000):
        pytest.skip("the same formulas as next to it, and slow in the interpreter")
    for kappas in (LOW + HIGH,) if engine.is_interpreted else (LOW, HIGH, LOW + HIGH):
        minus, plus, kappa = on(engine, dtype, *quantiles(torch.tensor(kappas), dim))
        found = fixed_probability(minus, plus, kappa, dim)
        ends = exact_ends(minus.cpu(), plus.cpu())
        expected = law.slope(VON_MISES_FISHER, Cosine(*ends), kappa.cpu().double(), dim)
        torch.testing.assert_close(found, expected, rtol=TOLERANCE[dtype], atol=0)


@pytest.mark.parametrize("dim", [2, 3, 7, 8, 31, 63])
def test_improbable_cosines(dim: int) -> None:
    """Down to probabilities of 1e-25, in float64."""
    minus, plus, kappa = quantiles(torch.tensor([3.0, 39.0, 45.0, 60.0, 1e3]), dim, least=1e-25)
    expected = law.slope(VON_MISES_FISHER, Cosine(minus, plus), kappa, dim)
    torch.testing.assert_close(fixed_probability(minus, plus, kappa, dim), expected, rtol=3e-12, atol=0)


@pytest.mark.parametrize(("dim", "width"), [(3, 6000), (5000, 6000)])
def test_rows_of_many_numbers(engine: Engine, dim: int, width: int) -> None:
    """Long points with the cosine of the same and of a lower dimension."""
    minus, plus, kappa = (x[::4].float() for x in quantiles(torch.tensor([2.0, 50.0]), dim))
    expected = law.slope(VON_MISES_FISHER, Cosine(*exact_ends(minus, plus)), kappa.double(), dim)
    found = fixed_probability(*on(engine, FLOAT, minus, plus, kappa), dim, width)
    torch.testing.assert_close(found, expected, rtol=5e-6, atol=0)


@pytest.mark.parametrize("dim", [2, 5, 40, 1000])
def test_von_mises_fisher_at_the_extremes(engine: Engine, dtype: torch.dtype, dim: int) -> None:
    """No overflow, NaN stays in its row, and concentrations that are none raise nothing."""
    kappa = torch.tensor([1.0, math.nan, 1e15, 1e18, 1e30, 1e37], dtype=dtype)
    minus = torch.where(kappa > 1e3, (dim - 1) / 2 / kappa.double(), 0.5).to(dtype)
    found = fixed_probability(*on(engine, dtype, minus, 2 - minus, kappa), dim)
    assert found.isnan().tolist() == kappa.isnan().tolist()
    # At large κ, 1-t is proportional to 1/κ: d artanh(t)/dκ = 1/(2κ).
    ratio = 2 * kappa[2:].double() * found[2:]
    torch.testing.assert_close(ratio, torch.ones(4, dtype=DOUBLE), rtol=5e-6, atol=0)
    wrong = torch.tensor([-math.inf, -5.0, math.inf, math.nan], dtype=dtype)
    for rows in (wrong, wrong[:1], wrong[2:3]):
        half = torch.full_like(rows, 0.5)
        assert fixed_probability(*on(engine, dtype, half, 2 - half, rows), dim).shape == rows.shape


# Power Spherical: the derivative of a Gamma variable G ~ Gamma(κ + (d-1)/2), except for d = 3


def exact_gamma_slopes(alpha: Tensor, gamma: Tensor) -> Tensor:
    """Return dlog G/dα in float64 by differences of SciPy's quantiles. The error is about 1e-9."""
    shape, value = (x.detach().double().cpu().numpy() for x in (alpha, gamma))
    lower, upper = scipy.special.gammainc(shape, value), scipy.special.gammaincc(shape, value)

    def difference(step: np.ndarray) -> np.ndarray:
        ends = (
            np.where(lower < 0.5, scipy.special.gammaincinv(a, lower), scipy.special.gammainccinv(a, upper))
            for a in (shape + step, shape - step)
        )
        return np.subtract(*ends) / (2 * step * value)

    step = 1e-4 * shape
    return torch.from_numpy((4 * difference(step) - difference(2 * step)) / 3)


def gamma_quantiles(alpha: float) -> Tensor:
    """Return Gamma quantiles at probabilities from 1e-7 to 1 - 1e-7 in float32."""
    tails = [1e-7, 1e-4, 0.03, 0.3]
    below, above = scipy.special.gammaincinv(alpha, tails), scipy.special.gammainccinv(alpha, tails)
    return torch.tensor([*below, *above], dtype=FLOAT)


def gamma_slopes(engine: Engine, kappa: Tensor, noise: Tensor, dim: int) -> Tensor:
    """Return dlog G/dα on the CPU, twice the slope of t."""
    kappa, noise = on(engine, FLOAT, kappa, noise)
    ends = (torch.ones_like(noise),) * 2
    return 2 * slopes(POWER_SPHERICAL, *ends, noise, kappa, dim).cpu()


#: Shapes α, and the documented errors at the probabilities of ``gamma_quantiles``.
SHAPES = [
    *((alpha, 1e-5) for alpha in (0.5, 0.53125, 1.0, 2.5, 3.984375)),
    *((4.0, 2e-4), (4.5, 1e-4), (8.0, 2e-5), (16.0, 3e-6), (1e4, 1e-6)),
]


@pytest.mark.parametrize(("alpha", "tolerance"), SHAPES)
def test_power_spherical_at_quantiles(engine: Engine, alpha: float, tolerance: float) -> None:
    noise = gamma_quantiles(alpha)
    found = gamma_slopes(engine, torch.full_like(noise, alpha - 0.5), noise, 2)
    expected = exact_gamma_slopes(torch.tensor(alpha), noise)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=0)
    if engine.name == "c" and alpha < 4:  # more accurate in the tails
        tails = torch.tensor([0, 1, 2, 4, 5, 6])
        torch.testing.assert_close(found[tails], expected[tails], rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("dim", "tolerance"), [(2, 1.5e-4), (4, 1.5e-4), (9, 1.5e-4), (17, 2e-5), (64, 3e-6), (5000, 2e-6)]
)
@pytest.mark.parametrize("count", [300, 30_000])
def test_power_spherical_at_draws(engine: Engine, dim: int, tolerance: float, count: int) -> None:
    """Few and many draws, small and large shapes mixed."""
    if engine.is_interpreted and count > 300:
        pytest.skip("slow in the interpreter")
    kappa = torch.cat([torch.zeros(1), torch.logspace(-1, 6, count - 1)])[torch.randperm(count)]
    noise = torch.distributions.Gamma(kappa + (dim - 1) / 2, 1.0).sample()
    if engine.name == "triton":  # fewer terms, and on a GPU approximate logarithms
        tolerance = max(tolerance, 1e-4)
    expected = exact_gamma_slopes(kappa.double() + (dim - 1) / 2, noise)
    torch.testing.assert_close(gamma_slopes(engine, kappa, noise, dim), expected, rtol=tolerance, atol=0)


def test_power_spherical_at_the_extremes(engine: Engine) -> None:
    nan = math.nan
    found = gamma_slopes(engine, torch.tensor([nan, 2.0, nan, 9.0]), torch.tensor([nan, nan, 2.0, 9.0]), 5)
    assert found.isnan().tolist() == [True, True, True, False]
    # As G → 0 the probability is ∝ G^α/α, so dlog G/dα = (ψ(α) + 1/α - log G)/α.
    tiny = gamma_slopes(engine, torch.tensor([0.0, 0.0, 2.5]), torch.tensor([0.0, 1e-30, 1e-20]), 2)
    assert tiny.isfinite().all()
    expected = (scipy.special.digamma(1.5) + 30 * math.log(10)) / 0.5
    assert tiny[1].item() == pytest.approx(expected, rel=1e-5)
    largest = gamma_slopes(engine, torch.tensor([3e38]), torch.tensor([3e38]), 9)
    assert largest.item() == pytest.approx(1 / 3e38, rel=1e-5)


# d = 3, where t is the quantile of a probability that is drawn


@pytest.mark.parametrize("family", [POWER_SPHERICAL, VON_MISES_FISHER], ids=["PS", "vMF"])
def test_in_three_dimensions(engine: Engine, dtype: torch.dtype, family: Family) -> None:
    """Depends on t and κ alone, also very near to the poles, and is that of the distribution function."""
    end = torch.cat((torch.logspace(-30, -8, 12), torch.logspace(-7, 0, 30))).to(dtype)
    minus, plus = torch.cat((end, 2 - end)), torch.cat((2 - end, end))
    for kappa in (0.0, 1e-12, 1e-3, 0.49, 0.51, 9.9, 10.1, 300.0):
        rows = torch.full_like(minus, kappa)
        shown = (minus.double() < 2 - 1e-6) & (plus.double() > 1e-6 * (kappa < 100))
        ends, nan = exact_ends(minus, plus), torch.full_like(minus, math.nan)
        found = slopes(family, *on(engine, dtype, minus, plus, nan, rows), 3).cpu()
        if family is POWER_SPHERICAL:  # 1+t = 2 u^{1/(κ+1)}
            logs = torch.where(ends[0] < 1, torch.log1p(-ends[0] / 2), torch.log(ends[1] / 2))
            expected = -logs / ends[0] / (1 + rows.double())
        else:
            expected = law.slope(family, Cosine(*ends), rows.double(), 3)
        tolerance = {FLOAT: 2e-6, DOUBLE: 1e-9}[dtype]
        torch.testing.assert_close(found[shown], expected[shown], rtol=tolerance, atol=0)


def test_spherical_cauchy(engine: Engine, dtype: torch.dtype) -> None:
    """κ shifts artanh t by log(1+κ)."""
    kappa = torch.cat([torch.zeros(1), torch.logspace(-3, 8, 50)]).to(engine.device, dtype)
    q = draw(SPHERICAL_CAUCHY, torch.eye(5, dtype=dtype, device=engine.device)[0], kappa)
    found = slopes(SPHERICAL_CAUCHY, q.minus, q.plus, q.noise, kappa, 5)
    torch.testing.assert_close(found, 1 / (1 + kappa.double()), rtol=8 * torch.finfo(dtype).eps, atol=0)


@family_objects
def test_shapes_and_blocks(engine: Engine, family: Family) -> None:
    """Any shape, also of no numbers, more rows than a block, and one concentration among several."""
    count = 30 if engine.is_interpreted else 7000
    dims = (5,) if engine.is_interpreted else (2, 3, 40, 70)
    for dim in dims:
        kappa = torch.tensor([[1.0], [50.0], [20.0]], device=engine.device).expand(3, count).contiguous()
        q = draw(family, torch.eye(dim, device=engine.device)[0], kappa)
        whole = slopes(family, q.minus, q.plus, q.noise, kappa, dim)
        row = slopes(family, q.minus[1], q.plus[1], q.noise[1], kappa[1], dim)
        torch.testing.assert_close(row, whole[1], rtol=1e-6, atol=0)
        one = slopes(family, *(x[2, 5:6] for x in (q.minus, q.plus, q.noise, kappa)), dim)
        torch.testing.assert_close(one, whole[2, 5:6], rtol=1e-6, atol=0)
    empty = torch.empty(0, 2, device=engine.device)
    assert slopes(family, empty, empty, empty, empty, 5).shape == (0, 2)
