"""TensorFlow Probability's samplers on JAX, timed in a separate environment.

`sampling.py` runs this file with the interpreter given by `--tfp` and reads the rounds from standard output. The floor
is a compiled `jax.random.normal`. The samplers are compiled too, and every call waits for its result. The keys of the
random numbers are made in advance.

    python benchmarks/tfp.py REQUEST   (as JSON)
"""

import json
import os
import sys
from functools import partial
from itertools import cycle
from typing import Any

from powerspherical_paper.timing import Call, Effort, keep_freed_memory, measure, wall_clock

KEYS = 64


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Print the rounds of every requested size and quantity, in seconds, and the versions."""
    keep_freed_memory()
    # JAX has no option for the number of threads. It uses one per processor that the process may use.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: request["threads"]])
    import jax
    import tensorflow_probability.substrates.jax as tfp

    groups = []
    for rows, dim, turn in request["sizes"]:
        for quantity in request["quantities"]:
            found = methods(rows, dim, request["kappa"], differentiated=quantity != "forward")
            times = measure(found, Effort(**request["effort"]), wall_clock, turn)
            groups.append({"rows": rows, "dim": dim, "quantity": quantity, "seconds": times})
    return {"groups": groups, "versions": {"jax": jax.__version__, "tensorflow-probability": tfp.__version__}}


def methods(rows: int, dim: int, kappa: float, *, differentiated: bool) -> dict[str, Call]:
    """Return the compiled floor and samplers by name, as functions without arguments."""
    import jax
    import jax.numpy as jnp
    from tensorflow_probability.substrates.jax.distributions import PowerSpherical, VonMisesFisher

    first, second, *keys = jax.random.split(jax.random.PRNGKey(0), KEYS + 2)
    loc = jax.random.normal(first, (rows, dim))
    loc = loc / jnp.linalg.norm(loc, axis=-1, keepdims=True)
    parameters = loc, jnp.full((rows,), kappa)
    gradient = jax.random.normal(second, (rows, dim))

    def ready(function: Any, *arguments: Any) -> Call:
        compiled, remaining = jax.jit(function), cycle(keys)
        return lambda: jax.block_until_ready(compiled(*arguments, next(remaining)))

    def drawn(family: Any, loc: Any, kappa: Any, key: Any) -> Any:
        return family(loc, kappa).sample(seed=key)

    def pulled_back(family: Any, loc: Any, kappa: Any, key: Any) -> Any:
        return jax.vjp(lambda *both: drawn(family, *both, key), loc, kappa)[1](gradient)

    found = {"jax_normal": ready(partial(jax.random.normal, shape=(rows, dim)))}
    for name, family in (("tfp_ps", PowerSpherical), ("tfp_vmf", VonMisesFisher)):
        if not differentiated:
            found[name] = ready(partial(drawn, family), *parameters)
        # JAX cannot differentiate the rejection loop of its vMF in reverse mode. At d = 3 it uses inversion instead.
        elif name == "tfp_ps" or dim == 3:
            found[name] = ready(partial(pulled_back, family), *parameters)
    return found


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
