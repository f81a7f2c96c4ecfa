"""Tail probabilities and quantiles of t with derivatives, for any family. All arrays are float64 and of one shape."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from powerspherical.jax.cosine import Cosine
from powerspherical.jax.families import Family
from powerspherical.jax.law import Law, log_cosine_normalizer

Pair = tuple[Array, Array]


def _inside(t: Cosine) -> tuple[Array, Cosine]:
    """Return whether -1 < t < 1, and t with 0 in place of the ends ±1, where derivatives are 0."""
    inside = (t.minus > 0) & (t.plus > 0)
    return inside, t.map(lambda end: jnp.where(inside, end, 1.0))


def _log_pdf(family: Family, t: Cosine, kappa: Array, dim: int) -> Array:
    """Return the log-density of t for -1 < t < 1."""
    log_sine = 0.5 * (jnp.log(t.minus) + jnp.log(t.plus))
    density = family.log_kernel(t, kappa, dim) + family.offset(kappa, dim)
    return density + (dim - 3) * log_sine + log_cosine_normalizer(dim)


def _dt_dkappa(family: Family, t: Cosine, kappa: Array, dim: int) -> Array:
    """Return dt/dκ at a fixed probability."""
    return Law(family, kappa, dim).slope(t) * t.minus * t.plus


def _log1mexp(x: Array) -> Array:
    """Return log(1 - e^x) for x ≤ 0."""
    close = x > -math.log(2)
    near = jnp.log(-jnp.expm1(jnp.where(close, x, -1.0)))
    return jnp.where(close, near, jnp.log1p(-jnp.exp(jnp.where(close, -1.0, x))))


def log_tails(family: Family, t: Cosine, kappa: Array, dim: int) -> Pair:
    """Return log P(T ≤ t) and log P(T > t), differentiable once."""
    return _log_tails(family, dim, t, kappa)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _log_tails(family: Family, dim: int, t: Cosine, kappa: Array) -> Pair:
    near, below = family.log_tail(t, kappa, dim)
    far = _log1mexp(near)
    log_cdf, log_sf = jnp.where(below, near, far), jnp.where(below, far, near)
    known = ~jnp.isnan(kappa)
    bottom, top = (t.plus <= 0) & known, (t.minus <= 0) & known
    log_cdf = jnp.where(top, 0.0, jnp.where(bottom, -math.inf, log_cdf))
    return log_cdf, jnp.where(bottom, 0.0, jnp.where(top, -math.inf, log_sf))


@_log_tails.defjvp
def _(family: Family, dim: int, primals: Any, tangents: Any) -> tuple[Pair, Pair]:
    (t, kappa), (dt, dkappa) = primals, tangents
    tails = _log_tails(family, dim, t, kappa)
    inside, t = _inside(_once(t))
    change = 0.5 * (dt.plus - dt.minus) - _dt_dkappa(family, t, _once(kappa), dim) * dkappa
    log_pdf = _log_pdf(family, t, kappa, dim)
    log_cdf, log_sf = (
        jnp.where(inside, jnp.exp(log_pdf - jnp.where(inside, x, 0.0)), 0.0) for x in _once(tails)
    )
    return tails, (log_cdf * change, -log_sf * change)


def quantile(family: Family, u: Array, complement: Array, kappa: Array, dim: int) -> Cosine:
    """Return the t with P(T ≤ t) = u, given u and ``complement`` = 1-u; NaN outside [0, 1]. Differentiable once."""
    return _quantile(family, dim, u, complement, kappa)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _quantile(family: Family, dim: int, u: Array, complement: Array, kappa: Array) -> Cosine:
    t = family.quantile(u, complement, kappa, dim)
    known = ~jnp.isnan(kappa)
    bottom, top = (u == 0) & known, (complement == 0) & known
    minus = jnp.where(bottom, 2.0, jnp.where(top, 0.0, t.minus))
    return Cosine(minus, jnp.where(bottom, 0.0, jnp.where(top, 2.0, t.plus)))


@_quantile.defjvp
def _(family: Family, dim: int, primals: Any, tangents: Any) -> tuple[Cosine, Cosine]:
    (_, _, kappa), (du, dcomplement, dkappa) = primals, tangents
    found = _quantile(family, dim, *primals)
    inside, t = _inside(_once(found))
    in_u = 0.5 * jnp.exp(-_log_pdf(family, t, kappa, dim))
    in_kappa = _dt_dkappa(family, t, _once(kappa), dim)
    change = jnp.where(inside, in_u * (du - dcomplement) + in_kappa * dkappa, 0.0)
    return found, Cosine(-change, change)


@jax.custom_jvp
def _once(arrays: Any) -> Any:
    """The identity. Its derivative, the second one of a probability, raises."""
    return arrays


@_once.defjvp
def _(primals: Any, tangents: Any) -> Any:
    raise NotImplementedError("tail probabilities and quantiles are differentiable once, not twice")
