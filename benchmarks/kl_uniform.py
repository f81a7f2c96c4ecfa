"""KL(q ‖ uniform) with its gradient at a small batch, for Power Spherical and von Mises–Fisher.

Both are compared with the plain lgamma/digamma formula of Power Spherical. For von Mises–Fisher there is no such
formula in torch, which has no Bessel functions of general order. At 64 rows the number of operations determines the
time. All variants run in one process, interleaved, on one thread. The table shows ratios of medians, eager and
compiled.

    python benchmarks/kl_uniform.py [--json results/kl_uniform.json]
"""

import argparse
import functools
import json
import math
import statistics

import torch
from _timing import Effort, measure, wall_clock
from torch.distributions import kl_divergence

from powerspherical import HypersphericalUniform, PowerSpherical, VonMisesFisher
from powerspherical._selfcheck.environment import hardware, versions

BATCH = 64
FAMILIES = {"PowerSpherical": PowerSpherical, "VonMisesFisher": VonMisesFisher}


def plain(kappa, dim):
    """The closed form of De Cao & Aziz (2020) for Power Spherical, H(U) - H(X), as printed."""
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


def ours(family, kappa, loc):
    return kl_divergence(family(loc, kappa, validate_args=False), HypersphericalUniform(loc.shape[-1]))


def medians(dim, dtype, repeats):
    """Return the median microseconds of one step of each variant: the plain formula, and each family in three ways."""
    torch.compiler.reset()  # torch limits the number of recompilations
    kappa = (50 * torch.rand(BATCH, dtype=dtype)).requires_grad_()
    loc = torch.nn.functional.normalize(torch.randn(BATCH, dim, dtype=dtype), dim=-1)
    prior = HypersphericalUniform(dim)

    def with_backward(forward):
        def step():
            forward().sum().backward()
            kappa.grad = None

        return step

    compiled_plain = torch.compile(lambda k: plain(k, dim), fullgraph=True)
    variants = {
        "plain": with_backward(lambda: plain(kappa, dim)),
        "plain compiled": with_backward(lambda: compiled_plain(kappa)),
    }
    for name, family in FAMILIES.items():
        q = family(loc, kappa, validate_args=False)
        function = functools.partial(ours, family)
        compiled = torch.compile(function, fullgraph=True)
        variants |= {
            name: with_backward(functools.partial(kl_divergence, q, prior)),
            f"{name} with constructors": with_backward(functools.partial(function, kappa, loc)),
            f"{name} compiled with constructors": with_backward(functools.partial(compiled, kappa, loc)),
        }
    times = measure(variants, Effort(seconds=0, least=repeats, most=repeats), wall_clock)
    return {name: 1e6 * statistics.median(seconds) for name, seconds in times.items()}


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
            times = medians(dim, dtype, arguments.repeats)
            ratios = {
                name: {
                    "eager": times[name] / times["plain"],
                    "compiled": times[f"{name} compiled with constructors"] / times["plain compiled"],
                }
                for name in FAMILIES
            }
            rows.append({"dim": dim, "dtype": str(dtype), "microseconds": times, "ratios": ratios})
            for name, ratio in ratios.items():
                print(
                    f"{dtype!s:14} d={dim:<3} {name:15} eager {ratio['eager']:.2f}, compiled {ratio['compiled']:.2f} "
                    "times the plain formula",
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
