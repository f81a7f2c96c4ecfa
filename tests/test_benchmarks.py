"""Every benchmark runs at a tiny size, and measures what it says. How long anything takes is not tested."""

import gzip
import importlib
import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from powerspherical import HypersphericalUniform, PowerSpherical
from powerspherical_paper.baselines.published import REFERENCE

FOLDER = Path(__file__).parents[1] / "benchmarks"
sys.path.append(str(FOLDER))  # as Python does for the scripts there
SCRIPTS = sorted(
    path.stem for path in FOLDER.glob("[!_]*.py") if path.stem != "tfp"
)  # sampling.py runs that one
CPU = torch.device("cpu")
unix = pytest.mark.skipif(sys.platform == "win32", reason="needs the module resource")


def script(name):
    return importlib.import_module(name)


@pytest.fixture(autouse=True)
def _keep_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def reference(monkeypatch):
    """A stand-in for the authors' package, with our distributions in place of theirs."""
    module = ModuleType(REFERENCE)
    module.__spec__ = ModuleSpec(REFERENCE, None)
    module.PowerSpherical = PowerSpherical
    module.HypersphericalUniform = lambda dim, device: HypersphericalUniform(dim)
    monkeypatch.setitem(sys.modules, REFERENCE, module)


@pytest.fixture
def labelled(tmp_path):
    """The same 90 labelled vectors in both formats, in three clear clusters."""
    labels = np.repeat(np.arange(3), 30).astype(np.uint8)
    images = np.random.default_rng(0).integers(0, 20, (90, 6), dtype=np.uint8)
    images[np.arange(90), labels] += 200
    np.savez(tmp_path / "some.npz", embeddings=images.astype(np.float16), labels=labels)
    paths = [tmp_path / f"t10k-{part}.gz" for part in ("images", "labels")]
    for path, content in zip(paths, (bytes(16) + images.tobytes(), bytes(8) + labels.tobytes()), strict=True):
        path.write_bytes(gzip.compress(content))
    return [str(tmp_path / "some.npz"), ":".join(map(str, paths))]


def run(name, out, *arguments, result=None):
    """Run a script and return what it wrote."""
    argv = [*arguments, "--quick", "--threads", "1", "--out", str(out)]
    with torch.compiler.set_stance("force_eager"):  # the package's own tests compile
        script(name).main(argv)
    document = json.loads((out / f"{result or name}.json").read_text(encoding="utf-8"))
    assert document["benchmark"] == (result or name)
    assert document["command"] == f"python benchmarks/{name}.py {' '.join(argv)}"
    assert document["versions"]["torch"] == torch.__version__
    return document


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SCRIPTS if name not in ("clustering", "dask_mixture")])
def test_a_benchmark_runs(name, request, monkeypatch, tmp_path, capsys):
    if name == "compiled_step":
        monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")  # for the process that it starts
        monkeypatch.setitem(sys.modules, REFERENCE, None)
    else:
        request.getfixturevalue("reference")
    assert run(name, tmp_path)["results"]
    out = capsys.readouterr().out
    assert "│" in out
    assert f"written: {tmp_path / name}.json" in out


@unix
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what a cluster says when it ends is not ours
def test_dask_mixture(tmp_path):
    (found,) = run("dask_mixture", tmp_path)["results"]
    assert found["gigabytes_of_a_worker_at_most"] >= found["gigabytes_of_a_worker_before"] > 0


@pytest.mark.slow
def test_clustering(labelled, tmp_path):
    clustering = script("clustering")
    rows = run("clustering", tmp_path, "labelled", *labelled)["results"]
    assert {row["data"] for row in rows} == {"digits", "some", "t10k-mnist"}
    assert {row["method"] for row in rows} == set(clustering.METHODS)
    assert all(row["ari"] == 1 for row in rows if row["data"] != "digits")
    assert all(row["ari"] > 0.3 for row in rows)
    assert all((row["held_out"] is None) == ("means" in row["method"].lower()) for row in rows)

    rows = run("clustering", tmp_path, "components", labelled[0], result="clustering_choice")["results"]
    assert {row["n_components"] for row in rows} == set(clustering.QUICK_COMPONENTS)
    assert all(row["ari"] > 0.3 for row in rows)
    assert (tmp_path / "clustering_choice.png").stat().st_size > 10_000
    figure = clustering.drawn([row | {"seed": seed, "ari": seed} for row in rows for seed in (0, 1)], 3)
    assert list(figure.axes[2].lines[0].get_ydata()) == [0.5, 0.5]  # means over seeds

    rows = run("clustering", tmp_path, "outliers", result="robust_clustering")["results"]
    assert all(0.5 < row["ari"] <= 1 for row in rows)
    x, labels = clustering.planted(5, 50.0, points=60, seed=0)
    assert (len(x), len(labels)) == (450, 360)  # a fifth of all are outliers


@pytest.mark.parametrize(
    ("name", "argv", "message"),
    [
        ("clustering", ["components"], "components takes 1 data files, not 0"),
        ("clustering", ["labelled", "/no/such/file.npz"], "cannot read the data: "),
        ("clustering", ["outliers", "--device", "cuda"], "torch sees no CUDA device here: use --device cpu"),
        ("kl_uniform", ["--device", "cuda"], "this runs on the CPU"),
        ("few_vectors", ["--device", "cuda"], "this runs on the CPU"),
        ("swaps", [], "the authors' package is left out"),
    ],
)
def test_bad_options_end_in_one_line(name, argv, message, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setitem(sys.modules, REFERENCE, None)
    with pytest.raises(SystemExit, match="2"):
        script(name).main([*argv, "--out", str(tmp_path)])
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_ratios_are_taken_within_a_round():
    case, mixture = script("_methods").Case(4, 3), script("mixture")
    times = {(case, "randn"): [1.0, 2.0, 10.0], (case, "our_ps"): [3.0, 4.0, 30.0]}
    floor, ours = script("sampling").summary("sizes", "forward", 1, times, "randn")
    assert (floor["ratio"], floor["milliseconds"], floor["rounds"]) == (1.0, 2000.0, 3)
    assert (ours["ratio"], ours["milliseconds"]) == (3.0, 4000.0)  # of the medians it would be 2
    assert (ours["rows"], ours["dim"], ours["kappa"], ours["loc"]) == (4, 3, 100.0, "per row")
    rows = script("compiled_step").summary({"ours": [1e-6, 2e-6, 9e-6], "reference": [2e-6, 4e-6, 6e-6]})
    assert rows["reference"]["ours_over_this"] == pytest.approx(0.5)
    assert rows["ours"]["microseconds"] == pytest.approx(2.0)
    times = {"power_spherical": [2.0, 9.0], mixture.LLOYD: [1.0, 3.0], mixture.PRODUCTS: [2.0, 3.0]}
    first = next(mixture.summary(times, {}))
    assert (first["to_lloyd"], first["to_products"]) == (2.5, 2.0)


def test_swaps_compute_the_same(reference):
    """Both variants of a case: outputs of the same shapes, and the same values where nothing is drawn."""
    for swap in script("swaps").swaps(sys.modules[REFERENCE], CPU, batch=2):
        inputs = [torch.randn(*shape).to(swap.dtype) for shape in swap.shapes]
        outputs = [variant(*inputs) for variant in (swap.before, swap.after)]
        before, after = ((one,) if isinstance(one, torch.Tensor) else one for one in outputs)
        assert [x.shape for x in before] == [x.shape for x in after], swap.title
        draws = len(before) < 3  # otherwise an actor's, whose density is that of its draw
        for index, (theirs, ours) in enumerate(zip(before, after, strict=True)):
            if (index == 1 and draws) or index == 2 or swap.title == "Probabilistic embeddings":
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


# Results that a page of the documentation shows


def published(name):
    return json.loads((FOLDER.parent / "results" / f"{name}.json").read_text(encoding="utf-8"))


def page(name, benchmark):
    """The words of a page, after a check that it has the table of a benchmark's published results."""
    text = " ".join((FOLDER.parent / "docs" / f"{name}.md").read_text(encoding="utf-8").split())
    for line in script(benchmark).lines(published(benchmark)["results"]):
        assert f"| {' | '.join(line)} |" in text
    return text


def test_gains_over_random_noise():
    module, of = script("quasi_monte_carlo"), {"random": 6.0, "antithetic": 3.0, "Sobol": 0.5}
    row = module.row("E f", PowerSpherical, 3, 64, of)
    assert row["factor"] == {"antithetic": 2.0, "Sobol": 12.0}
    assert list(module.lines([row])) == [["E f", "Power Spherical", "3", "2.0", "12"]]
    found, text = published("quasi_monte_carlo"), page("noise", "quasi_monte_carlo")
    for row in found["results"]:
        assert row["factor"]["Sobol"] > row["draws"] ** 0.5
        assert row["factor"]["antithetic"] > 1.5
    assert f"| {' | '.join(module.HEADINGS)} |" in text
    quantity, _, _, _, *sobol = list(module.lines(found["results"]))[-1]
    assert quantity == "reconstruction"
    assert "reconstruction term by factors of {}, {} and {} at 64, 256 and 1024 draws".format(*sobol) in text
    assert f"averaged over {found['configuration']['images']} images" in text
    assert f"mean cosine of {found['configuration']['mean_cosine']} with" in text


def test_biases_of_few_vectors():
    module, found, text = script("few_vectors"), published("few_vectors"), page("few_vectors", "few_vectors")
    rows = found["results"]
    assert {row["dim"] for row in rows} == set(module.SAMPLES)
    assert found["worst"] == max(abs(row["bias_corrected"]) for row in rows) < module.WANTED
    assert all(row["bias"] > module.WANTED for row in rows)
    assert all(row["scipy"] == 1e-8 for row in rows if row["family"] == "von Mises–Fisher")
    samples = list(dict.fromkeys(row["samples"] for row in rows))
    assert "over {}, {} and {} samples".format(*samples) in text
    assert f"the bias is at most {found['worst']:.1%}".replace("%", " %") in text
    assert f"at most {max(row['standard_error'] for row in rows):.1%}.".replace("%", " %") in text
    of = [row for row in rows if (row["family"], row["dim"], row["number"]) == ("von Mises–Fisher", 384, 5)]
    spreads = [f"{row['spread']:.0%}".replace("%", " %") for row in of]
    assert "κ is {}, {} and {} of κ".format(*spreads) in text
