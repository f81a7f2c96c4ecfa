"""The distributions on the unit sphere for JAX: the same formulas and tables as for torch, which is not imported.

Distributions are small pytrees. Everything works under ``jit``, ``vmap``, ``grad``, ``jacfwd``, ``checkpoint`` and
``shard_map``, closed forms also under ``hessian``. Results have the dtype of the parameters. Terms that cancel are
computed in float64, also where JAX's default is float32.

>>> import jax
>>> import jax.numpy as jnp
>>> p = PowerSpherical(jnp.array([1.0, 0.0, 0.0]), 10.0)
>>> p.sample(jax.random.key(0), (5,)).shape
(5, 3)
>>> kl_divergence(p, HypersphericalUniform(3))
Array(1.4888043, dtype=float32)
"""

from powerspherical._extras import install_hint

try:
    import jax
except ModuleNotFoundError as error:
    raise ImportError(f"powerspherical.jax needs JAX: {install_hint('jax')}") from error

if tuple(map(int, jax.__version__.split(".")[:2])) < (0, 8):
    raise ImportError(
        f"powerspherical.jax needs JAX 0.8 or newer, which computes in float64 inside of float32 programs, found "
        f"{jax.__version__}: pip install -U jax"
    )

from powerspherical.jax import special
from powerspherical.jax.cosine import Cosine
from powerspherical.jax.distributions import (
    HypersphericalUniform,
    PowerSpherical,
    RotationallySymmetric,
    SphericalCauchy,
    VonMisesFisher,
    kl_divergence,
)
from powerspherical.jax.families import ExponentialFamily, Family

__all__ = [
    "Cosine",
    "ExponentialFamily",
    "Family",
    "HypersphericalUniform",
    "PowerSpherical",
    "RotationallySymmetric",
    "SphericalCauchy",
    "VonMisesFisher",
    "kl_divergence",
    "special",
]
