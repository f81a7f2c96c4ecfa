"""The contrastive loss: its formula term by term, its gradients and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import kl_divergence

from helpers.examples import BRAIN, DOUBLE, FLOAT, directions, families
from powerspherical import HypersphericalUniform, PowerSpherical, VonMisesFisher
from powerspherical.nn import ProbabilisticEmbeddingLoss, SphericalHead

B, N, DIM = 6, 4, 5
INDEX = torch.tensor([0, 3, 3, 1, 0, 3])


def queries(family: type = PowerSpherical, count: int = B) -> PowerSpherical:
    return family(directions(count, DIM), torch.linspace(0.5, 20.0, count, dtype=DOUBLE))


def by_loops(scores: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """The first two terms of the docstring without their factor ½."""
    first = second = torch.zeros((), dtype=DOUBLE)
    for i, y in enumerate(index.tolist()):
        rivals = [k for k in range(len(index)) if k == i or index[k] != y]
        first = first + scores[i].logsumexp(0) - scores[i, y]
        second = second + scores[rivals, y].logsumexp(0) - scores[i, y]
    return first / len(index), second / len(index)


@families
def test_the_formula_with_points(family: type) -> None:
    q, x = queries(family), directions(N, DIM, seed=2)
    scores = torch.stack([family(q.loc[i], q.concentration[i]).log_prob(x) for i in range(B)]) / 0.7
    first, second = by_loops(scores, INDEX)
    rate = kl_divergence(q, HypersphericalUniform(DIM)).mean()
    found = ProbabilisticEmbeddingLoss(0.7, beta=0.1)(q, x, INDEX)
    torch.testing.assert_close(found, (first + second) / 2 + 0.1 * rate)
    torch.testing.assert_close(ProbabilisticEmbeddingLoss(0.7, symmetric=False)(q, x, INDEX), first)


@families
def test_the_formula_with_distributions(family: type) -> None:
    q, p = queries(family), VonMisesFisher(directions(N, DIM, seed=2), 7.0)
    scores = -torch.stack([kl_divergence(p, family(q.loc[i], q.concentration[i])) for i in range(B)])
    first, second = by_loops(scores, INDEX)
    torch.testing.assert_close(ProbabilisticEmbeddingLoss()(q, p, INDEX), (first + second) / 2)


def test_pairs_by_default() -> None:
    q, x = queries(), directions(B, DIM, seed=2)
    loss = ProbabilisticEmbeddingLoss()
    torch.testing.assert_close(loss(q, x), loss(q, x, torch.arange(B, dtype=torch.int32)))


def test_gradients_reach_everything() -> None:
    loc, kappa, x = directions(B, DIM), torch.rand(B, dtype=DOUBLE), directions(N, DIM, seed=2)
    leaves = [v.requires_grad_() for v in (loc, kappa, x)]
    ProbabilisticEmbeddingLoss(beta=0.1)(PowerSpherical(loc, kappa), x, INDEX).backward()
    assert all(leaf.grad.isfinite().all() and leaf.grad.any() for leaf in leaves)


def test_a_query_that_does_not_predict_its_target_spreads_out() -> None:
    """Two queries have a target each. A third goes to one of two targets at random, and points to the first."""
    targets = torch.eye(4, dtype=DOUBLE)
    index = torch.tensor([0, 1, 2, 3])
    kind = torch.tensor([0, 1, 2, 2])
    raw = torch.full((3,), 5.0, dtype=DOUBLE, requires_grad=True)
    for symmetric in (True, False):
        loss = ProbabilisticEmbeddingLoss(beta=0.02, symmetric=symmetric)
        optimiser = torch.optim.Adam([raw], lr=0.2)
        for _ in range(100):
            optimiser.zero_grad()
            kappa = torch.nn.functional.softplus(raw)
            loss(PowerSpherical(targets[kind], kappa[kind]), targets, index).backward()
            optimiser.step()
        clear, other, ambiguous = kappa.tolist()
        assert clear == pytest.approx(other, rel=1e-6)
        assert ambiguous < clear / 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")
def test_autocast_and_compilation_change_nothing() -> None:
    head, features = SphericalHead(7, DIM, "spherical_cauchy"), torch.randn(B, 7)
    targets = directions(B, DIM, dtype=FLOAT)
    loss = ProbabilisticEmbeddingLoss()
    compiled = torch.compile(lambda h: loss(head(h), targets), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(features), loss(head(features), targets))
    with torch.autocast("cpu", BRAIN):
        q = head(features)
        inside = loss(q, targets)
    assert inside.dtype == FLOAT
    assert torch.equal(inside, loss(q, targets))


@pytest.mark.parametrize(
    "options", [{"temperature": 0.0}, {"temperature": math.nan}, {"beta": -1.0}], ids=str
)
def test_bad_options(options: dict) -> None:
    with pytest.raises(ValueError, match="must be"):
        ProbabilisticEmbeddingLoss(**options)


X = directions(N, DIM)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((queries(), X), "6 queries and 4 targets do not pair up: pass index"),
        ((queries(), X, INDEX[:2]), r"index must hold integers of shape \(6,\), got.*int64 of shape \(2,\)"),
        ((queries(), X, INDEX.float()), "index must hold integers.*float32"),
        ((queries(), X, INDEX.tolist()), "must be a tensor of 6 integers, got list: pass torch.tensor"),
        ((queries(), X, INDEX - 1), r"index must lie in \[0, 3\], but has 2 .* such as -1$"),
        ((queries(), X, INDEX.where(INDEX != 1, -100)), "has 1 .* such as -100$"),  # which torch would ignore
        ((queries(), X, INDEX + 1), r"index must lie in \[0, 3\], but has 3 .* such as 4$"),
        ((PowerSpherical(directions(2, 3, DIM), 1.0), X), r"queries .* a batch shape \(B,\), got \(2, 3\)"),
        ((queries(), directions(2, 3, DIM), INDEX), r"targets must have one batch axis.*got \(2, 3\)"),
        ((queries(), [1.0], INDEX), "targets must be a tensor or distributions.*list"),
        ((X, X), "queries must be distributions, such as SphericalHead returns, got Tensor"),
    ],
)
def test_bad_arguments(arguments: tuple, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ProbabilisticEmbeddingLoss()(*arguments)


def test_repr() -> None:
    assert repr(ProbabilisticEmbeddingLoss(0.5)) == (
        "ProbabilisticEmbeddingLoss(temperature=0.5, symmetric=True, beta=0)"
    )
