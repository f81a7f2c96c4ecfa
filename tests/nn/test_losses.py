"""The contrastive loss: its formula term by term, its gradients and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import kl_divergence

from helpers.examples import BRAIN, DOUBLE, FLOAT, directions, families
from powerspherical import HypersphericalUniform, PowerSpherical, VonMisesFisher
from powerspherical.nn import ProbabilisticEmbeddingLoss, VonMisesFisherHead

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
    found = ProbabilisticEmbeddingLoss(0.7, rate=0.1)(q, x, INDEX)
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
    ProbabilisticEmbeddingLoss(rate=0.1)(PowerSpherical(loc, kappa), x, INDEX).backward()
    assert all(leaf.grad.isfinite().all() and leaf.grad.any() for leaf in leaves)


def test_a_query_that_does_not_predict_its_target_spreads_out() -> None:
    """Two queries have a target each. A third goes to one of two targets at random, and points to the first."""
    targets = torch.eye(4, dtype=DOUBLE)
    index = torch.tensor([0, 1, 2, 3])
    kind = torch.tensor([0, 1, 2, 2])
    raw = torch.full((3,), 5.0, dtype=DOUBLE, requires_grad=True)
    for symmetric in (True, False):
        loss = ProbabilisticEmbeddingLoss(rate=0.02, symmetric=symmetric)
        optimiser = torch.optim.Adam([raw], lr=0.2)
        for _ in range(100):
            optimiser.zero_grad()
            kappa = torch.nn.functional.softplus(raw)
            loss(PowerSpherical(targets[kind], kappa[kind]), targets, index).backward()
            optimiser.step()
        clear, other, ambiguous = kappa.tolist()
        assert clear == pytest.approx(other, rel=1e-6)
        assert ambiguous < clear / 4


def test_autocast_leaves_the_loss_in_single_precision() -> None:
    head, features, targets = VonMisesFisherHead(7, DIM), torch.randn(B, 7), directions(B, DIM, dtype=FLOAT)
    with torch.autocast("cpu", BRAIN):
        q = head(features)
        found = ProbabilisticEmbeddingLoss()(q, targets)
    assert found.dtype == FLOAT
    assert torch.equal(found, ProbabilisticEmbeddingLoss()(q, targets))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")
def test_compilation() -> None:
    head, features, targets = VonMisesFisherHead(7, DIM), torch.randn(B, 7), directions(B, DIM, dtype=FLOAT)
    loss = ProbabilisticEmbeddingLoss()
    expected = loss(head(features), targets)
    compiled = torch.compile(lambda h: loss(head(h), targets), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(features), expected)


def test_what_it_refuses() -> None:
    loss, q, x = ProbabilisticEmbeddingLoss(), queries(), directions(N, DIM)
    for options in ({"temperature": 0.0}, {"temperature": math.nan}, {"rate": -1.0}):
        with pytest.raises(ValueError, match=r"must be"):
            ProbabilisticEmbeddingLoss(**options)
    with pytest.raises(ValueError, match=r"6 queries and 4 targets do not pair up: pass index"):
        loss(q, x)
    with pytest.raises(
        ValueError, match=r"index must hold integers of shape \(6,\), got.*int64 of shape \(2,\)"
    ):
        loss(q, x, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"index must hold integers.*float32"):
        loss(q, x, INDEX.float())
    with pytest.raises(
        ValueError, match=r"index must be a tensor of 6 integers, got list: pass torch.tensor"
    ):
        loss(q, x, INDEX.tolist())
    for wrong in (-1, -100, N):  # torch's cross-entropy would ignore -100
        with pytest.raises(ValueError, match=rf"index must lie in \[0, 3\], but has 1 .* such as {wrong}$"):
            loss(q, x, torch.cat((INDEX[1:], torch.tensor([wrong]))))
    with pytest.raises(ValueError, match=r"queries must have a batch shape \(B,\), got \(2, 3\)"):
        loss(PowerSpherical(directions(2, 3, DIM), 1.0), x)
    with pytest.raises(ValueError, match=r"targets must have one batch axis.*got \(2, 3\)"):
        loss(q, directions(2, 3, DIM), INDEX)
    with pytest.raises(ValueError, match=r"targets must be a tensor or distributions.*list"):
        loss(q, [1.0])
    with pytest.raises(
        ValueError, match=r"queries must be distributions, such as PowerSphericalHead returns, got Tensor"
    ):
        loss(x, x)


def test_repr() -> None:
    assert repr(ProbabilisticEmbeddingLoss(0.5)) == (
        "ProbabilisticEmbeddingLoss(temperature=0.5, symmetric=True, rate=0)"
    )
