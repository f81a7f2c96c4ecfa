"""Differentiable functions with kernels: one autograd function around a kernel in plain eager mode, else operations."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from powerspherical._torch.modes import is_plain, is_plain_backward
from powerspherical.kernels.registry import Gradients, Kernel, Tensors, find

_requires_grad = operator.attrgetter("requires_grad")


class _ByKernel(torch.autograd.Function):
    """Values and gradients from a kernel. Gradients that are transformed or differentiated come from ``compose``."""

    @staticmethod
    def forward(ctx: Any, kernel: Kernel, compose: Callable[..., Any], options: Any, *tensors: Tensor) -> Any:
        outputs, kept = kernel.run(tensors, options, ctx.needs_input_grad[3:])
        ctx.kernel, ctx.compose, ctx.options, ctx.count = kernel, compose, options, len(tensors)
        ctx.save_for_backward(*tensors, *kept)
        ctx.set_materialize_grads(False)  # a gradient that is not needed is None
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Gradients:
        saved, needed = ctx.saved_tensors, ctx.needs_input_grad[3:]
        tensors, kept = saved[: ctx.count], saved[ctx.count :]
        given = [grad for grad in grads if grad is not None]
        found: Gradients = (None,) * ctx.count
        if given and is_plain_backward(*given):
            found = ctx.kernel.gradients(grads, needed, tensors, kept, ctx.options)
        elif given:
            found = composed_gradients(ctx.compose, grads, needed, tensors)
        return None, None, None, *found


def composed_gradients(
    compose: Callable[..., Any], grads: Gradients, needed: tuple[bool, ...], tensors: Tensors
) -> Gradients:
    """Return the gradients of ``compose(*tensors)`` by autograd, None where they are not needed."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views, because one tensor may be a function of another: only their direct gradients are wanted.
        tensors = tuple(tensor.view_as(tensor) for tensor in tensors)
        outputs = compose(*tensors)
        pairs = zip(outputs if isinstance(outputs, tuple) else (outputs,), grads, strict=True)
        values, given = zip(*((out, grad) for out, grad in pairs if grad is not None), strict=True)
        wanted = [tensor for tensor, needs in zip(tensors, needed, strict=True) if needs]
        found = iter(torch.autograd.grad(values, wanted, given, create_graph=create_graph, allow_unused=True))
    return tuple(next(found) if needs else None for needs in needed)


def differentiable(
    what: str,
    compose: Callable[..., Any],
    options: Callable[[], Any],
    *tensors: Tensor,
    dim: int = 2,
    family: str | None = None,
) -> Any:
    """Return a differentiable function of tensors, by its kernel if there is one.

    Args:
        what: the kernel, see ``registry``.
        compose: the function as differentiable torch operations.
        options: returns the kernel's further arguments. It is called only if there is a kernel.
        tensors: the arguments. The last one decides which kernel runs.
        dim, family: what else decides it.
    """
    if is_plain(*tensors):
        kernel = find(what, tensors[-1], dim, family)
        if kernel is not None and (kernel.serves is None or kernel.serves(family, *tensors)):
            if torch.is_grad_enabled() and any(map(_requires_grad, tensors)):
                return _ByKernel.apply(kernel, compose, options(), *tensors)
            return kernel.run(tensors, options(), (False,) * len(tensors))[0]
    return compose(*tensors)
