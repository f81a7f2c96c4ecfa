"""KL(q ‖ uniform) with its gradient at a small batch, for Power Spherical and von Mises–Fisher.

Both are compared with the published formula of Power Spherical in lgamma and digamma. For von Mises–Fisher there is no
such formula in torch, which has no Bessel functions of general order. At 64 rows the number of operations determines
the time. All variants take turns on one thread. The table shows ratios of medians, eager and compiled.

    python benchmarks/kl_uniform.py [--quick] [--out DIR]
"""

from functools import partial
from itertools import product

import torch
from _command import Command, Row, summary_in, table
from torch import Tensor
from torch.distributions import kl_divergence

from powerspherical import HypersphericalUniform, PowerSpherical, VonMisesFisher
from powerspherical._selfcheck.accuracy import dtype_name
from powerspherical.special import log_sphere_area
from powerspherical_paper.baselines.formulas import power_spherical_entropy
from powerspherical_paper.timing import Call, Effort, measure, wall_clock

BATCH, DIMS, QUICK_DIMS = 64, (3, 8, 64), (3,)
EFFORT = Effort(seconds=0, least=500, most=500)
FAMILIES = {"PowerSpherical": PowerSpherical, "VonMisesFisher": VonMisesFisher}


def timed(dtype: torch.dtype, dim: int, effort: Effort) -> Row:
    """Return the median microseconds of a step of each variant, and the ratios to the formula."""
    torch.compiler.reset()  # torch limits the number of recompilations
    kappa = (50 * torch.rand(BATCH, dtype=dtype)).requires_grad_()
    loc = torch.nn.functional.normalize(torch.randn(BATCH, dim, dtype=dtype), dim=-1)
    area, prior = log_sphere_area(dim), HypersphericalUniform(dim)

    def plain(kappa: Tensor) -> Tensor:
        return area - power_spherical_entropy(dim, kappa)  # d is a number, so that its terms cost nothing

    def constructed(family: type, kappa: Tensor) -> Tensor:
        return kl_divergence(family(loc, kappa, validate_args=False), HypersphericalUniform(dim))

    def with_backward(forward: Call) -> None:
        forward().sum().backward()
        kappa.grad = None

    forwards = {
        "plain": partial(plain, kappa),
        "plain compiled": partial(torch.compile(plain, fullgraph=True), kappa),
    }
    for name, family in FAMILIES.items():
        function = partial(constructed, family)
        q = family(loc, kappa, validate_args=False)
        forwards[name] = partial(kl_divergence, q, prior)
        forwards[f"{name} with constructors"] = partial(function, kappa)
        forwards[f"{name} compiled with constructors"] = partial(
            torch.compile(function, fullgraph=True), kappa
        )
    variants = {name: partial(with_backward, forward) for name, forward in forwards.items()}
    seconds = measure(variants, effort, wall_clock)
    times = {name: summary_in("microseconds", each)["microseconds"] for name, each in seconds.items()}
    ratios = {
        name: {
            "eager": times[name] / times["plain"],
            "compiled": times[f"{name} compiled with constructors"] / times["plain compiled"],
        }
        for name in FAMILIES
    }
    return {"dim": dim, "dtype": dtype_name(dtype), "microseconds": times, "ratios": ratios}


def main(argv: list[str] | None = None) -> None:
    """Measure, print the table, and write `kl_uniform.json`."""
    command = Command("kl_uniform", __doc__, argv, cpu_only=True)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dims, effort = QUICK_DIMS if command.quick else DIMS, command.effort(EFFORT)
    rows = [timed(dtype, dim, effort) for dtype, dim in product((torch.float32, torch.float64), dims)]
    lines = [
        (row["dtype"], name, row["dim"], *(f"{one[mode]:.2f}" for mode in ("eager", "compiled")))
        for row in rows
        for name, one in row["ratios"].items()
    ]
    shown = table("Time over that of the formula", ("", "KL of", "d", "eager", "compiled"), lines, labels=2)
    configuration = {"batch": BATCH, "rounds": effort.most, "threads": 1}
    command.finish({"configuration": configuration, "results": rows}, [shown])


if __name__ == "__main__":
    main()
