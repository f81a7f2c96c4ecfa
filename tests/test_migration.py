"""The migration page: its tables and blocks run, and ours compute what theirs do."""

from __future__ import annotations

import difflib
import importlib
import json
import re
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.distributions import kl_divergence

from helpers.examples import directions
from powerspherical import HypersphericalUniform, PowerSpherical, compat
from powerspherical_paper.baselines import formulas
from powerspherical_paper.baselines.published import REFERENCE, PublishedPowerSpherical, has_reference

PAGE = Path(__file__).parents[1] / "docs" / "migration.md"
TEXT = PAGE.read_text(encoding="utf-8")
CASES, WORKAROUNDS = "## Case by case", "## Workarounds that you can remove"
TABLE = re.compile(r"(?m)^\| theirs \| ours \|.*\n\|---.*\n(?P<rows>(?:\|.*\n)+)")
STEP = re.compile(
    r"(?ms)^### (?P<case>[^\n]*)\n|^```(?P<language>python|py)\n(?P<block>.*?)^```"
    rf"|(?-s:{TABLE.pattern.removeprefix('(?m)')})"
)


class TheirPowerSpherical(PublishedPowerSpherical):
    """The Power Spherical distribution by the published formulas, with the arguments of the authors' package."""

    def __init__(self, loc: Tensor, scale: Tensor) -> None:
        super().__init__(loc, scale)
        self.scale, self.dim = scale, scale.new_tensor(float(loc.shape[-1]))

    def log_prob(self, value: Tensor) -> Tensor:
        return formulas.power_spherical_log_density(self.dim, self.scale, (self.loc * value).sum(-1))

    def entropy(self) -> Tensor:
        return formulas.power_spherical_entropy(self.dim, self.scale)


def reference() -> ModuleType:
    """The authors' package, or the stand-in where it is not installed."""
    if has_reference():
        return importlib.import_module(REFERENCE)
    module = ModuleType(REFERENCE)
    module.PowerSpherical, module.HypersphericalUniform = TheirPowerSpherical, compat.HypersphericalUniform
    return module


class Case(NamedTuple):
    """The lines of a case before and after the change, and the names that they define."""

    before: str
    after: str
    theirs: dict[str, Any]
    ours: dict[str, Any]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """The cases by title, after a run of all blocks and of what the tables call ours, in order in one namespace.

    A block of theirs runs in a copy of it.
    """
    torch.manual_seed(0)
    namespace: dict[str, Any] = {}
    found: dict[str, Case] = {}
    title, before, theirs = "", "", {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, REFERENCE, reference())
        patch.chdir(tmp_path_factory.mktemp("page"))
        for step in STEP.finditer(TEXT):
            if step["case"]:
                title = step["case"]
            elif step["rows"]:
                for row in step["rows"].splitlines():
                    ours = re.fullmatch(r"`([^`]+)`", row.split(" | ")[1])
                    assert ours, row
                    assert eval(ours[1], namespace) is not None, row
            elif step["language"] == "py":
                before, theirs = step["block"], dict(namespace)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)  # SciPy divides by zero
                    exec(compile(before, str(PAGE), "exec"), theirs)
            else:
                exec(compile(step["block"], str(PAGE), "exec"), namespace)
                if title:
                    found[title] = Case(before, step["block"], theirs, dict(namespace))
    return found


def case_titles() -> list[str]:
    return re.findall(r"(?m)^### (.*)$", TEXT.partition(CASES)[2].partition(WORKAROUNDS)[0])


def assigned(block: str) -> set[str]:
    """The names that a block assigns."""
    return {name.strip() for names in re.findall(r"(?m)^ *([\w, ]+) = ", block) for name in names.split(",")}


#: Titles of cases, with the names that do not have their values. Draws have their shape only.
DRAWN = {"z", "action", "score", "directions"}
DIFFERENT = {
    "Latents of language models": {"step", "noise"},  # simulated there; another kind of noise
    "Uncertainty of language models": {"direction", "spread"},
}


@pytest.mark.slow
@pytest.mark.parametrize("title", case_titles())
def test_both_compute_the_same(page: dict[str, Case], title: str) -> None:
    """With five new lines at most."""
    case = page[title]
    compared = difflib.ndiff(case.before.splitlines(), case.after.splitlines())
    assert 1 <= sum(line.startswith("+ ") and line.strip() != "+" for line in compared) <= 5
    names = assigned(case.before) & assigned(case.after) - DIFFERENT.get(title, set()) - {"q", "policy"}
    assert names or title in ("Latent SDEs", "Uncertainty of language models")
    for name in names - {"prior"}:
        theirs, ours = case.theirs[name], case.ours[name]
        assert (theirs.shape, theirs.dtype) == (ours.shape, ours.dtype), name
        if name not in DRAWN:
            # Their rate is a difference of entropies of about 80 nats, in float32.
            torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=1e-4)


@pytest.mark.slow
def test_particular_cases(page: dict[str, Case]) -> None:
    """What the text says about single cases."""
    with pytest.raises(ValueError, match="unit"):
        PowerSpherical(page["Images, channels first"].theirs["loc_map"], 1.0, validate_args=True)
    latents = page["Latents of language models"]
    torch.testing.assert_close(latents.ours["rate"], torch.full((2, 10), 32.0))
    torch.testing.assert_close(latents.ours["step"], latents.theirs["step"], rtol=0.05, atol=1.0)
    fitted = page["Uncertainty of language models"]
    assert fitted.theirs["spread"] < 1e-7
    assert 300 < fitted.ours["spread"] < 420


def test_the_text_names_the_slower_cases() -> None:
    rows = json.loads((PAGE.parents[1] / "results" / "swaps.json").read_text(encoding="utf-8"))["results"]
    titles = {row["case"].partition(", ")[0] for row in rows}
    assert titles <= {title.partition(",")[0] for title in case_titles()}
    slower = [row["case"] for row in rows if row["faster"] < 1]
    named = re.findall(r"(?m)^- \*(.*)\*:", TEXT.partition("## Time of each case")[2])
    assert len(slower) == len(named)
    assert all(any(name.lower() in case.lower() for case in slower) for name in named)


def test_the_published_formulas_need_the_workarounds() -> None:
    """Close to ±e₁, at antipodes, and in float32. Ours do not: `test_anchors.py`, `test_log_prob.py`, `test_kl.py`."""
    loc, nine = directions(200, 16, dtype=torch.float32), torch.tensor(9.0)
    assert formulas.power_spherical(torch.eye(5)[:1].expand(100, 5), torch.full((100,), 10.0)).isnan().any()
    cosines = -(loc * loc).sum(-1)
    assert not formulas.power_spherical_log_density(torch.tensor(16.0), nine, cosines).isfinite().all()
    kappa = torch.logspace(-3, 6, 50)
    exact = kl_divergence(PowerSpherical(directions(512), kappa.double()), HypersphericalUniform(512))
    single = formulas.power_spherical_kl_uniform(torch.tensor(512.0), kappa)
    assert ((single - exact) / exact).abs().max() > 0.01
