"""Write the README's tables from the published results: python benchmarks/readme_tables.py

A table is between `<!-- table: NAME -->` and `<!-- end -->`. A test checks that the README agrees with the results.
"""

import json
import re
from pathlib import Path

from powerspherical.experiments import paper
from powerspherical.experiments.autoencoder.table import POSTERIORS, collect, plain

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"


def results(name):
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["results"]


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def nats(value):
    return f"{value:.2f}".replace("-", "−")


def pair(scores):
    return ", ".join(map(nats, scores))


def vae():
    """Return the table of log-likelihood and ELBO: in the paper, by its protocol, and tuned."""
    found = collect(results("vae_mnist"))
    rows = []
    for (posterior, dim), scores in plain(found).items():
        published = paper.VAE.get(posterior, {}).get(dim)
        tuned = plain(found, "tuned").get((posterior, dim))
        rows.append(
            [
                POSTERIORS[posterior],
                str(dim),
                pair(published) if published else "–",
                pair(scores.means),
                pair(tuned.means) if tuned else "–",
            ]
        )
    return table(["posterior", "d", "the paper", "the paper's protocol", "tuned"], rows)


def span(claims):
    low, high = claims["vmf_over_ps"]["min"], claims["vmf_over_ps"]["max"]
    return f"{low:.1f} – {high:.1f}"


def time():
    """Return the table of the paper's claims on time, with our measurements."""
    cpu, gpu = results("efficiency")["claims"], results("efficiency_cuda")["claims"]
    training = results("training_time")["factors"]
    rows = [
        [
            "a draw: vMF over Power Spherical, for κ from 1 to 5·10⁴",
            "6 – 20",
            *(span(device[whose]) for device in (cpu, gpu) for whose in ("published", "ours")),
        ],
        [
            "a draw: slowest over fastest κ, Power Spherical",
            "1",
            *(
                f"{device[whose]['spread_over_concentrations']['ps']:.1f}"
                for device in (cpu, gpu)
                for whose in ("published", "ours")
            ),
        ],
        [
            "a training step: vMF over Power Spherical",
            "> 2",
            f"{training['published_vmf_over_published_ps']:.2f}",
            f"{training['our_vmf_over_our_ps']:.2f}",
            "–",
            "–",
        ],
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


def filled(text):
    """Return the text with its tables replaced by those from the results."""
    for make in (vae, time, draws):
        opening = f"<!-- table: {make.__name__} -->"
        pattern = re.escape(opening) + r".*?<!-- end -->"
        text, count = re.subn(
            pattern, lambda _, m=make, o=opening: f"{o}\n\n{m()}\n\n<!-- end -->", text, flags=re.S
        )
        if count != 1:
            raise SystemExit(f"README.md has {count} places for the table {make.__name__}, not one")
    return text


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(filled(readme.read_text(encoding="utf-8")), encoding="utf-8")
