"""The benchmarks' arithmetic, and that they run; never how long anything takes."""

import importlib
import json
import shutil
import subprocess
import sys
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from powerspherical import HypersphericalUniform, PowerSpherical
from powerspherical_paper.baselines.published import REFERENCE

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))  # as Python does for the scripts there
names = (
    "_memory", "_methods", "_shown", "_targets", "_timing", "bottleneck", "compiled_step", "host_time", "pairwise",
    "sampling", "swaps", "training_step"
)  # fmt: skip
(
    memory, methods, shown, targets, timing, bottleneck, compiled_step, host_time, pairwise, sampling, swaps,
    training_step
) = map(importlib.import_module, names)  # fmt: skip

CPU = torch.device("cpu")
EFFORT = timing.Effort(seconds=0, least=2, most=2)
PLAN = sampling.Plan(
    sizes=((4, 3),), concentrations=(1.0, 100.0), dims=(8, 16), sweep=128, memory=((4, 8),), effort=EFFORT
)


@pytest.fixture(autouse=True)
def _keep_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def no_reference(monkeypatch):
    monkeypatch.setitem(sys.modules, REFERENCE, None)


@pytest.fixture
def reference(monkeypatch):
    """A stand-in for the authors' package."""
    module = ModuleType(REFERENCE)
    module.__spec__ = ModuleSpec(REFERENCE, None)
    module.PowerSpherical = PowerSpherical
    module.HypersphericalUniform = lambda dim, device: HypersphericalUniform(dim)
    monkeypatch.setitem(sys.modules, REFERENCE, module)


class FakeCuda:
    """Stands in for torch.cuda and keeps a log; its events are always 6 ms apart."""

    def __init__(self):
        self.log = []

    def synchronize(self):
        self.log.append("synchronize")

    def Event(self, enable_timing):
        assert enable_timing
        return SimpleNamespace(
            record=lambda: self.log.append("record"),
            synchronize=lambda: self.log.append("wait"),
            elapsed_time=lambda end: 6.0,
            query=lambda: self.slept < self.busy,
        )

    slept = busy = 0

    def _sleep(self, cycles):
        self.log.append("sleep")
        self.slept = cycles

    def Stream(self):
        return SimpleNamespace(wait_stream=lambda other: self.log.append("wait"))

    current_stream = Stream

    @contextmanager
    def stream(self, stream):
        self.log.append("on a stream")
        yield

    def CUDAGraph(self):
        return SimpleNamespace(replay=lambda: self.log.append("replay"))

    @contextmanager
    def graph(self, graph):
        self.log.append("begin")
        yield
        self.log.append("end")


def test_rounds():
    effort = timing.Effort(seconds=2.0, least=5, most=100)
    assert [effort.rounds(one) for one in (10.0, 0.3, 1e-6)] == [5, 7, 100]


def test_methods_take_turns():
    order = []
    calls = {name: lambda name=name: order.append(name) for name in "abc"}

    def clock(call, count):
        for _ in range(count):
            call()
        return timing.TURN if call is calls["c"] else timing.TURN * len(order) / 1000

    effort = timing.Effort(seconds=0, least=30, most=99)
    times = timing.measure(calls, effort, clock, calls=2)
    # Twice each, and a round that is not looked at; of what is slow, one call is a turn.
    assert "".join(order[:11]) == "aabbcc" + "aabbc"
    rounds = ["".join(order[start : start + 5]) for start in range(11, len(order), 5)]
    assert len(rounds) == 30
    assert set(rounds) == {"aabbc", "aacbb", "bbaac", "bbcaa", "caabb", "cbbaa"}  # every order
    for name in "ab":
        ends = [11 + 5 * turn + one.index(name) + 2 for turn, one in enumerate(rounds)]
        assert [round(1000 * one / timing.TURN) for one in times[name]] == ends
    assert times["c"] == [timing.TURN] * 30


def test_the_event_clock():
    cuda = FakeCuda()
    seconds = timing.event_clock(cuda)(lambda: cuda.log.append("call"), 3)
    assert seconds == pytest.approx(0.002)
    assert cuda.log == ["synchronize", "record", "call", "call", "call", "record", "wait"]


def test_the_queued_clock_keeps_the_device_busy_long_enough():
    cuda = FakeCuda()
    cuda.busy = 3_000_000
    seconds = timing.queued_clock(cuda)(lambda: cuda.log.append("call"), 2)
    assert seconds == pytest.approx(0.003)
    turn = ["synchronize", "sleep", "record", "call", "call", "record", "wait"]
    assert cuda.log == ["synchronize", *3 * turn]
    assert cuda.slept == 4_000_000


def test_a_captured_call():
    cuda = FakeCuda()
    replay = timing.captured(lambda: cuda.log.append("call"), 4, cuda)
    replay()
    warm_up = ["wait", "on a stream", "call", "call", "call", "wait"]
    assert cuda.log == [*warm_up, "begin", "call", "call", "call", "call", "end", "replay"]


def test_ratios_are_taken_inside_a_round():
    case = methods.Case(4, 3)
    times = {(case, "randn"): [1.0, 2.0, 10.0], (case, "our_ps"): [3.0, 4.0, 30.0]}
    floor, ours = sampling.summary("sizes", methods.FORWARD, 1, times, "randn")
    assert (floor["ratio"], floor["milliseconds"], floor["rounds"]) == (1.0, 2000.0, 3)
    assert (ours["ratio"], ours["milliseconds"]) == (3.0, 4000.0)  # of the medians it would be 2
    assert (ours["rows"], ours["dim"], ours["kappa"], ours["loc"]) == (4, 3, 100.0, "per row")


def rows_of(
    ratios,
    section="sizes",
    quantity=methods.FORWARD,
    size=(100_000, 64),
    kappa=100.0,
    threads=1,
    quartiles=0.0,
):
    """Rows whose quartiles lie so far apart, relative to their medians."""
    return [
        {
            "section": section,
            "rows": size[0],
            "dim": size[1],
            "kappa": kappa,
            "loc": "per row",
            "quantity": quantity,
            "threads": threads,
            "method": method,
            "ratio": ratio,
            "milliseconds": 10 * ratio,
            "quartiles": [10 * ratio * (1 - quartiles / 2), 10 * ratio * (1 + quartiles / 2)],
            "rounds": 25,
        }
        for method, ratio in ratios.items()
    ]


def test_targets():
    rows = [
        *rows_of({"our_ps": 0.4, "our_vmf": 0.6, "our_cauchy": 0.3}),
        *rows_of({"our_ps": 0.7}, quantity=methods.BACKWARD),
        *rows_of({"our_ps": 1.0, "reference_ps": 20.0}, section="singles", size=(100, 64)),
        *rows_of({"our_ps": 1.5}, section="concentrations", kappa=1.0),
        *rows_of({"our_ps": 1.8}, section="concentrations", kappa=1e5),
        *rows_of({"our_ps": 0.5}, threads=2),
    ]
    found = {(row["what"], row["threads"]): row for row in targets.compared(rows, "cpu")}
    answers = {key: (row["wanted"], round(row["measured"], 9), row["met"]) for key, row in found.items()}
    assert answers == {
        ("PS over randn, 100000 × 64, μ per row, forward", 1): ("≤ 0.45", 0.4, True),
        ("PS over randn, 100000 × 64, μ per row, forward and backward", 1): ("≤ 0.7", 0.7, True),
        ("vMF over randn, 100000 × 64, μ per row, forward", 1): ("≤ 0.5", 0.6, False),
        ("the authors' PS over ours, 100 × 64, forward, single calls", 1): ("≥ 12", 20.0, True),
        ("Cauchy over PS, 100000 × 64, forward", 1): ("≤ 1", 0.75, True),
        ("PS, slowest over fastest κ, forward", 1): ("≤ 1.1", 1.2, False),
        ("PS over randn, 100000 × 64, μ per row, forward", 2): ("≤ 0.45", 0.5, False),
    }


@pytest.mark.parametrize(("measured", "met"), [(0.3, True), (0.43, None), (0.48, None), (0.8, False)])
def test_targets_that_noise_leaves_open(measured, met):
    """With quartiles as far apart as the median is large, a ratio is known to about a third."""
    noisy, clean = (
        targets.compared(rows_of({"our_ps": measured}, quartiles=quartiles), "cpu")
        for quartiles in (1.0, 0.01)
    )
    assert [row["met"] for row in noisy] == [met]
    assert [row["met"] for row in clean] == [measured <= 0.45]


def test_sizes_are_not_joined_by_a_line():
    """They differ in n and in d; against κ, and against d at one n·d, there are curves."""
    cases = (
        [{"section": "sizes", "size": size} for size in ((100, 64), (1000, 3), (100_000, 64))]
        + [{"section": "concentrations", "kappa": kappa} for kappa in (1.0, 10.0)]
        + [{"section": "dimensions", "size": size} for size in ((64, 8), (8, 64))]
    )
    rows = [row for case in cases for row in rows_of({"randn": 1.0, "our_ps": 1.5}, **case)]
    drawn = shown.figure(rows, "a machine")
    sizes, by_kappa, by_dim, *_ = drawn.axes
    assert {line.get_linestyle() for line in sizes.lines} == {"None"}
    assert [label.get_text() for label in sizes.get_xticklabels()] == [
        "1k\n× 3",
        "100\n× 64",
        "100k\n× 64",
    ]
    assert all(line.get_linestyle() != "None" for axes in (by_kappa, by_dim) for line in axes.lines)
    assert [len(axes.lines) for axes in (sizes, by_kappa, by_dim)] == [2, 2, 2]


def test_the_peak_of_memory():
    assert memory.highest([3, 4, -4, 2, -5]) == 7
    one = 4000
    assert memory.peak(lambda: torch.ones(1000), CPU) == one
    assert memory.peak(lambda: torch.ones(1000) + torch.ones(1000), CPU) == 3 * one


@pytest.mark.parametrize("shared", [False, True])
def test_every_method_draws_and_differentiates(reference, shared):
    case = methods.Case(6, 5, shared=shared)
    draws = methods.methods(case, methods.FORWARD, CPU)
    ours = ["our_ps", "our_vmf", "our_cauchy", "published_vmf", "reference_ps"]
    assert list(draws) == ours + ["scipy_vmf"] * shared
    for call in draws.values():
        x = torch.as_tensor(call())
        assert x.shape == (6, 5)
        assert torch.allclose(x.norm(dim=-1), torch.ones((), dtype=x.dtype), atol=1e-5)
    for call in methods.floors(case, CPU).values():
        assert call().shape == (6, 5)
    gradients = methods.methods(case, methods.BACKWARD, CPU)
    assert list(gradients) == ours
    for call in gradients.values():
        loc, kappa = call()
        assert loc.shape == ((5,) if shared else (6, 5))
        assert kappa.shape == (() if shared else (6,))
        assert loc.abs().sum() > 0
        assert kappa.abs().sum() > 0


@pytest.mark.slow
def test_sampling(no_reference, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sampling, "QUICK", PLAN)
    argv = ["--quick", "--threads", "1", "--out", str(tmp_path)]
    sampling.main(argv)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "sampling.json",
        "sampling.png",
        "sampling.svg",
    ]
    document = json.loads((tmp_path / "sampling.json").read_text(encoding="utf-8"))
    assert document["command"] == f"python benchmarks/sampling.py {' '.join(argv)}"
    rows = document["results"]
    assert {(row["section"], row["rows"], row["dim"], row["kappa"]) for row in rows} == {
        ("sizes", 4, 3, 100.0),
        ("singles", 4, 3, 100.0),
        ("concentrations", 2, 64, 1.0),
        ("concentrations", 2, 64, 100.0),
        ("dimensions", 16, 8, 100.0),
        ("dimensions", 8, 16, 100.0),
    }
    assert all(row["ratio"] > 0 and row["milliseconds"] > 0 and row["rounds"] == 2 for row in rows)
    scipy = [(row["loc"], row["quantity"]) for row in rows if row["method"] == "scipy_vmf"]
    assert scipy == [("shared", methods.FORWARD)]
    assert {row["loc"] for row in document["memory"]} == {"per row", "shared"}
    assert all(row["outputs"] >= 1 for row in document["memory"])
    assert [note.split(" is ")[0] for note in document["notes"]] == [
        "the authors' package",
        "TensorFlow Probability",
    ]
    assert document["versions"]["torch"] == torch.__version__
    assert "κ" in capsys.readouterr().out


def test_host_time_keeps_the_runs_apart_by_label(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(host_time, "QUICK", EFFORT)
    for label in ("before", "now"):
        host_time.main(["--quick", "--label", label, "--out", str(tmp_path)])
    document = json.loads((tmp_path / "host_time.json").read_text(encoding="utf-8"))
    assert list(document["results"]) == ["before", "now"]
    for result in document["results"].values():
        assert list(result["microseconds"]) == list(host_time.STAGES)
        assert min(result["microseconds"].values()) > 0
    shown_lines = capsys.readouterr().out
    assert all(label in shown_lines for label in ("before", "now", "the kernels"))


@pytest.mark.slow
def test_sweeps_run_once(no_reference, capsys):
    content, _ = sampling.run(PLAN, CPU, [1, 2])
    found = {
        threads: {row["section"] for row in content["results"] if row["threads"] == threads}
        for threads in (1, 2)
    }
    assert found == {1: {"sizes", "singles", "concentrations", "dimensions"}, 2: {"sizes", "singles"}}


def test_tensorflow_probability_has_a_floor_of_its_own(monkeypatch):
    asked = []

    def answer(command, **options):
        asked.append(json.loads(command[2]))
        seconds = {"jax_normal": [1.0, 1.0], "tfp_ps": [3.0, 5.0]}
        group = {"rows": 4, "dim": 3, "quantity": methods.FORWARD, "seconds": seconds}
        return SimpleNamespace(stdout=json.dumps({"groups": [group], "versions": {"jax": "1"}}))

    monkeypatch.setattr(subprocess, "run", answer)
    rows, versions = sampling.tfp("python", PLAN, 2)
    assert asked[0]["sizes"] == [[4, 3, 50]]
    assert (asked[0]["threads"], asked[0]["quantities"]) == (2, list(sampling.QUANTITIES))
    assert timing.Effort(**asked[0]["effort"]) == EFFORT
    assert [(row["method"], row["floor"], row["ratio"]) for row in rows] == [
        ("jax_normal", "jax_normal", 1.0),
        ("tfp_ps", "jax_normal", 4.0),
    ]
    assert versions == {"jax": "1"}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--device", "cuda"], "torch sees no CUDA device here: use --device cpu"),
        (["--threads", "0"], "--threads must be 1 or more, not 0"),
        (["--out", __file__], f"cannot write to --out {__file__}: File exists"),
        (["--tfp", "/no/such/python"], "/no/such/python has no TensorFlow Probability on JAX: "),
        (["--tfp", sys.executable], f"{sys.executable} has no TensorFlow Probability on JAX: "),
    ],
)
def test_bad_options_end_in_one_line(monkeypatch, tmp_path, capsys, argv, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sampling, "run", None)  # nothing may be measured
    with pytest.raises(SystemExit, match="2"):
        sampling.main(["--out", str(tmp_path), *argv])
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.partition("error: ")[2].startswith(message)


def test_the_share_of_the_distribution():
    times = {"none": [1.0, 1.0, 3.0], "our_ps": [2.0, 4.0, 4.0]}
    shares = {row["latent"]: row["share"] for row in training_step.summary(times)}
    assert shares == {"none": 0.0, "our_ps": 0.5}


def test_training_step(reference, monkeypatch, tmp_path):
    monkeypatch.setattr(training_step, "QUICK_BATCHES", (4,))
    monkeypatch.setattr(training_step, "QUICK_EFFORT", EFFORT)
    training_step.main(["--quick", "--threads", "1", "--out", str(tmp_path)])
    document = json.loads((tmp_path / "training_step.json").read_text(encoding="utf-8"))
    assert [(row["dim"], row["latent"]) for row in document["results"]] == [
        (dim, latent) for dim in training_step.DIMS for latent in ("none", "our_ps", "reference_ps")
    ]
    assert all(row["milliseconds"] > 0 for row in document["results"])


def test_bottleneck(reference, monkeypatch, tmp_path):
    """Without the compiler, which the package's own tests of compiled bottlenecks use."""
    monkeypatch.setattr(bottleneck, "QUICK_EFFORT", EFFORT)
    monkeypatch.setattr(torch, "compile", lambda layer: layer)
    bottleneck.main(["--quick", "--threads", "1", "--out", str(tmp_path)])
    document = json.loads((tmp_path / "bottleneck.json").read_text(encoding="utf-8"))
    names = [name for name, _, _ in bottleneck.layers(8, CPU)]
    assert names[0] == bottleneck.GAUSSIAN
    assert names[-1] == "reference"
    assert [(row["layer"], row["mode"]) for row in document["results"]] == [
        (name, mode) for mode in ("eager", "compiled") for name in names
    ]
    assert all(row["over_gaussian"] == 1 for row in document["results"] if row["layer"] == names[0])


def test_layers_of_a_bottleneck_return_latents_and_rates(reference):
    for _, entries, layer in bottleneck.layers(8, CPU):
        z, rate = layer(torch.randn(5, entries, dtype=torch.bfloat16))
        assert (z.shape, z.dtype, rate.shape) == ((5, 8), torch.bfloat16, (5,))
        assert (rate >= 0).all()


def test_pairwise(monkeypatch, tmp_path):
    monkeypatch.setattr(pairwise, "QUICK_EFFORT", EFFORT)
    pairwise.main(["--quick", "--threads", "1", "--out", str(tmp_path)])
    document = json.loads((tmp_path / "pairwise.json").read_text(encoding="utf-8"))
    rows = document["results"]
    assert {row["matrix"] for row in rows} == {"mm", *(family.__name__ for family in pairwise.FAMILIES)}
    assert all(row["over_mm"] == 1 for row in rows if row["matrix"] == "mm")
    assert all(row["peak_outputs"] is None for row in rows)  # only CUDA reports it


def test_swaps(reference, monkeypatch, tmp_path):
    monkeypatch.setattr(swaps, "QUICK_EFFORT", EFFORT)
    swaps.main(["--quick", "--out", str(tmp_path)])
    document = json.loads((tmp_path / "swaps.json").read_text(encoding="utf-8"))
    assert len(document["results"]) == 14
    assert all(row["faster"] > 0 for row in document["results"])


def test_swaps_compute_the_same(reference):
    """Both variants of a case: outputs of the same shapes, and the same values where nothing is drawn."""
    for swap in swaps.swaps(sys.modules[REFERENCE], CPU, batch=2):
        inputs = [torch.randn(*shape).to(swap.dtype) for shape in swap.shapes]
        outputs = [variant(*inputs) for variant in (swap.before, swap.after)]
        before, after = ((one,) if isinstance(one, torch.Tensor) else one for one in outputs)
        assert [x.shape for x in before] == [x.shape for x in after], swap.title
        draws = len(before) < 3  # otherwise an actor's, whose density is that of its draw
        for index, (theirs, ours) in enumerate(zip(before, after, strict=True)):
            if (index == 1 and draws) or index == 2 or swap.title == "Probabilistic embeddings":
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_swaps_need_the_reference(no_reference, tmp_path, capsys):
    with pytest.raises(SystemExit):
        swaps.main(["--out", str(tmp_path)])
    assert "pip install --no-deps power-spherical" in capsys.readouterr().err


def test_a_step_trains(no_reference):
    """The loss of the auto-encoder falls: what is timed is training."""
    data = torch.randn(32, training_step.WIDTH)
    losses = []
    plain = training_step.nn.functional.mse_loss

    def watched(*arguments):
        losses.append(plain(*arguments))
        return losses[-1]

    _, (_, ours) = training_step.latents(16, CPU)
    step = training_step.training(ours, 16, data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_step.nn.functional, "mse_loss", watched)
        for _ in range(40):
            step()
    assert losses[-1] < losses[0]


def test_ratios_of_a_compiled_step_are_taken_within_a_round() -> None:
    rows = compiled_step.summary({"ours": [1e-6, 2e-6, 9e-6], "reference": [2e-6, 4e-6, 6e-6]})
    assert rows["reference"]["ours_over_this"] == pytest.approx(0.5)
    assert "ours_over_this" not in rows["ours"]
    assert rows["ours"]["microseconds"] == pytest.approx(2.0)


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning",  # the compiler's own use
    "ignore:.*Function'> should not be instantiated:DeprecationWarning",
)
@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="needs a C++ compiler")
def test_compiled_step(tmp_path, no_reference, monkeypatch) -> None:
    """Compiles in a new process only, which is not patched."""
    monkeypatch.setattr(torch, "compile", lambda latent, fullgraph: latent)
    compiled_step.main(["--quick", "--out", str(tmp_path)])
    written = json.loads((tmp_path / "compiled_step.json").read_text(encoding="utf-8"))
    assert [set(row["compiled"]) for row in written["results"]] == [{"ours"}]
    found = written["compilation"]["ours"]
    assert found["calls"][0] > found["calls"][1]  # the first call compiles, the second does not
    assert set(found["phases"]) == set(compiled_step.PHASES)
