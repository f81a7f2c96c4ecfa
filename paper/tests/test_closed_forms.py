import numpy as np
import pytest
import torch

from powerspherical_paper import closed_forms
from powerspherical_paper.maps import Grid


def test_the_grid_is_that_of_the_table():
    cells = closed_forms.grid()
    for family in closed_forms.accuracy.FAMILIES:
        table = closed_forms.accuracy.cells(family)
        assert [each.dim for each in table] == cells.dims
        assert all(each.kappa.tolist() == cells.concentrations for each in table)
    assert (cells.dims[0], cells.dims[-1], cells.concentrations[-1]) == (2, 10**7, 10**9)


@pytest.mark.parametrize("family", closed_forms.FAMILIES.values(), ids=closed_forms.FAMILIES)
def test_the_published_formulas_are_right_where_nothing_cancels(family):
    """In float64 and for moderate d and κ: the maps show rounding errors, not mistakes in our transcription."""
    dim, kappa, one_minus_t, exact = closed_forms.accuracy.cells(family.name)[2]
    moderate = kappa <= 100
    found = family.evaluate("published", dim, kappa[moderate], one_minus_t[moderate])
    for value, true in zip(found, exact, strict=True):
        torch.testing.assert_close(value, true[moderate], rtol=1e-12, atol=1e-12)


def test_every_formula_computes_in_the_type_it_is_given():
    for family in closed_forms.FAMILIES.values():
        for who, dtype in closed_forms.METHODS.values():
            kappa, c = torch.tensor([3.0], dtype=dtype), torch.tensor([0.25], dtype=dtype)
            assert {value.dtype for value in family.evaluate(who, 5, kappa, c)} == {dtype}


@pytest.mark.slow
def test_maps_are_laid_out_by_concentration_and_dimension(monkeypatch):
    """A wrong value in one cell shows up in that cell."""

    def wrong(family, dim, kappa, one_minus_t):
        values = right(family, dim, kappa, one_minus_t)
        here = (kappa == 30) & (dim == 1000)
        return closed_forms.accuracy.Values(
            torch.where(here, torch.nan, values.kl_uniform), values.log_density
        )

    right = closed_forms.accuracy.evaluate
    monkeypatch.setattr(closed_forms.accuracy, "evaluate", wrong)
    maps, cells = closed_forms.errors(), closed_forms.grid()
    assert cells.at(~np.isfinite(maps["ps/kl/ours_float64"])) == [[1000, 30]]
    assert np.isfinite(maps["ps/log_density/ours_float64"]).all()
    results = {key: closed_forms.worst(values, cells) for key, values in maps.items()}
    assert not closed_forms.passes(results)


def test_worst():
    cells = Grid.of([2, 3], [1, 10])
    one = closed_forms.worst(np.array([[1e-7, np.inf], [2e-7, 0]]), cells)
    assert one == {"cells": 4, "not_finite": 1, "worst": 2e-7, "at": [2, 10]}
    none = closed_forms.worst(np.full((2, 2), np.inf), cells)
    assert none == {"cells": 4, "not_finite": 4, "worst": None, "at": None}
    assert not closed_forms.passes({"ps/kl/ours_float32": none})


def test_labels():
    assert closed_forms.label("vmf/kl/ours_float32") == "vMF KL to uniform, ours, float32"
