"""Write the tables of the README and the documentation from the published results: python docs/tables.py

A table is between `<!-- table: NAME -->` and `<!-- end -->` in README.md or docs/*.md. NAME is a function of this
module. A test checks that the pages agree with the results.
"""

import json
import math
import re
from pathlib import Path

import torch
from torch.distributions import kl_divergence

from powerspherical import HypersphericalUniform, PowerSpherical, SphericalCauchy, VonMisesFisher
from powerspherical_paper import claims
from powerspherical_paper.autoencoder.table import collect, plain
from powerspherical_paper.report.autoencoder import scores

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
PLACE = re.compile(r"<!-- table: (?P<name>\w+) -->.*?<!-- end -->", re.S)


def results(name):
    """Return the results in `results/NAME.json`."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["results"]


def table(head, rows):
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def nats(value):
    """Return a score as text, with two digits and a minus sign."""
    return f"{value:.2f}".replace("-", "−")


def vae():
    """Return the table of log-likelihood and ELBO: in the paper, by its protocol, and tuned."""
    found = scores(collect(results("vae_mnist")))
    return table(found.head, found.rows)


def time():
    """Return the table of the paper's claims on time, with our measurements."""
    judged = [
        results(name)["claims"][whose]
        for name in ("efficiency", "efficiency_cuda")
        for whose in ("published", "ours")
    ]
    ratios = [claim["vmf_over_ps"] for claim in judged]
    spreads = [claim["spread_over_concentrations"]["ps"] for claim in judged]
    training = results("training_time")["factors"]
    steps = [training[name] for name in ("published_vmf_over_published_ps", "our_vmf_over_our_ps")]
    rows = [
        [
            "a draw: vMF over Power Spherical, for κ from 1 to 5·10⁴",
            "6 – 20",
            *(f"{ratio['min']:.1f} – {ratio['max']:.1f}" for ratio in ratios),
        ],
        ["a draw: slowest over fastest κ, Power Spherical", "1", *(f"{spread:.1f}" for spread in spreads)],
        ["a training step: vMF over Power Spherical", "> 2", *(f"{step:.2f}" for step in steps), "–", "–"],
    ]
    head = ["", "the paper", "CPU, published", "CPU, ours", "H200, published", "H200, ours"]
    return table(head, rows)


def multiples(found, method):
    """Return the times of a method as multiples of the normals', forward and with the backward pass."""
    return ", ".join(
        f"{row['ratio']:.1f}" if row["ratio"] > 10 else f"{row['ratio']:.2f}"
        for row in found
        if row["method"] == method
    )


def draws():
    """Return the table of the times of draws as multiples of the normals'."""
    rows = []
    for name, machine in (("sampling", "CPU, one thread"), ("sampling_cuda", "H200")):
        found = [row for row in results(name) if row["section"] == "sizes" and row["floor"] == "randn"]
        fewest = min(row["threads"] for row in found)
        groups = {}
        for row in found:
            shared = row["loc"] == "shared"
            large = row["rows"] * row["dim"] > 50_000_000  # there it matters whether μ is shared
            if row["threads"] == fewest and (large or not shared):
                groups.setdefault((row["rows"], row["dim"], row["loc"]), []).append(row)
        for (count, dim, loc), group in groups.items():
            floor = next(row["milliseconds"] for row in group if row["method"] == "randn")
            methods = ("our_ps", "our_vmf", "reference_ps")
            cells = [multiples(group, method) or "–" for method in methods]
            time = f"{floor:.0f} ms" if floor > 1 else f"{1e3 * floor:.0f} µs"
            rows.append([machine, f"{count:,} × {dim:,}", loc, time, *cells])
    head = ["", "n × d", "μ", "`torch.randn`", "Power Spherical", "von Mises–Fisher", "PS, the authors'"]
    return table(head, rows)


def rounded(value):
    """Return three digits, with a comma between thousands, or a power of ten from a million on."""
    if value >= 1e6:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{float(mantissa):g}·10{str(int(exponent)).translate(SUPERSCRIPTS)}"
    if value >= 100:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"


def concentrations():
    """Return what a concentration means at several dimensions: nats, the mean cosine, and caps in degrees."""
    rows = []
    for dim in (2, 3, 8, 64, 768):
        pole = torch.eye(1, dim, dtype=torch.float64)[0]
        for length in (0.1, 0.5, 0.9, 0.99):
            cells = [str(dim), f"{length:g}"]
            for family in (PowerSpherical, VonMisesFisher, SphericalCauchy):
                q = family.from_mean_length(pole, length)
                nats = kl_divergence(q, HypersphericalUniform(dim, dtype=torch.float64)).item()
                angle = math.degrees(q.cap_angle(torch.tensor(0.5, dtype=torch.float64)))
                cells.append(f"{rounded(q.concentration.item())}; {rounded(nats)} nats; {angle:.0f}°")
            rows.append(cells)
    return table(["d", "mean cosine", "Power Spherical", "von Mises–Fisher", "spherical Cauchy"], rows)


def nats_for_rate():
    """Return the concentration of a Power Spherical distribution with a given rate, at several dimensions."""
    rates = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
    rows = []
    for dim in (2, 3, 4, 8, 16, 64, 256):
        pole = torch.eye(1, dim, dtype=torch.float64)[0]
        found = [PowerSpherical.from_kl(pole, rate).concentration.item() for rate in rates]
        rows.append([str(dim), *map(rounded, found)])
    return table(["d", *(f"{rate:g} nat{'s' if rate != 1 else ''}" for rate in rates)], rows)


def bottleneck():
    """Return the table of the times of a bottleneck's step, beside a Gaussian one and the authors' package."""
    names = {
        "gaussian": "Gaussian",
        "power_spherical": "Power Spherical",
        "von_mises_fisher": "von Mises–Fisher",
        "spherical_cauchy": "spherical Cauchy",
        "reference": "Power Spherical, the authors'",
    }
    groups = {}
    for machine, name in (("H200", "bottleneck_cuda"), ("CPU", "bottleneck")):
        for row in results(name):
            cell = f"{row['microseconds']:.0f} µs, {row['over_gaussian']:.2f}"
            setting = machine, f"{row['rows']:,} × {row['dim']}", names[row["layer"]]
            groups.setdefault(setting, {})[row["mode"]] = cell
    modes = ["eager", "compiled", "CUDA graphs"]
    rows = [[*setting, *(cells.get(mode, "–") for mode in modes)] for setting, cells in groups.items()]
    return table(["", "n × d", "latent", *modes], rows)


def kl_uniform():
    """Return the table of the times of KL to the uniform, as ratios to the plain formula of Power Spherical."""
    found, rows = results("kl_uniform"), []
    for dtype in ("float32", "float64"):
        ratios = [row["ratios"] for row in found if row["dtype"] == dtype]
        for name in ratios[0]:
            cells = (", ".join(f"{one[name][mode]:.2f}" for one in ratios) for mode in ("eager", "compiled"))
            rows.append([dtype, f"`{name}`", *cells])
    return table(["", "KL of", "eager", "compiled"], rows)


def tokeniser():
    """Return the table of the tokeniser's rates, in nats and bits, with a uniform and with a learned prior."""
    found, tokens = results("spherical_tokeniser"), 16
    rows = []
    for prior in ("uniform", "learned"):
        rate = found[f"rate per token, {prior} prior"]
        cells = (f"{rate * scale:.2f} nats, {rate * scale / math.log(2):.2f} bits" for scale in (1, tokens))
        rows.append([prior, *cells])
    return table(["prior", "rate per token", "rate per image"], rows)


def compiled():
    """Return the table of a small step on the CPU, eager and compiled, beside the authors' package."""
    rows = []
    for row in results("compiled_step"):
        cells = [f"{row['batch']} × {row['dim']}"]
        for mode in ("eager", "compiled"):
            theirs = row[mode]["reference"]["ours_over_this"]
            rewritten = row[mode]["reference, formula"]["ours_over_this"]
            cells += [f"{row[mode]['ours']['microseconds']:.0f} µs", f"{theirs:.2f}, {rewritten:.2f}"]
        rows.append(cells)
    head = ["n × d", "eager", "ours over theirs", "compiled", "ours over theirs"]
    return table(head, rows)


def pairwise():
    """Return the table of the times of all pairs, as multiples of the matrix product's."""
    groups = {}
    for row in results("pairwise_cuda"):
        cell = f"{row['milliseconds']:.2f} ms, {row['over_mm']:.2f}"
        size = f"{row['rows']:,} × {row['columns']:,}, d = {row['dim']}"
        groups.setdefault((size, row["matrix"]), {})[row["pass"]] = (cell, row["peak_outputs"])
    rows = [
        [
            size,
            "`torch.mm`" if name == "mm" else f"`{name}`",
            *(cells[which][0] for which in ("forward", "with backward")),
            f"{cells['forward'][1]:.1f}, {cells['with backward'][1]:.1f}",
        ]
        for (size, name), cells in groups.items()
    ]
    return table(["B × N", "", "forward", "with gradients", "memory / result"], rows)


def swaps():
    """Return the table of the cases of the migration page: times before and after, and their ratios."""
    found = [results(name) for name in ("swaps", "swaps_cuda") if (RESULTS / f"{name}.json").exists()]
    rows = []
    for devices in zip(*found, strict=True):
        sizes = " and ".join(str(tuple(shape)) for shape in devices[0]["shapes"])
        cells = []
        for row in devices:
            before, after = (rounded(row["microseconds"][name] / 1000) for name in ("before", "after"))
            cells.append(f"{before} ms → {after} ms, {row['faster']:#.2g}")
        rows.append([devices[0]["case"], sizes or "–", *cells])
    return table(["case", "inputs", "CPU, one thread", "H200"][: 2 + len(found)], rows)


def with_gradients(name, method, rows):
    """Return the time of draws in R⁶⁴ with their gradients as a multiple of the normals', with the fewest threads."""
    wanted = {"section": "sizes", "floor": "randn", "quantity": "forward and backward", "loc": "per row"}
    wanted |= {"method": method, "rows": rows, "dim": 64}
    found = [row for row in results(name) if wanted.items() <= row.items()]
    return f"{min(found, key=lambda row: row['threads'])['ratio']:.2g}"


def summary():
    """Return the README's table: accuracy, stability, speed and the paper in a few lines."""
    stability, found = results("stability"), collect(results("vae_mnist"))
    worst = {name: cell["worst"] for name, cell in stability["closed_forms"].items()}
    ours = max(worst[f"{family}/kl/ours_float32"] for family in ("ps", "vmf"))
    lost = stability["closed_forms"]["vmf/kl/published_float32"]
    samples = stability["samples"]
    rows = [
        [
            "error of KL to the uniform, relative above 1, float32, d to 10⁷, κ to 10⁹",
            f"{ours:.0e}",
            f"{worst['ps/kl/published_float32']:.0f} by `lgamma`; NaN in {lost['not_finite']} of {lost['cells']} cells "
            "by Bessel functions",
        ],
        [
            "pairs (d, κ) up to 9·10⁵ at which draws or gradients fail",
            f"{samples['our_ps']['bad'] + samples['our_vmf']['bad']} of {samples['our_ps']['cells']:,}",
            f"{samples['published_vmf']['bad']}, published von Mises–Fisher",
        ],
    ]
    for name, machine, count in (("sampling", "CPU", 100_000), ("sampling_cuda", "H200", 1_000_000)):
        times = [with_gradients(name, method, count) for method in ("our_ps", "our_vmf", "reference_ps")]
        rows.append(
            [
                f"{count:,} draws in R⁶⁴ with gradients, {machine}, times `torch.randn`",
                f"{times[0]}; von Mises–Fisher {times[1]}",
                f"{times[2]}, the authors' package",
            ]
        )
    rows.append(
        [
            "MNIST auto-encoder, d = 20, test log-likelihood in nats",
            nats(plain(found)["power_spherical", 20].means[0]),
            f"{nats(claims.VAE['power_spherical'][20][0])}, the paper",
        ]
    )
    return table(["", "ours", "others"], rows)


def versions():
    """Return the table of how many tests pass with which versions."""

    def cell(entry, run):
        if run not in entry:
            return "not run"
        count = entry[run]
        skipped, failed = (f", {count[kind]} {kind}" if count[kind] else "" for kind in ("skipped", "failed"))
        return f"{count['passed']}{skipped}{failed}"

    names = "torch", "python", "numpy", "triton"
    rows = [
        [
            *(entry[name].partition("+")[0] for name in names),
            *(cell(entry, run) for run in ("core", "compiled")),
        ]
        for entry in results("versions")
    ]
    return table(["torch", "Python", "NumPy", "Triton", "core", "compiled and exported"], rows)


MAKERS = (
    *(summary, versions, concentrations, nats_for_rate, draws, bottleneck),
    *(compiled, kl_uniform, tokeniser, pairwise, swaps, vae, time),
)
TABLES = {make.__name__: make for make in MAKERS}


def filled(text):
    """Return the text of a page with its tables replaced by those from the results."""
    return PLACE.sub(
        lambda found: f"<!-- table: {found['name']} -->\n\n{TABLES[found['name']]()}\n\n<!-- end -->", text
    )


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
