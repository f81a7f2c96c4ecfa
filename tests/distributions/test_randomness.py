"""Draws from a seed of their own: they repeat, and disturb no others, whatever happens."""

import pytest
import torch

from powerspherical.distributions.randomness import seeded

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


@pytest.mark.parametrize("name", DEVICES)
def test_draws_repeat_and_others_go_on(name: str) -> None:
    device = torch.device(name)

    def draw() -> torch.Tensor:
        return torch.rand(3, device=device)

    torch.manual_seed(1)
    undisturbed = [draw(), draw()]
    torch.manual_seed(1)
    before = draw()
    inside = []
    for _ in range(2):
        with seeded(5, device):
            inside.append(draw())
    assert torch.equal(inside[0], inside[1])
    assert torch.equal(torch.stack([before, draw()]), torch.stack(undisturbed))


def test_an_error_inside_changes_nothing() -> None:
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError), seeded(5, torch.device("cpu")):
        torch.rand(-1)
    assert torch.equal(torch.get_rng_state(), before)


def test_only_the_generator_of_the_device_is_set(monkeypatch) -> None:
    """Where ``torch.manual_seed`` would also set those of every GPU."""

    def refuse(*_: object) -> None:
        raise AssertionError("seeded a GPU")

    monkeypatch.setattr(torch.cuda, "manual_seed_all", refuse)
    with seeded(5, torch.device("cpu")):
        torch.rand(3)
