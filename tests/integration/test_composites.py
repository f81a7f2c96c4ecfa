"""Functions that ``torch.compile`` records as one operator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributions import kl_divergence

from powerspherical import HypersphericalUniform, PowerSpherical
from powerspherical._torch import composites
from powerspherical._torch.modes import is_compiling, is_in_aot_autograd
from powerspherical.distributions.rate import rate
from powerspherical.families import POWER_SPHERICAL, Family
from powerspherical.nn import SphericalBottleneck
from powerspherical.sampling import draw


@pytest.fixture(autouse=True)
def _reset():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def recorded(function: Callable, *inputs: Tensor) -> list[str]:
    """Return the names of our operators in the graph of the compiled function, which must run."""
    found: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: list) -> Callable:
        targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
        found.extend(x.__name__ for x in targets if isinstance(x, torch._ops.OpOverload))
        return graph.forward

    torch.compile(function, backend=backend, fullgraph=True)(*inputs)
    return found


def test_a_draw_and_its_divergence() -> None:
    def step(loc: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
        q = PowerSpherical(loc, kappa, validate_args=False)
        return q.rsample(), kl_divergence(q, HypersphericalUniform(3))

    names = recorded(step, torch.eye(3), torch.ones(3))
    assert names == ["points.default", "relative_entropy.default"]


@pytest.mark.parametrize("fixed", [{}, {"nats": 2.0}], ids=["", "fixed rate"])
def test_a_bottleneck(fixed) -> None:
    names = recorded(SphericalBottleneck(5, dim=3, **fixed), torch.randn(4, 5))
    assert names == (["parameters.default", "points.default"] if fixed else ["latents.default"])


def test_other_families_are_traced() -> None:
    """The digest does not cover their code, so a graph on disk could be out of date."""

    class Doubled(type(POWER_SPHERICAL)):
        def relative_entropy(self, kappa: Tensor, dim: int) -> Tensor:
            return 2 * super().relative_entropy(kappa, dim)

    def rate_of(family: Family) -> Callable[[Tensor], Tensor]:
        return lambda kappa: rate(family, kappa, 3)

    kappa = torch.tensor([1.0, 10.0])
    assert recorded(rate_of(POWER_SPHERICAL), kappa) == ["relative_entropy.default"]
    assert recorded(rate_of(Doubled()), kappa) == []
    torch.testing.assert_close(rate_of(Doubled())(kappa), 2 * rate_of(POWER_SPHERICAL)(kappa))


def test_transforms_see_the_operations() -> None:
    def slope(kappa: Tensor) -> Tensor:
        return torch.func.grad(lambda k: rate(POWER_SPHERICAL, k, 3).sum())(kappa)

    kappa = torch.tensor([1.0, 10.0])
    _, expected = POWER_SPHERICAL.relative_entropy_and_slope(kappa, 3)
    compiled = torch.compile(slope, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(kappa), expected)


def test_the_digest_changes_with_the_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(composites, "_PACKAGE", tmp_path)
    digests = set()
    for code in ("x = 1", "x = 2"):
        (tmp_path / "module.py").write_text(code)
        digests.add(composites._digest.__wrapped__())
    assert len(digests) == 2


@pytest.mark.parametrize("backend", ["aot_eager", "aot_eager_decomp_partition"])
def test_draws_of_one_graph_differ(backend: str) -> None:
    """The compiler merges equal calls, unless it knows that they are random."""

    def two(loc: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
        return draw(POWER_SPHERICAL, loc, kappa), draw(POWER_SPHERICAL, loc, kappa)

    kappa = torch.ones((), requires_grad=True)
    first, second = torch.compile(two, backend=backend, fullgraph=True)(torch.eye(3)[0], kappa)
    assert (first != second).all()


def test_stages() -> None:
    """What the body of an operator is told, in eager mode, by the compiler, and by the export."""
    seen = []

    class Told(torch.nn.Module):
        def forward(self, kappa: Tensor) -> Tensor:
            return rate(POWER_SPHERICAL, kappa, 3)

    original = type(POWER_SPHERICAL).relative_entropy

    def told(self: Family, kappa: Tensor, dim: int) -> Tensor:
        seen.append((torch.compiler.is_dynamo_compiling(), is_compiling(), is_in_aot_autograd()))
        return original(self, kappa, dim)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(POWER_SPHERICAL), "relative_entropy", told)
        Told()(torch.ones(2))
        assert seen == [(False, False, False)]
        seen.clear()
        torch.compile(Told(), backend="aot_eager", fullgraph=True)(torch.ones(2, requires_grad=True))
        assert (False, True, True) in seen
        seen.clear()
        torch.export.export(Told(), (torch.ones(2),), strict=False)
        assert seen
        assert not any(in_aot for _, _, in_aot in seen)
