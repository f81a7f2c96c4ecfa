"""Public names that moved: they still work, and a warning names what replaces them."""

from __future__ import annotations

import pytest
import torch

from powerspherical import families, kernels, sampling, special

MINUS, PLUS, KAPPA = torch.tensor([0.5, 1.2]), torch.tensor([1.5, 0.8]), torch.tensor([3.0, 0.5])
U, COMPLEMENT = torch.tensor([0.2, 0.7]), torch.tensor([0.8, 0.3])
DIM = 4


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("POWER_TILT", "POWER_SPHERICAL"),
        ("EXPONENTIAL_TILT", "VON_MISES_FISHER"),
        ("Tilt", "ExponentialFamily"),
    ],
)
def test_families_in_special(old: str, new: str) -> None:
    with pytest.warns(
        DeprecationWarning, match=rf"special\.{old} .*powerspherical\.families\.{new}"
    ) as caught:
        assert getattr(special, old) is getattr(families, new)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("family", [families.POWER_SPHERICAL, families.VON_MISES_FISHER], ids=repr)
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("log_tails", (MINUS, PLUS, KAPPA)),
        ("quantile", (U, COMPLEMENT, KAPPA)),
        ("mean_log1p_cosine", (KAPPA,)),
        ("mean_log1m_cosine", (KAPPA,)),
        ("misalignment", (KAPPA, U)),
    ],
)
def test_functions_of_a_family_in_special(family, name: str, arguments: tuple) -> None:
    with pytest.warns(DeprecationWarning, match=rf"special\.{name} .*the method {name} of the family"):
        function = getattr(special, name)
    torch.testing.assert_close(
        function(family, *arguments, DIM), getattr(family, name)(*arguments, DIM), rtol=0, atol=0
    )


def test_implicit_gradient() -> None:
    """dt/dκ, against differences of the quantile."""
    with pytest.warns(
        DeprecationWarning, match=r"implicit_gradient .*\(1-t²\) times the method implicit_slope"
    ):
        from powerspherical.special import implicit_gradient
    family = families.POWER_SPHERICAL
    minus, plus, kappa = (x.double() for x in (MINUS, PLUS, KAPPA))
    tails = (tail.exp() for tail in family.log_tails(minus, plus, kappa, DIM))
    below, above = tails
    ends = [family.quantile(below, above, kappa + step, DIM)[1] for step in (-1e-5, 1e-5)]
    gradient = implicit_gradient(family, minus, plus, kappa, DIM)
    torch.testing.assert_close(gradient, (ends[1] - ends[0]) / 2e-5, rtol=1e-6, atol=0)
    assert implicit_gradient(family, MINUS, PLUS, KAPPA, DIM).dtype == torch.float32


@pytest.mark.parametrize("name", ["power_spherical", "von_mises_fisher"])
def test_draws_in_kernels(name: str) -> None:
    with pytest.warns(
        DeprecationWarning, match=rf"kernels\.{name} .*sampling\.draw\(.*{name.upper()}"
    ) as caught:
        function = getattr(kernels, name)
    assert caught[0].filename == __file__
    loc, seeded = torch.eye(DIM)[:2], torch.Generator()
    old = function(loc, KAPPA, (3, 2), 7, generator=seeded.manual_seed(1))
    new = sampling.draw(families.family_named(name), loc, KAPPA, (3, 2), 7, generator=seeded.manual_seed(1))
    assert torch.equal(old, new)


def test_uniform_in_kernels() -> None:
    with pytest.warns(DeprecationWarning, match=r"kernels\.uniform .*sampling\.uniform"):
        assert kernels.uniform is sampling.uniform


@pytest.mark.parametrize("module", [special, kernels], ids=lambda module: module.__name__)
def test_names_that_never_were(module) -> None:
    assert not hasattr(module, "no_such_name")
