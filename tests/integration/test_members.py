"""Every member of every family in every mode of torch: the numbers and derivatives of eager mode."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.func import grad, jacrev, vmap

from helpers.examples import BRAIN, DOUBLE, FLOAT, directions, dtypes, families
from helpers.members import CLOSEST, DRAWS, MOMENTS, SMOOTH, TAILS, Member, members, naming
from helpers.modes import (
    CLOSE,
    COPIES,
    EXACT,
    FORWARD,
    GRADIENTS,
    HESSIANS,
    Mode,
    double_by_default,
    gradient,
    loss_of_direction,
    modes,
    of_parameters,
    with_gradients,
)
from powerspherical import (
    HypersphericalUniform,
    PowerSpherical,
    PowerSphericalMarginal,
    SphericalCauchy,
    SphericalCauchyMarginal,
    VonMisesFisher,
    VonMisesFisherMarginal,
)

DIM, HALF = 8, torch.float16
#: Exact in half precision.
KAPPAS = (0.5, 0.75, 4.0, 30.0)

halves = pytest.mark.parametrize("dtype", [BRAIN, HALF], ids=["bfloat16", "float16"])


def make(family: type, dtype: torch.dtype = DOUBLE, requires_grad: bool = False, device: str = "cpu"):
    loc = directions(len(KAPPAS), DIM, dtype=dtype).to(device)
    kappa = torch.tensor(KAPPAS, dtype=dtype, device=device)
    return family(loc.requires_grad_(requires_grad), kappa.requires_grad_(requires_grad), validate_args=True)


def row(q: Distribution) -> Distribution:
    """Return the second distribution of the batch alone."""
    return type(q)(q.loc[1], q.concentration[1])


def seeded(mode: Callable, *args: object) -> tuple[Tensor, ...]:
    torch.manual_seed(4)
    result = mode(*args)
    return result if isinstance(result, tuple) else (result,)


def eager(member: Member, q: Distribution) -> tuple[Tensor, ...]:
    return with_gradients(member)(q)


@modes(EXACT)
@families
@pytest.mark.parametrize("dtype", [FLOAT, DOUBLE, BRAIN], ids=str)
def test_modes_that_change_nothing(mode: Mode, family: type, dtype: torch.dtype) -> None:
    """With gradients, where the mode has the parameters of ``q``."""
    q = make(family, dtype, requires_grad=mode is EXACT["autocast"])
    for name, member in (members(family) | DRAWS).items():
        with naming(name):
            for actual, expected in zip(seeded(mode, member, q), seeded(eager, member, q), strict=False):
                torch.testing.assert_close(actual, expected, rtol=0, atol=0)


WITHOUT_GRADIENTS = [CLOSE[name] for name in ("no_grad", "inference_mode")]


@modes(CLOSE)
@families
@dtypes
def test_values(mode: Mode, family: type, dtype: torch.dtype) -> None:
    q = make(family, dtype, requires_grad=mode is not CLOSE["expand"])
    for name, member in members(family).items():
        with naming(name):
            actual, expected = seeded(mode, member, q), seeded(eager, member, q)
            if name != "mode":  # the parameter itself
                assert actual[0].requires_grad == (mode not in WITHOUT_GRADIENTS and q.loc.requires_grad)
            detached = [x.detach() for x in actual], [x.detach() for x in expected[: len(actual)]]
            torch.testing.assert_close(*detached)


@modes(GRADIENTS)
@families
def test_gradients(mode: Mode, family: type) -> None:
    q = make(family)
    for name, member in members(family).items():
        with naming(name):
            torch.testing.assert_close(mode(member, q), gradient(member, q))


@modes(FORWARD)
@families
def test_gradients_in_forward_mode(mode: Mode, family: type) -> None:
    q = make(family)
    for name, member in SMOOTH.items():
        with naming(name):
            torch.testing.assert_close(mode(member, q), gradient(member, q), rtol=1e-8, atol=1e-10)


@families
def test_second_derivatives(family: type) -> None:
    """In κ as differences of the first derivative give them, and all as autograd gives them."""
    q = row(make(family))
    chosen = SMOOTH | {"mean": MOMENTS["mean"]} | (CLOSEST if family is PowerSpherical else {})
    for name, member in chosen.items():
        with naming(name):
            function = loss_of_direction(member, family)
            leaves = q.loc.clone().requires_grad_(), q.concentration.clone().requires_grad_()
            expected = torch.autograd.functional.hessian(function, leaves)
            for mode in HESSIANS.values():
                torch.testing.assert_close(mode(member, q), expected, rtol=1e-7, atol=1e-9)
            ahead, behind = (
                grad(function, argnums=1)(q.loc, q.concentration + shift) for shift in (1e-4, -1e-4)
            )
            torch.testing.assert_close(expected[1][1], (ahead - behind) / 2e-4, rtol=1e-5, atol=1e-8)


@families
@pytest.mark.parametrize("name", TAILS)
def test_second_derivatives_are_refused(family: type, name: str) -> None:
    """What is differentiable once says so, where a second derivative of zero would be a wrong number."""
    function, q = of_parameters(TAILS[name], family), row(make(family))
    with pytest.raises((RuntimeError, NotImplementedError), match=r"once|twice|second"):
        jacrev(jacrev(function, argnums=1), argnums=1)(q.loc, q.concentration)
    leaf = q.concentration.clone().requires_grad_()
    (slope,) = torch.autograd.grad(function(q.loc, leaf) + leaf.square(), leaf, create_graph=True)
    with pytest.raises((RuntimeError, NotImplementedError), match=r"once|twice|second"):
        torch.autograd.grad(slope, leaf)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@families
@dtypes
def test_values_on_cuda(family: type, dtype: torch.dtype) -> None:
    q = make(family, dtype)
    tolerance = 1e-11 if dtype == DOUBLE else 2e-5
    for name, member in members(family).items():
        with naming(name):
            actual = member(make(family, dtype, device="cuda"))
            assert actual.device.type == "cuda"
            torch.testing.assert_close(actual.cpu(), member(q), rtol=tolerance, atol=tolerance)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@families
def test_autocast_on_cuda(family: type) -> None:
    q = make(family, FLOAT, device="cuda")
    for name, member in (members(family) | DRAWS).items():
        with naming(name):
            expected = seeded(eager, member, q)
            with torch.autocast("cuda", dtype=HALF):
                actual = seeded(eager, member, q)
            torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@families
@halves
def test_half_precision(family: type, dtype: torch.dtype) -> None:
    """Computed in float32 from directions of length one, and rounded only where samples are."""
    q = make(family, dtype)
    exact = family(torch.nn.functional.normalize(q.loc.double(), dim=-1), q.concentration.double())
    eps = torch.finfo(dtype).eps
    for name, member in members(family).items():
        with naming(name):
            actual, expected = member(q), member(exact)
            rounded = name in MOMENTS or name in CLOSEST
            assert actual.dtype == (dtype if rounded else FLOAT)
            rtol, atol = (eps, 1e-3) if rounded else (3e-5, 3e-5)
            torch.testing.assert_close(actual.double(), expected, rtol=rtol, atol=atol)


@families
@halves
def test_gradients_in_half_precision(family: type, dtype: torch.dtype) -> None:
    q = make(family, dtype, requires_grad=True)
    loss = q.rsample((5,)).float().sum() + q.entropy().sum() + members(family)["KL to PS"](q).sum()
    for found in torch.autograd.grad(loss, (q.loc, q.concentration)):
        assert found.dtype == dtype
        assert found.isfinite().all()
    assert type(q.marginal)(DIM, q.concentration).sample().dtype == dtype


@families
@pytest.mark.parametrize(
    ("loc_dtype", "kappa"),
    [
        (BRAIN, 4.0),
        (BRAIN, 4),
        (BRAIN, torch.tensor(4.0)),
        (BRAIN, torch.tensor(4.0, dtype=DOUBLE)),
        (BRAIN, torch.tensor([4.0])),
        (BRAIN, torch.tensor([4.0], dtype=HALF)),
        (FLOAT, torch.tensor([4.0], dtype=BRAIN)),
        (HALF, torch.tensor([4.0], dtype=DOUBLE)),
    ],
    ids=str,
)
def test_result_type(family: type, loc_dtype: torch.dtype, kappa: Tensor | float) -> None:
    loc = directions(3, DIM).to(loc_dtype)
    q = family(loc, kappa, validate_args=True)
    dtype = torch.result_type(loc, kappa)
    results = [q.sample(), q.rsample(), *(moment(q) for moment in MOMENTS.values())]
    assert {result.dtype for result in results} == {dtype}
    assert q.entropy().dtype == torch.promote_types(dtype, FLOAT)
    # Nothing is lost of a concentration with more digits than the directions have.
    unit = torch.nn.functional.normalize(loc.double(), dim=-1)
    expected = family(unit, torch.as_tensor(kappa).double()).entropy()
    torch.testing.assert_close(q.entropy().double(), expected.expand(3), rtol=1e-5, atol=1e-5)


def test_autocast_changes_nothing_for_the_uniform() -> None:
    def results() -> list[Tensor]:
        torch.manual_seed(4)
        prior = HypersphericalUniform(DIM)
        x = prior.sample((5,))
        return [x, prior.log_prob(x), prior.entropy(), prior.mean, prior.variance, prior.covariance_matrix]

    plain = results()
    with torch.autocast("cpu", dtype=BRAIN):
        assert all(map(torch.equal, results(), plain))


@families
def test_the_default_dtype_is_for_what_has_no_other(family: type) -> None:
    """A number takes the dtype of ``loc``."""
    with double_by_default():
        assert family(directions(3, dtype=FLOAT), 4.0).sample().dtype == FLOAT
        q = family(directions(3), 4.0)
        assert {q.sample().dtype, q.entropy().dtype, q.concentration.dtype} == {DOUBLE}
        prior, marginal = HypersphericalUniform(3), type(q.marginal)(3, 4.0)
        for p in (prior, marginal):
            assert {p.sample().dtype, p.entropy().dtype, p.mean.dtype} == {DOUBLE}
        assert HypersphericalUniform(3, dtype=FLOAT).sample().dtype == FLOAT
    assert HypersphericalUniform(3).sample().dtype == FLOAT


LOC, CONCENTRATION = directions(3, 4), torch.tensor([0.0, 5.0, 100.0], dtype=DOUBLE)
#: Distributions of other kinds than those above.
ORIGINALS: dict[str, Distribution] = {
    "unchecked": VonMisesFisher(LOC, CONCENTRATION, validate_args=False),
    "a number as concentration": VonMisesFisher(LOC, 2.0, validate_args=True),
    "expanded": PowerSpherical(directions(4), 3.0, validate_args=True).expand((2, 3)),
    "uniform": HypersphericalUniform(4, validate_args=True),
    "uniform, expanded": HypersphericalUniform(4, dtype=DOUBLE, validate_args=False).expand((2, 3)),
    "Power Spherical marginal": PowerSphericalMarginal(4, CONCENTRATION, validate_args=True),
    "von Mises–Fisher marginal": VonMisesFisherMarginal(4, CONCENTRATION.float(), validate_args=False),
    "spherical Cauchy marginal": SphericalCauchyMarginal(4, CONCENTRATION, validate_args=True),
    "marginal of a distribution": SphericalCauchy(LOC, CONCENTRATION).marginal,
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("original", ORIGINALS.values(), ids=ORIGINALS)
def test_copies(original: Distribution, copied: Callable[[Distribution], Distribution]) -> None:
    twin = copied(original)
    assert type(twin) is type(original)
    assert (twin.batch_shape, twin.event_shape) == (original.batch_shape, original.event_shape)
    assert twin._validate_args == original._validate_args
    assert repr(twin) == repr(original)
    (x,), (y,) = (seeded(q.sample, (4,)) for q in (original, twin))
    assert torch.equal(y, x)
    assert torch.equal(twin.log_prob(x), original.log_prob(x))
    assert torch.equal(twin.entropy(), original.entropy())


def test_deepcopy_shares_nothing() -> None:
    original = PowerSpherical(LOC, CONCENTRATION.clone())
    twin = copy.deepcopy(original)
    expected = twin.entropy()
    original.concentration.fill_(7.0)
    assert torch.equal(twin.entropy(), expected)


def test_transforms_of_the_uniform() -> None:
    prior, x = HypersphericalUniform(DIM, dtype=DOUBLE, validate_args=True), directions(4, DIM)
    torch.testing.assert_close(vmap(prior.log_prob)(x), prior.log_prob(x))
    torch.testing.assert_close(grad(prior.log_prob)(x[0]), torch.zeros(DIM, dtype=DOUBLE))
    draws = vmap(lambda _: prior.sample((2,)), randomness="different")(x)
    assert draws.shape == (4, 2, DIM)
    assert len(draws.flatten(1).unique(dim=0)) == 4


def test_expand_under_vmap() -> None:
    draw = vmap(lambda loc: PowerSpherical(loc, 3.0).expand((2,)).rsample(), randomness="different")
    assert draw(directions(4, DIM)).shape == (4, 2, DIM)
