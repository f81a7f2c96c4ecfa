"""Train a variational auto-encoder with a latent circle in plain JAX, on synthetic images, in a few seconds.

An image is a ring of 16 pixels with a bright arc, so one angle describes it. Run it with
``python examples/jax_vae.py`` (needs the extra ``jax``).
"""

import argparse
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from powerspherical.jax import HypersphericalUniform, PowerSpherical, kl_divergence

PIXELS, WIDTH, DIM = 16, 64, 2
ANGLES = 2 * math.pi * jnp.arange(PIXELS) / PIXELS
Weights = dict[str, jax.Array]


def rings(key: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Return ``count`` images with pixels 0 or 1, and the angles of their arcs."""
    place, noise = jax.random.split(key)
    angles = 2 * math.pi * jax.random.uniform(place, (count, 1))
    bright = jax.nn.sigmoid(6 * jnp.cos(angles - ANGLES) - 2)
    return jax.random.bernoulli(noise, bright).astype(jnp.float32), angles[:, 0]


def new_weights(key: jax.Array) -> Weights:
    """Return random weights of the encoder (names with ``in``) and the decoder (``out``)."""
    shapes = {
        "in_hidden": (PIXELS, WIDTH),
        "in_code": (WIDTH, DIM + 1),
        "out_hidden": (DIM, WIDTH),
        "out_pixels": (WIDTH, PIXELS),
    }
    keys = jax.random.split(key, len(shapes))
    return {
        name: jax.random.normal(one, shape) / math.sqrt(shape[0])
        for (name, shape), one in zip(shapes.items(), keys, strict=True)
    }


def encode(weights: Weights, images: jax.Array) -> PowerSpherical:
    """Return q(z|x) for a batch of images."""
    code = jax.nn.relu((images - 0.5) @ weights["in_hidden"]) @ weights["in_code"]
    vectors, raw = code[:, :DIM], code[:, DIM]
    loc = vectors / jnp.linalg.norm(vectors, axis=-1, keepdims=True)
    return PowerSpherical(loc, 5 * jax.nn.softplus(raw))


def decode(weights: Weights, z: jax.Array) -> jax.Array:
    """Return the log-odds of the pixels for latent codes z."""
    return jax.nn.relu(z @ weights["out_hidden"]) @ weights["out_pixels"]


def nats(weights: Weights, images: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the two parts of the negative ELBO per image, -log p(x|z) and KL(q(z|x)‖uniform)."""
    q = encode(weights, images)
    odds = decode(weights, q.sample(key))
    distortion = (jax.nn.softplus(odds) - images * odds).sum(-1)
    return distortion.mean(), kl_divergence(q, HypersphericalUniform(DIM)).mean()


@partial(jax.jit, static_argnums=2)
def train(weights: Weights, key: jax.Array, steps: int) -> tuple[Weights, jax.Array]:
    """Return weights after ``steps`` steps of Adam, and the negative ELBO at each step."""

    def step(state: Any, inputs: Any) -> Any:
        weights, mean, square = state
        count, key = inputs
        data, noise = jax.random.split(key)
        loss, slope = jax.value_and_grad(lambda w: sum(nats(w, rings(data, 128)[0], noise)))(weights)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, slope)
        square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, square, slope)
        rate = 1e-2 * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        weights = jax.tree.map(lambda w, m, s: w - rate * m / (jnp.sqrt(s) + 1e-8), weights, mean, square)
        return (weights, mean, square), loss

    zero = jax.tree.map(jnp.zeros_like, weights)
    inputs = jnp.arange(1.0, steps + 1), jax.random.split(key, steps)
    (weights, _, _), losses = jax.lax.scan(step, (weights, zero, zero), inputs)
    return weights, losses


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Train, print the scores of new images, and return them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400, help="default: %(default)s")
    options = parser.parse_args(arguments)
    start, training, data, noise = jax.random.split(jax.random.key(0), 4)
    weights, losses = train(new_weights(start), training, options.steps)
    images, angles = rings(data, 1000)
    distortion, rate = jax.jit(nats)(weights, images, noise)
    # The circle has no preferred origin or sense of rotation. The code is right up to these.
    loc = encode(weights, images).loc
    code = jnp.arctan2(loc[:, 1], loc[:, 0])
    agreement = max(abs(jnp.exp(1j * (code - angles)).mean()), abs(jnp.exp(1j * (code + angles)).mean()))
    found = {
        "negative ELBO at the start": float(losses[0]),
        "negative ELBO": float(distortion + rate),
        "rate": float(rate),
        "agreement of code and angle": float(agreement),
    }
    for name, value in found.items():
        print(f"{name}: {value:.3f}")
    return found


if __name__ == "__main__":
    main()
