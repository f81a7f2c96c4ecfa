"""The modes of torch that tests run members in, as functions of a member and a distribution.

Each evaluates the member in that mode, with the parameters of the distribution. Its result should be that of
``member(q)``, or the derivatives of it.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.func import grad, hessian, jacfwd, jacrev, vmap

from helpers.members import Member

Mode = Callable[[Member, Distribution], Any]
Function = Callable[[Tensor, Tensor], Tensor]


def of_parameters(member: Member, family: type, validate_args: bool = True) -> Function:
    """Return the member as a function of the parameters. Transforms and compiled code do not look at values."""
    return lambda loc, kappa: member(family(loc, kappa, validate_args=validate_args))


def loss(member: Member, family: type) -> Function:
    """Return a sum over the member's entries with different weights, the same for each row of the parameters."""

    def function(loc: Tensor, kappa: Tensor) -> Tensor:
        rows = member(family(loc, kappa, validate_args=True)).reshape(*kappa.shape, -1)
        return (rows * torch.arange(1.0, rows.shape[-1] + 1, device=rows.device)).sum()

    return function


def with_gradients(member: Member) -> Callable[[Distribution], tuple[Tensor, ...]]:
    """Return the member as a function whose result also has the gradients of its sum in both parameters."""

    def function(q: Distribution) -> tuple[Tensor, ...]:
        value = member(q)
        if not (value.requires_grad and torch.is_grad_enabled()):
            return (value,)
        leaves = q.loc, q.concentration
        return value, *torch.autograd.grad(value.double().sum(), leaves, materialize_grads=True)

    return function


@contextmanager
def double_by_default() -> Iterator[None]:
    """Make float64 the default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def saved(original: Any) -> Any:
    """Return what ``torch.save`` writes and ``torch.load`` reads."""
    file = io.BytesIO()
    torch.save(original, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda original: pickle.loads(pickle.dumps(original)),
    "torch.save": saved,
}


def _inside(context: Callable[[], Any]) -> Mode:
    def mode(member: Member, q: Distribution) -> tuple[Tensor, ...]:
        with context():
            return with_gradients(member)(q)

    return mode


def _vmap(member: Member, q: Distribution) -> Tensor:
    return vmap(of_parameters(member, type(q)))(q.loc, q.concentration)


def _vmap_of_vmap(member: Member, q: Distribution) -> Tensor:
    """Every direction with every concentration: in each level one of them is batched, once along the last axis."""
    inner = vmap(of_parameters(member, type(q)), in_dims=(None, 0))
    rows = range(len(q.concentration))
    return vmap(inner, in_dims=(1, None))(q.loc.T, q.concentration)[rows, rows]


#: The same number in all digits, and the same gradients where the mode has any.
EXACT: dict[str, Mode] = {
    **{name: lambda member, q, copied=copied: member(copied(q)) for name, copied in COPIES.items()},
    "autocast": _inside(lambda: torch.autocast("cpu", dtype=torch.bfloat16)),
}

#: The same numbers up to rounding.
CLOSE: dict[str, Mode] = {
    "no_grad": _inside(torch.no_grad),
    "inference_mode": _inside(torch.inference_mode),
    "float64 by default": _inside(double_by_default),
    "expand": lambda member, q: member(q.expand((2, *q.batch_shape)))[1],
    "vmap": _vmap,
    "vmap of vmap": _vmap_of_vmap,
}


def gradient(member: Member, q: Distribution) -> tuple[Tensor, ...]:
    """Return the gradients of ``loss`` by autograd, as the modes of ``GRADIENTS`` should."""
    leaves = q.loc.detach().requires_grad_(), q.concentration.detach().requires_grad_()
    return torch.autograd.grad(loss(member, type(q))(*leaves), leaves, materialize_grads=True)


def _differentiated(transform: Callable) -> Mode:
    def mode(member: Member, q: Distribution) -> tuple[Tensor, ...]:
        return transform(loss(member, type(q)))(q.loc, q.concentration)

    return mode


#: The gradients of ``loss`` in both parameters.
GRADIENTS: dict[str, Mode] = {
    "grad": _differentiated(lambda function: grad(function, argnums=(0, 1))),
    "vmap(grad)": _differentiated(lambda function: vmap(grad(function, argnums=(0, 1)))),
    "vmap(jacrev)": _differentiated(lambda function: vmap(jacrev(function, argnums=(0, 1)))),
}

#: The same, for members with derivatives in forward mode.
FORWARD: dict[str, Mode] = {
    "vmap(jacfwd)": _differentiated(lambda function: vmap(jacfwd(function, argnums=(0, 1)))),
}


def loss_of_direction(member: Member, family: type) -> Function:
    """Return ``loss`` of the normalised ``loc``. Off the sphere, second derivatives depend on the mode."""
    function = loss(member, family)
    return lambda loc, kappa: function(torch.nn.functional.normalize(loc, dim=-1), kappa)


def _differentiated_twice(transform: Callable) -> Mode:
    def mode(member: Member, q: Distribution) -> tuple[tuple[Tensor, ...], ...]:
        return transform(loss_of_direction(member, type(q)))(q.loc, q.concentration)

    return mode


#: Second derivatives of ``loss_of_direction``, for a distribution without a batch.
HESSIANS: dict[str, Mode] = {
    "jacrev(jacrev)": _differentiated_twice(lambda f: jacrev(jacrev(f, argnums=(0, 1)), argnums=(0, 1))),
    "jacfwd(jacrev)": _differentiated_twice(lambda f: hessian(f, argnums=(0, 1))),
}


def modes(table: dict[str, Mode]):
    """Parametrise a test over a table of modes."""
    return pytest.mark.parametrize("mode", table.values(), ids=table.keys())
