"""KL(PowerSpherical ‖ uniform) with its gradient at a small batch, beside the plain lgamma/digamma formula.

At 64 rows the number of operations is what costs. Both run in one process, interleaved, one thread; the table
shows medians and ratios, eager and compiled.

    python benchmarks/kl_uniform.py [--json results/kl_uniform.json]
"""

import argparse
import json
import math
import statistics
import time

import torch
from torch.distributions import kl_divergence

from powerspherical import HypersphericalUniform, PowerSpherical
from powerspherical.experiments.results import hardware, versions

BATCH = 64


def plain(kappa, dim):
    """The closed form of De Cao & Aziz (2020), H(U) - H(X), as it stands."""
    beta = (dim - 1) / 2
    alpha = beta + kappa
    log_n = (
        (alpha + beta) * math.log(2)
        + beta * math.log(math.pi)
        + torch.lgamma(alpha)
        - torch.lgamma(alpha + beta)
    )
    entropy = log_n - kappa * (math.log(2) + torch.digamma(alpha) - torch.digamma(alpha + beta))
    return math.log(2) + dim / 2 * math.log(math.pi) - math.lgamma(dim / 2) - entropy


def ours(kappa, loc):
    return kl_divergence(
        PowerSpherical(loc, kappa, validate_args=False), HypersphericalUniform(loc.shape[-1])
    )


def medians(functions, repeats):
    """Median microseconds of each function, called in turn."""
    times = {name: [] for name in functions}
    for function in functions.values():
        function()
        function()
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
    return {name: 1e6 * statistics.median(values) for name, values in times.items()}


def measure(dim, dtype, repeats):
    kappa = (50 * torch.rand(BATCH, dtype=dtype)).requires_grad_()
    loc = torch.nn.functional.normalize(torch.randn(BATCH, dim, dtype=dtype), dim=-1)
    q, prior = PowerSpherical(loc, kappa, validate_args=False), HypersphericalUniform(dim)
    compiled_plain = torch.compile(lambda k: plain(k, dim).sum(), fullgraph=True)
    compiled_ours = torch.compile(lambda k, mu: ours(k, mu).sum(), fullgraph=True)

    def with_backward(forward):
        def step():
            forward().backward()
            kappa.grad = None

        return step

    return medians(
        {
            "plain": with_backward(lambda: plain(kappa, dim).sum()),
            "ours": with_backward(lambda: kl_divergence(q, prior).sum()),
            "ours with constructors": with_backward(lambda: ours(kappa, loc).sum()),
            "plain compiled": with_backward(lambda: compiled_plain(kappa)),
            "ours compiled with constructors": with_backward(lambda: compiled_ours(kappa, loc)),
        },
        repeats,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=500)
    parser.add_argument("--json", metavar="FILE", help="also write the results there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = []
    for dtype in (torch.float32, torch.float64):
        for dim in (3, 8, 64):
            times = measure(dim, dtype, arguments.repeats)
            eager = times["ours"] / times["plain"]
            compiled = times["ours compiled with constructors"] / times["plain compiled"]
            rows.append(
                {"dim": dim, "dtype": str(dtype), "microseconds": times, "eager": eager, "compiled": compiled}
            )
            print(
                f"{dtype!s:14} d={dim:<3} eager {eager:.2f}, compiled {compiled:.2f} times the plain formula",
                flush=True,
            )
    if arguments.json:
        report = {
            "command": "python benchmarks/kl_uniform.py --json results/kl_uniform.json",
            "batch": BATCH,
            "rows": rows,
            "versions": versions(["powerspherical", "torch"]),
            "hardware": hardware(),
        }
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=2)


if __name__ == "__main__":
    main()
