"""KL divergences of all ordered pairs, and the concentrations that are defined through them."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import Distribution, kl_divergence
from torch.func import grad, jvp, vmap
from torch.nn.functional import normalize, pad

from helpers import mpmath_tables
from helpers.examples import DOUBLE, FAMILIES, FLOAT, IDS, directions, dtypes, families
from powerspherical import HypersphericalUniform, PowerSpherical, SphericalCauchy, VonMisesFisher
from powerspherical.engines import block_limit
from powerspherical.families import derived
from powerspherical.quadrature.cosine import Cosine

TABLE = mpmath_tables.load("kl_pairs.json")

pairs = pytest.mark.parametrize(
    ("first", "second"),
    list(itertools.product(FAMILIES, repeat=2)),
    ids=["-".join(pair) for pair in itertools.product(IDS, repeat=2)],
)
exponential = FAMILIES[:2]
pairs_of_the_table = pytest.mark.parametrize(
    ("first", "second"), list(itertools.product(exponential, repeat=2))
)
families_of_the_table = pytest.mark.parametrize("family", exponential, ids=IDS[:2])


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=DOUBLE)


def at_angle(theta: Tensor, dim: int) -> Tensor:
    """Unit vectors at angles θ from the first axis."""
    loc = torch.zeros(*theta.shape, dim, dtype=DOUBLE)
    loc[..., 0], loc[..., 1] = torch.cos(theta), torch.sin(theta)
    return loc


def grid(first: type, second: type, dim: int, dtype: torch.dtype) -> tuple[Distribution, Distribution]:
    """p and q over the axes κ_p, κ_q, θ of the table."""
    kappa = double(*TABLE["kappas"]).to(dtype)
    loc = at_angle(double(*TABLE["thetas"]), dim).to(dtype)
    return first(loc[0], kappa[:, None, None]), second(loc[None], kappa[:, None])


@pairs_of_the_table
@pytest.mark.parametrize("dim", TABLE["dims"])
def test_the_table(first: type, second: type, dim: int) -> None:
    """float32 is as accurate as the same numbers in float64, where the directions are normalised to all digits."""
    pair = TABLE["pairs"].index([first.family.name, second.family.name])
    expected = torch.tensor(TABLE["kl"][TABLE["dims"].index(dim)], dtype=DOUBLE)[..., pair]
    error = (kl_divergence(*grid(first, second, dim, DOUBLE)) - expected).abs()
    assert (error / expected.clamp(min=1)).max() <= 2e-12
    single = grid(first, second, dim, FLOAT)
    value = kl_divergence(*single)
    assert value.dtype == FLOAT
    exact = kl_divergence(
        *(type(x)(normalize(x.loc.double(), dim=-1), x.concentration.double()) for x in single)
    )
    assert ((value.double() - exact).abs() / exact.clamp(min=1)).max() <= 1e-5


cauchy_pairs = pytest.mark.parametrize(
    ("first", "second"),
    [pair for pair in itertools.product(FAMILIES, repeat=2) if pair.count(SphericalCauchy) == 1],
)


@cauchy_pairs
@pytest.mark.parametrize("dim", mpmath_tables.dims("cauchy_kl.json", "kl"))
def test_the_table_of_the_spherical_cauchy_and_the_others(first: type, second: type, dim: int) -> None:
    """Most of these divergences are quadratures. The largest error is 2e-13, on the circle."""
    table = mpmath_tables.columns("cauchy_kl.json", "kl", dim)
    expected = table[f"{first.family.name} || {second.family.name}"]
    p = first(at_angle(double(0.0), dim), table["kappa_p"])
    q = second(at_angle(table["theta"], dim), table["kappa_q"])
    single = kl_divergence(*(type(x)(x.loc.float(), x.concentration.float()) for x in (p, q)))
    assert single.dtype == FLOAT
    for value, tolerance in ((kl_divergence(p, q), 1e-12), (single.double(), 5e-7)):
        assert ((value - expected).abs() / expected.clamp(min=1)).max() <= tolerance


@cauchy_pairs
@pytest.mark.parametrize("section", ["concentrated", "opposite"])
@pytest.mark.parametrize("dim", mpmath_tables.dims("cauchy_kl.json", "concentrated"))
def test_concentrated_pairs_keep_their_digits(first: type, second: type, dim: int, section: str) -> None:
    """κ up to 10⁶, of one or both. The log-densities are large, but their constant parts must not take digits."""
    table = mpmath_tables.columns("cauchy_kl.json", section, dim)
    expected = table[f"{first.family.name} || {second.family.name}"]
    half = table["theta"] / 2
    angle = Cosine(2 * torch.sin(half).square(), 2 * torch.cos(half).square())
    value = second.family.divergence(first.family, table["kappa_p"], table["kappa_q"], angle, dim)
    tolerance = 5e-13 if dim == 2 else 1e-13  # on the circle the tails are the longest
    assert ((value - expected).abs() / expected.clamp(min=1)).max() <= tolerance


def test_nearly_opposite_directions() -> None:
    """For spherical Cauchy and Power Spherical with κ = 10⁴ at d = 64, at an angle of π - 10⁻⁶, by 40 digits of mpmath.

    E log(1+νᵀX) then depends on 1+μᵀν, which 1-μᵀν has rounded away.
    """
    theta = torch.tensor(math.pi - 1e-6, dtype=DOUBLE)
    p, q = SphericalCauchy(at_angle(double(0.0), 64), 1e4), PowerSpherical(at_angle(theta, 64), 1e4)
    assert kl_divergence(p, q).item() == pytest.approx(184574.8652551891081630, rel=2e-12)


@families_of_the_table
@pytest.mark.parametrize("dim", [2, 3, 64, 768, 10**4])
def test_from_and_to_the_uniform(family: type, dim: int) -> None:
    """KL(p‖U) is in the table; KL(U‖p) = Ψ - κ E_U T, with E_U t = 0 and E_U log(1+t) in the table."""
    table = mpmath_tables.columns("functions.json", family.family.name, dim)
    p, uniform = family(at_angle(double(0.0), dim), table["kappa"]), HypersphericalUniform(dim)
    torch.testing.assert_close(kl_divergence(p, uniform), table["kl_uniform"], rtol=1e-12, atol=0)
    expected = table["log_normalizer"]
    if family is PowerSpherical:
        expected = expected - table["kappa"] * table["mean_log1p"][0]
    torch.testing.assert_close(kl_divergence(uniform, p), expected, rtol=2e-12, atol=1e-14)


@families
def test_no_concentration_is_the_uniform(family: type) -> None:
    p = family(at_angle(double(0.3), 5), double(0.0))
    q = family(at_angle(double(1.3), 5), double(4.0))
    uniform = HypersphericalUniform(5)
    assert kl_divergence(p, uniform).item() == 0
    assert kl_divergence(uniform, p).item() == 0
    torch.testing.assert_close(kl_divergence(p, q), kl_divergence(uniform, q), rtol=1e-14, atol=0)
    torch.testing.assert_close(kl_divergence(q, p), kl_divergence(q, uniform), rtol=1e-14, atol=0)


property_test = settings(derandomize=True, deadline=None, max_examples=50, database=None)
kappas = st.floats(-4, 8).map(lambda exponent: 10**exponent)
dims = st.one_of(st.integers(2, 12), st.sampled_from([41, 42, 64, 768]))


@pairs
@property_test
@given(dim=dims, kappa_p=kappas, kappa_q=kappas, seeds=st.tuples(st.integers(0, 99), st.integers(0, 99)))
def test_no_divergence_is_negative(
    first: type, second: type, dim: int, kappa_p: float, kappa_q: float, seeds: tuple[int, int]
) -> None:
    p, q = first(directions(dim, seed=seeds[0]), kappa_p), second(directions(dim, seed=seeds[1]), kappa_q)
    # The terms that cancel, where p is nearly q, are of the order of KL to the uniform.
    scale = max(1.0, kl_divergence(p, HypersphericalUniform(dim)).item())
    assert kl_divergence(p, q).item() >= -1e-12 * scale
    assert kl_divergence(p, p).item() == 0


@families
@property_test
@given(dim=dims, kappa=kappas, change=st.floats(-9, -1).map(lambda exponent: 10**exponent))
def test_near_itself_it_is_half_the_fisher_information(
    family: type, dim: int, kappa: float, change: float
) -> None:
    """KL(κ‖κ+δ) ≈ ½ I δ², without cancellation; I is Var T, or (d-1)²/(d(1+κ)²) for the spherical Cauchy."""
    loc = directions(dim, seed=3)
    value = kl_divergence(family(loc, kappa), family(loc, kappa * (1 + change))).item()
    delta = kappa * (1 + change) - kappa
    if family is SphericalCauchy:
        fisher = (dim - 1) ** 2 / dim / (1 + kappa) ** 2
    else:
        fisher = derived.information(family.family, double(kappa), dim).item()
    assert value == pytest.approx(0.5 * fisher * delta**2, rel=3 * change + 1e-6)


@families_of_the_table
@pytest.mark.parametrize("dim", [2, 3, 64])
@pytest.mark.parametrize("kappa", [0.1, 5.0, 1e4])
def test_no_jump_between_its_two_formulas(family: type, dim: int, kappa: float) -> None:
    """At a distance of 0.7 (κ + β) the integral gives way to the difference, in both directions."""
    loc, beta = directions(dim, seed=3), (dim - 1) / 2

    def divergence(kappa_q: Tensor) -> Tensor:
        return kl_divergence(family(loc, kappa), family(loc, kappa_q))

    for switch in (kappa + 0.7 * (kappa + beta), (kappa - 0.7 * beta) / 1.7):
        if switch <= 0:
            continue
        middle = double(switch).requires_grad_()
        below, above = double(switch * (1 - 1e-8)), double(switch * (1 + 1e-8))
        value = divergence(middle)
        (slope,) = torch.autograd.grad(value, middle)
        jump = (divergence(above) - divergence(below) - slope * (above - below)) / value
        assert jump.abs().item() <= 5e-14


def member(kind: type, loc: Tensor, kappa: Tensor | float = 2.0) -> Distribution:
    if kind is HypersphericalUniform:
        return kind(loc.shape[-1], dtype=loc.dtype).expand(loc.shape[:-1])
    return kind(loc, kappa)


pairs_with_the_uniform = pytest.mark.parametrize(
    ("first", "second"), list(itertools.product([*FAMILIES, HypersphericalUniform], repeat=2))
)


@pairs_with_the_uniform
def test_batches_broadcast(first: type, second: type) -> None:
    loc_p, kappa, loc_q = directions(4, 1, 3), double(1.0, 2.0, 3.0), directions(3, 3, seed=2)
    value = kl_divergence(member(first, loc_p, kappa), member(second, loc_q, 5.0))
    assert value.shape == (4, 3)
    for i, j in itertools.product(range(4), range(3)):
        one = kl_divergence(member(first, loc_p[i, 0], kappa[j]), member(second, loc_q[j], 5.0))
        torch.testing.assert_close(value[i, j], one, rtol=1e-13, atol=0)


@pairs_with_the_uniform
def test_spheres_and_batches_must_match(first: type, second: type) -> None:
    with pytest.raises(ValueError, match=r"one dimension, got dim 3 and dim 4"):
        kl_divergence(member(first, directions(3)), member(second, directions(4)))
    with pytest.raises(ValueError, match=r"do not broadcast.*\(2,\).*\(3,\)"):
        kl_divergence(member(first, directions(2, 3)), member(second, directions(3, 3)))


@pytest.mark.slow
@pairs
@pytest.mark.parametrize("dim", [2, 5])
def test_derivatives(first: type, second: type, dim: int) -> None:
    """First and second ones, in both concentrations and in both directions, which need not be normalised."""
    used = min(dim, 3)  # the other coordinates are zero

    def divergence(loc_p: Tensor, kappa_p: Tensor, loc_q: Tensor, kappa_q: Tensor) -> Tensor:
        loc_p, loc_q = (normalize(pad(x, (0, dim - used)), dim=-1) for x in (loc_p, loc_q))
        return kl_divergence(first(loc_p, kappa_p), second(loc_q, kappa_q))

    loc_p, loc_q = 2 * directions(2, used, seed=5), directions(2, used, seed=8)
    inputs = [x.requires_grad_() for x in (loc_p, double(0.8, 20.0), loc_q, double(3.0, 7.0))]
    assert gradcheck(divergence, inputs, rtol=1e-6, atol=1e-8)
    assert gradgradcheck(divergence, inputs, rtol=1e-6, atol=1e-7)


@families
@pytest.mark.parametrize("dim", [2, 3, 64])
@pytest.mark.parametrize("kappa", [0.0, 0.4, 3.0, 1e4])
def test_it_is_least_at_itself(family: type, dim: int, kappa: float) -> None:
    """All derivatives of KL(p‖q) vanish at p = q."""
    free = (3 * directions(dim, seed=4)).requires_grad_(), double(kappa).requires_grad_()
    q = family(normalize(directions(dim, seed=4), dim=-1), double(kappa))
    for p_first in (True, False):
        p = family(normalize(free[0], dim=-1), free[1])
        value = kl_divergence(p, q) if p_first else kl_divergence(q, p)
        in_loc, in_kappa = torch.autograd.grad(value.sum(), free)
        bend = (
            (dim - 1) * kappa**2 if family is SphericalCauchy else kappa
        )  # about the second derivative in loc
        assert in_loc.abs().max() <= 1e-12 * max(1.0, bend)
        assert in_kappa.abs().max() <= 1e-14


@pairs
def test_blocks_change_nothing(first: type, second: type) -> None:
    loc_p, loc_q = directions(50, 42, seed=1), directions(50, 42, seed=2)
    kappa_p, kappa_q = 50 * torch.rand(2, 50, dtype=DOUBLE)

    def with_gradients() -> tuple[Tensor, ...]:
        leaves = [x.clone().requires_grad_() for x in (loc_p, kappa_p, loc_q, kappa_q)]
        value = kl_divergence(first(*leaves[:2]), second(*leaves[2:]))
        return value.detach(), *torch.autograd.grad(value.sum(), leaves)

    expected = with_gradients()
    with block_limit(64):
        torch.testing.assert_close(with_gradients(), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dim", [2, 3, 64, 768])
def test_the_closest_von_mises_fisher(dim: int) -> None:
    p = PowerSpherical(directions(dim, seed=1), double(1e-3, 0.5, 10.0, 1e3, 1e6))
    closest = p.closest_von_mises_fisher()
    torch.testing.assert_close(closest.mean, p.mean, rtol=1e-13, atol=1e-15)
    kappa = closest.concentration.detach().requires_grad_()
    least = kl_divergence(p, VonMisesFisher(p.loc, kappa))
    (slope,) = torch.autograd.grad(least.sum(), kappa)
    assert slope.abs().max() <= 1e-14
    for other in (
        VonMisesFisher(p.loc, kappa * 1.01),
        VonMisesFisher(p.loc, kappa * 0.99),
        VonMisesFisher(normalize(p.loc + 0.05 * directions(dim, seed=2), dim=-1), kappa),
    ):
        assert (kl_divergence(p, other) > least).all()


@families
@pytest.mark.parametrize("dim", [2, 3, 5, 64, 768])
def test_inverse_of_the_mean_length(family: type, dim: int) -> None:
    """A rounding of the length moves κ by itself over κ times its derivative, in roundings."""
    kappa = torch.logspace(-6, 8, 29, dtype=DOUBLE).requires_grad_()
    value = family.family.mean_cosine(kappa, dim)
    (slope,) = torch.autograd.grad(value.sum(), kappa)
    value, kappa = value.detach(), kappa.detach()
    found = family.from_mean_length(directions(dim), value)
    torch.testing.assert_close(found.mean.norm(dim=-1), value, rtol=1e-14, atol=0)
    error = (found.concentration / kappa - 1).abs()
    assert (error <= 1e-14 + 4 * torch.finfo(DOUBLE).eps * value / (kappa * slope)).all()


@families
@dtypes
@pytest.mark.parametrize("dim", [2, 3, 64])
def test_inverse_of_the_divergence_near_zero(family: type, dim: int, dtype: torch.dtype) -> None:
    """KL = ½ I κ² for small κ, with the Fisher information I at 0. So dκ/dKL = 1/√(2I KL), and +∞ at 0."""
    nats = torch.tensor([0.0, 1e-20, 1e-12], dtype=dtype)

    def kappa(nats: Tensor) -> Tensor:
        return family.from_kl(torch.eye(dim, dtype=dtype)[0], nats, validate_args=False).concentration

    information = derived.information(family.family, torch.zeros((), dtype=dtype), dim)
    torch.testing.assert_close(kappa(nats), (2 * nats / information).sqrt(), rtol=2e-5, atol=0)
    leaf = nats.clone().requires_grad_()
    for slope in (
        torch.autograd.grad(kappa(leaf).sum(), leaf)[0],
        vmap(grad(kappa))(nats),
        jvp(kappa, (nats,), (torch.ones_like(nats),))[1],
    ):
        torch.testing.assert_close(slope, 1 / (2 * nats * information).sqrt(), rtol=2e-5, atol=0)
