"""The migration page: its tables and blocks run, ours beside theirs, and no workaround that it lists is needed."""

from __future__ import annotations

import difflib
import importlib
import json
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import numpy as np
import onnxruntime
import pytest
import scipy.stats
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.distributions import Beta, Distribution, kl_divergence, register_kl
from torch.nn.functional import normalize, softplus

from helpers.examples import directions
from powerspherical import HypersphericalUniform, PowerSpherical
from powerspherical.nn import SphericalBottleneck
from powerspherical_paper.baselines import formulas
from powerspherical_paper.baselines.published import REFERENCE, has_reference

PAGE = Path(__file__).parents[1] / "docs" / "migration.md"
TEXT = PAGE.read_text(encoding="utf-8")
CASES, WORKAROUNDS = "## Case by case", "## Workarounds that you can remove"
TABLE = re.compile(r"(?m)^\| theirs \| ours \|.*\n\|---.*\n(?P<rows>(?:\|.*\n)+)")
STEP = re.compile(
    r"(?ms)^### (?P<case>[^\n]*)\n|^```(?P<language>python|py)\n(?P<block>.*?)^```"
    rf"|(?-s:{TABLE.pattern.removeprefix('(?m)')})"
)
LINES = 5  # that a case may change


# ------------------------------------------------------------------ a stand-in for the authors' package


class TheirUniform(Distribution):
    """The uniform distribution, with the arguments of the authors' package."""

    arg_constraints: ClassVar[dict] = {}

    def __init__(self, dim: int, device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        super().__init__(event_shape=(dim,), validate_args=False)
        self.like = torch.empty((), device=device, dtype=dtype)

    def sample(self, sample_shape: tuple[int, ...] = ()) -> Tensor:
        return normalize(torch.randn(*sample_shape, *self.event_shape).to(self.like), dim=-1)

    def entropy(self) -> Tensor:
        return formulas.log_sphere_area(self.like.new_tensor(float(self.event_shape[0])))


class TheirPowerSpherical(Distribution):
    """The Power Spherical distribution by the published formulas, with the arguments of the authors' package."""

    arg_constraints: ClassVar[dict] = {}

    def __init__(self, loc: Tensor, scale: Tensor) -> None:
        super().__init__(scale.shape, loc.shape[-1:], validate_args=False)
        self.loc, self.scale, self.dim = loc, scale, scale.new_tensor(float(loc.shape[-1]))

    def rsample(self, sample_shape: tuple[int, ...] = ()) -> Tensor:
        return formulas.power_spherical(self.loc, self.scale.expand(*sample_shape, *self.scale.shape))

    def log_prob(self, value: Tensor) -> Tensor:
        return formulas.power_spherical_log_density(self.dim, self.scale, (self.loc * value).sum(-1))

    def entropy(self) -> Tensor:
        return formulas.power_spherical_entropy(self.dim, self.scale)


@register_kl(TheirPowerSpherical, TheirUniform)
def _their_divergence(p: TheirPowerSpherical, q: TheirUniform) -> Tensor:
    return q.entropy() - p.entropy()


def reference() -> ModuleType:
    """The authors' package, or the stand-in where it is not installed."""
    if has_reference():
        return importlib.import_module(REFERENCE)
    module = ModuleType(REFERENCE)
    module.PowerSpherical, module.HypersphericalUniform = TheirPowerSpherical, TheirUniform
    return module


# ------------------------------------------------------------------ the page


class Case(NamedTuple):
    """The lines of a case before and after the change, and the names that they define."""

    before: str
    after: str
    theirs: dict[str, Any]
    ours: dict[str, Any]


class Page(NamedTuple):
    """What running the page gives: the values of "ours" in its tables, and its cases by title."""

    values: list[Any]
    cases: dict[str, Case]


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Page:
    """Run the blocks and tables in order in one namespace. A block of theirs runs in a copy of it."""
    torch.manual_seed(0)
    namespace: dict[str, Any] = {}
    found = Page([], {})
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
                    found.values.append(eval(ours[1], namespace))
            elif step["language"] == "py":
                before, theirs = step["block"], dict(namespace)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)  # SciPy divides by zero
                    exec(compile(before, str(PAGE), "exec"), theirs)
            else:
                exec(compile(step["block"], str(PAGE), "exec"), namespace)
                if title:
                    found.cases[title] = Case(before, step["block"], theirs, dict(namespace))
    return found


def case_titles() -> list[str]:
    return re.findall(r"(?m)^### (.*)$", TEXT.partition(CASES)[2].partition(WORKAROUNDS)[0])


@pytest.mark.slow
def test_what_the_tables_call_ours_runs(page: Page) -> None:
    assert len(page.values) == 8 + 4 + 4 + 7 + 4
    assert all(value is not None for value in page.values)


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
class TestCases:
    def test_few_lines_change(self, page: Page, title: str) -> None:
        case = page.cases[title]
        compared = difflib.ndiff(case.before.splitlines(), case.after.splitlines())
        changed = [line for line in compared if line.startswith("+ ") and line.strip() != "+"]
        assert 1 <= len(changed) <= LINES

    def test_both_compute_the_same(self, page: Page, title: str) -> None:
        case = page.cases[title]
        names = assigned(case.before) & assigned(case.after) - DIFFERENT.get(title, set()) - {"q", "policy"}
        assert names or title in ("Latent SDEs", "Uncertainty of language models")
        for name in names - {"prior"}:
            theirs, ours = case.theirs[name], case.ours[name]
            assert (theirs.shape, theirs.dtype) == (ours.shape, ours.dtype), name
            if name not in DRAWN:
                # Their rate is a difference of entropies of about 80 nats, in float32.
                torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=1e-4)


@pytest.mark.slow
class TestParticularCases:
    def test_the_wrong_axis(self, page: Page) -> None:
        """The copy that the page calls wrong does not return directions, and ours refuses them."""
        wrong = page.cases["Images, channels first"].theirs["loc_map"]
        with pytest.raises(ValueError, match="unit"):
            PowerSpherical(wrong, 1.0, validate_args=True)

    def test_products_with_a_fixed_rate(self, page: Page) -> None:
        case = page.cases["Latents of language models"]
        torch.testing.assert_close(case.ours["rate"], torch.full((2, 10), 32.0))
        for names in (case.theirs, case.ours):
            lengths = names["z"].unflatten(-1, (8, 4)).norm(dim=-1)
            torch.testing.assert_close(lengths, torch.ones_like(lengths))
        simulated, computed = (names["step"] for names in (case.theirs, case.ours))
        torch.testing.assert_close(computed, simulated, rtol=0.05, atol=1.0)
        bottleneck, words, noise = (case.ours[name] for name in ("bottleneck", "words", "noise"))
        assert bottleneck(words, noise=noise)[0].equal(case.ours["z"])

    def test_exported_model(self, page: Page, monkeypatch, tmp_path) -> None:
        """By the line in the text below the case."""
        monkeypatch.chdir(tmp_path)
        case = page.cases["Astronomy"]
        (line,) = re.findall(r"`(torch\.onnx\.export\(.*\))`", TEXT)
        eval(line, case.ours)
        session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
        features = torch.randn(5, 4)
        found = session.run(None, {session.get_inputs()[0].name: features.numpy()})
        expected = case.ours["bottleneck"].eval()(features)
        for value, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(torch.from_numpy(value), wanted, rtol=2e-6, atol=1e-7)

    def test_few_vectors(self, page: Page) -> None:
        case = page.cases["Uncertainty of language models"]
        assert case.theirs["spread"] < 1e-7
        assert 300 < case.ours["spread"] < 420

    def test_the_uniform(self, page: Page) -> None:
        case = page.cases["Latent SDEs"]
        for names in (case.theirs, case.ours):
            assert names["prior"].sample((3,)).shape == (3, 16)


def test_the_contents_name_every_section() -> None:
    contents = TEXT.partition("All blocks use these names")[0]
    links = re.findall(r"\[([^]]+)\]\(#", contents)
    sections = re.findall(r"(?m)^##+ (.*)$", TEXT)
    named = [section.removesuffix(" 0.8.1") for section in sections if section != CASES.removeprefix("## ")]
    assert {link.lower() for link in links} == {name.lower() for name in named}


def test_the_text_names_the_slower_cases() -> None:
    rows = json.loads((PAGE.parents[1] / "results" / "swaps.json").read_text(encoding="utf-8"))["results"]
    titles = {row["case"].partition(", ")[0] for row in rows}
    assert titles <= {title.partition(",")[0] for title in case_titles()}
    slower = [row["case"] for row in rows if row["faster"] < 1]
    named = re.findall(r"(?m)^- \*(.*)\*:", TEXT.partition("## Time of each case")[2])
    assert len(slower) == len(named) == 2
    assert all(any(name.lower() in case.lower() for case in slower) for name in named)


def test_scipy_s_arguments_give_scipy_s_numbers() -> None:
    from powerspherical.stats import uniform_sphere, von_mises_fisher

    mu = np.array([0.6, 0.0, 0.8])
    x = von_mises_fisher(mu, 20.0).rvs(50, random_state=0)
    theirs = scipy.stats.vonmises_fisher(mu, 20)
    np.testing.assert_allclose(von_mises_fisher(mu, 20).logpdf(x), theirs.logpdf(x), rtol=1e-10)
    for ours, fitted in zip(von_mises_fisher.fit(x), scipy.stats.vonmises_fisher.fit(x), strict=True):
        np.testing.assert_allclose(ours, fitted, rtol=1e-6)
    assert uniform_sphere(3).rvs(5).shape == scipy.stats.uniform_direction(3).rvs(5).shape


# ------------------------------------------------------------------ the workarounds


def gradients(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    return torch.autograd.grad(function(*leaves), leaves)


#: Workarounds that the page lists, and the tests that show that they are not needed.
WORKAROUND_TESTS = {
    "`.any()` or `.item()` in the draw, compilation off": "test_no_value_is_read_on_the_host",
    "an `eps` or a special case at μ = e₁": "test_first_unit_vector",
    "a clamp of κ": "test_any_concentration",
    "float64 for the KL": "test_single_precision_is_enough",
    "`autocast(enabled=False)`, `.float()`": "test_autocast_stays_on",
    "`transpose`, `movedim`, `rearrange`": "test_channels_stay_first",
    "`squeeze(-1)` of κ": "test_a_column_of_concentrations",
    "`v / (v.norm() + 1e-6)`": "test_nearly_unit_vectors",
    "KL between Power Spherical distributions by simulation": "test_divergence_between_power_sphericals",
    "`log1p(t.clamp(...))`": "test_antipodes_in_a_matrix",
    "no ONNX export": "test_onnx",
}


class TestWorkarounds:
    """Each is needed with the published formulas, and not with ours."""

    def test_each_line_of_the_page_has_a_test(self) -> None:
        section = TEXT.partition(WORKAROUNDS)[2].partition("\n## ")[0]
        listed = [row.split(" | ")[0].removeprefix("| ") for row in re.findall(r"(?m)^\| .* \|$", section)]
        assert listed[0] == "workaround"
        assert listed[1:] == list(WORKAROUND_TESTS)
        own = [name for name in vars(type(self)) if name.startswith("test_")]
        assert own[1:] == list(WORKAROUND_TESTS.values())

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    def test_no_value_is_read_on_the_host(self, dtype: torch.dtype) -> None:
        """Fake tensors have no values: a read raises. `tests/nn/test_bottleneck.py` has the test on a GPU."""
        with FakeTensorMode():
            features = torch.randn(3, 17, 5, dtype=dtype, requires_grad=True)
            z, rate = SphericalBottleneck(None, 16, axis=1, radius="sqrt_dim")(features)
            (z.float().sum() + rate.sum()).backward()
            q = PowerSpherical(torch.empty(3, 16), torch.empty(3), validate_args=False)
            assert q.rsample().shape == (3, 16)
            assert kl_divergence(q, HypersphericalUniform(16)).shape == (3,)
            with pytest.raises(DataDependentOutputException):
                bool((z > 0).any())

    @pytest.mark.parametrize("sign", [1.0, -1.0])
    def test_first_unit_vector(self, sign: float) -> None:
        loc, kappa = sign * torch.eye(5)[:1].expand(100, 5), torch.full((100,), 10.0)
        if sign > 0:
            assert formulas.power_spherical(loc, kappa).isnan().any()
        draws = PowerSpherical(loc, kappa).rsample()
        torch.testing.assert_close(draws.norm(dim=-1), torch.ones(100))
        weights = torch.arange(5.0)
        for gradient in gradients(
            lambda *q: PowerSpherical(*q).rsample() @ weights @ torch.ones(100), loc, kappa
        ):
            assert gradient.isfinite().all()
            assert (gradient != 0).any()

    def test_any_concentration(self) -> None:
        kappa = torch.tensor([0.0, 1e-30, 1e-3, 1.0, 1e3, 1e6, 1e12, 1e20])
        for dim in (2, 3, 64):
            loc = directions(len(kappa), dim, dtype=torch.float32)
            assert PowerSpherical(loc, kappa, validate_args=True).rsample().isfinite().all()

            def loss(loc: Tensor, kappa: Tensor) -> Tensor:
                q = PowerSpherical(loc, kappa)
                return (
                    q.rsample().cumsum(-1).sum(-1) + kl_divergence(q, HypersphericalUniform(loc.shape[-1]))
                ).sum()

            assert loss(loc, kappa).isfinite()
            assert all(gradient.isfinite().all() for gradient in gradients(loss, loc, kappa))
            rate = kl_divergence(PowerSpherical(loc, kappa), HypersphericalUniform(dim))
            assert (rate.diff() > 0).sum() >= len(kappa) - 2  # 1e-30 squared underflows
            assert (rate.diff() >= 0).all()

    def test_single_precision_is_enough(self) -> None:
        worst = {"ours": 0.0, "published": 0.0}
        for dim in (2, 16, 512):
            kappa = torch.logspace(-3, 6, 50)
            prior, loc = HypersphericalUniform(dim), torch.eye(dim)[0]
            exact = kl_divergence(PowerSpherical(loc.double(), kappa.double()), prior)
            single = {
                "ours": kl_divergence(PowerSpherical(loc, kappa), prior),
                "published": formulas.power_spherical_kl_uniform(kappa.new_tensor(float(dim)), kappa),
            }
            for name, rate in single.items():
                worst[name] = max(worst[name], ((rate - exact) / exact).abs().max().item())
        assert worst["ours"] < 1e-6
        assert worst["published"] > 0.01

    def test_autocast_stays_on(self) -> None:
        with pytest.raises(NotImplementedError, match="BFloat16"):
            Beta(*torch.ones(2, 3, dtype=torch.bfloat16)).rsample()
        features = torch.randn(4, 9, 17, dtype=torch.bfloat16)
        bottleneck = SphericalBottleneck(None, 16).eval()
        expected = bottleneck(features)
        with torch.autocast("cpu", torch.bfloat16):
            z, rate = bottleneck(features)
            assert bottleneck.train()(features)[0].dtype == torch.bfloat16
        assert z.equal(expected[0])
        assert rate.equal(expected[1])
        outputs = features.float()
        q = PowerSpherical(normalize(outputs[..., :16], dim=-1), softplus(outputs[..., 16]))
        torch.testing.assert_close(rate, kl_divergence(q, HypersphericalUniform(16)), rtol=1e-5, atol=0.0)

    def test_channels_stay_first(self) -> None:
        features = torch.randn(2, 17, 6, 4)
        first, last = (SphericalBottleneck(None, 16, axis=axis).eval() for axis in (1, -1))
        z, rate = first(features)
        expected, expected_rate = last(features.movedim(1, -1))
        torch.testing.assert_close(z, expected.movedim(-1, 1))
        torch.testing.assert_close(rate, expected_rate)

    def test_a_column_of_concentrations(self) -> None:
        """Ours refuses it and names the way out, `compat` and the bottleneck take it."""
        from powerspherical import compat

        with pytest.raises(ValueError, match=r"squeeze\(-1\)"):
            PowerSpherical(torch.eye(4), torch.ones(4, 1))
        assert compat.PowerSpherical(torch.eye(4), torch.ones(4, 1)).batch_shape == (4,)
        z, rate = SphericalBottleneck(None, 4)(torch.eye(4), torch.ones(4, 1))
        assert (z.shape, rate.shape) == ((4, 4), (4,))

    def test_nearly_unit_vectors(self) -> None:
        v = torch.randn(50, 8) * torch.logspace(-3, 1, 50).unsqueeze(-1)
        q = PowerSpherical(v / (v.norm(dim=-1, keepdim=True) + 1e-6), 5.0, validate_args=True)
        torch.testing.assert_close(q.loc, normalize(v, dim=-1))
        z, _ = SphericalBottleneck(None, 8)(torch.zeros(1, 9))
        assert z.isfinite().all()
        (gradient,) = gradients(
            lambda v: SphericalBottleneck(None, 8)(v)[0].cumsum(-1).sum(), torch.zeros(3, 9)
        )
        assert gradient.isfinite().all()

    def test_divergence_between_power_sphericals(self) -> None:
        """Against quadrature of both densities on the circle."""
        angles = torch.linspace(0.0, 2 * torch.pi, 200_001, dtype=torch.float64)[:-1]
        points = torch.stack((angles.cos(), angles.sin()), -1)
        p = PowerSpherical(torch.tensor([1.0, 0.0]).double(), 7.0)
        q = PowerSpherical(torch.tensor([0.6, 0.8]).double(), 3.0)
        logs = p.log_prob(points)
        expected = (logs.exp() * (logs - q.log_prob(points))).nan_to_num(0.0).mean() * 2 * torch.pi
        torch.testing.assert_close(kl_divergence(p, q), expected, rtol=1e-8, atol=0.0)
        single = kl_divergence(PowerSpherical(p.loc.float(), 7.0), PowerSpherical(q.loc.float(), 3.0))
        torch.testing.assert_close(single.double(), expected, rtol=1e-5, atol=0.0)

    def test_antipodes_in_a_matrix(self) -> None:
        loc = directions(200, 16, dtype=torch.float32)
        cosines = -(loc * loc).sum(-1)
        published = formulas.power_spherical_log_density(torch.tensor(16.0), torch.tensor(9.0), cosines)
        assert not published.isfinite().all()
        scores = PowerSpherical(loc, 9.0).log_prob_matrix(-loc)
        assert scores.isfinite().all()
        (gradient,) = gradients(
            lambda loc: PowerSpherical(loc, 9.0).log_prob_matrix(-loc.detach()).sum(), loc
        )
        assert gradient.isfinite().all()

    @pytest.mark.slow
    def test_onnx(self) -> None:
        class Drawn(nn.Module):
            """A bottleneck with its noise as an input."""

            def __init__(self) -> None:
                super().__init__()
                self.bottleneck = SphericalBottleneck(None, 3)

            def forward(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
                return self.bottleneck(features, noise=noise)

        inputs = torch.randn(4, 4), torch.randn(4, 3)
        model = torch.onnx.export(Drawn().eval(), inputs, dynamo=True, verbose=False)
        torch.testing.assert_close(tuple(model(*inputs)), Drawn()(*inputs), rtol=2e-6, atol=2e-6)
