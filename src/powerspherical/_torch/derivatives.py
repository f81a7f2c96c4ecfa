"""Functions with hand-written derivatives: their series and branches should not be differentiated by autograd.

They work under plain autograd to any order the formulas allow, and under ``torch.func`` (in any nesting), forward-mode
AD and ``torch.compile``.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from powerspherical._torch.constants import called_plainly
from powerspherical._torch.modes import differentiates_through_functions, transforms_active
from powerspherical._torch.private import untraced

Partial = Callable[..., Any]


def with_derivatives(*partials: Partial | None, from_output: bool = False) -> Callable[..., Any]:
    """Decorate an elementwise function ``f(*tensors, *constants)`` with its partial derivatives. Tensors broadcast.

    Args:
        partials: one function per tensor argument, which takes the arguments of f. None means a derivative of zero.
            Partials are differentiated in turn for higher orders.
        from_output: whether partials take the value of f before its arguments, as the derivative of an inverse does.

    If f returns a tuple, so must each partial.
    """
    count = len(partials)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        class Smooth(torch.autograd.Function):
            generate_vmap_rule = True

            @staticmethod
            def forward(first: Tensor, *rest: Any) -> Any:
                return function(first, *rest)

            @staticmethod
            def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
                ctx.constants = inputs[count:]
                ctx.save_for_backward(*inputs[:count], *(_as_tuple(output) if from_output else ()))

            @staticmethod
            def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
                saved = ctx.saved_tensors  # under a checkpoint they can be read only once
                tensors, outputs = saved[:count], saved[count:]
                first = (_unpacked(outputs),) if from_output else ()
                results: list[Tensor | None] = []
                wanted = ctx.needs_input_grad[:count]
                for partial, tensor, needed in zip(partials, tensors, wanted, strict=True):
                    if partial is None or not needed:
                        results.append(None)
                        continue
                    slopes = _as_tuple(partial(*first, *tensors, *ctx.constants))
                    total = grads[0] * slopes[0]
                    for grad, slope in zip(grads[1:], slopes[1:], strict=True):
                        total = total + grad * slope
                    results.append(total if total.shape == tensor.shape else total.sum_to_size(tensor.shape))
                return *results, *[None] * len(ctx.constants)

        @functools.wraps(function)
        def smooth(*args: Any) -> Any:
            tensors = args[:count]
            if differentiates_through_functions():
                return _expanded(function, partials, tensors, args[count:], from_output)
            # Inside of a transform, what is differentiated need not require grad here.
            if torch.is_grad_enabled() and (transforms_active() or any(x.requires_grad for x in tensors)):
                return Smooth.apply(*args)
            return function(*args)

        return smooth

    return decorate


_HIGHEST_ORDER = 2


class _Nesting(threading.local):
    """The order of the derivative that ``_expanded`` is evaluating; at ``_HIGHEST_ORDER`` only values are needed."""

    order = 0


_nesting = _Nesting()


def _at_order(order: int, function: Callable[..., Any], *args: Any) -> Any:
    before = _nesting.order
    _nesting.order = order
    try:
        return function(*args)
    finally:
        _nesting.order = before


def _expanded(
    function: Callable[..., Any],
    partials: Sequence[Partial | None],
    tensors: Sequence[Tensor],
    constants: Sequence[Any],
    from_output: bool,
) -> Any:
    """Return f as torch operations with the right derivatives, for modes that ignore a custom backward.

    With x̄ = x.detach() and δ = x - x̄ = 0, the expression is f(x̄) + Σᵢ δᵢ ∂ᵢf(x̄ + δ/2), the midpoint rule for the
    integral of the gradient along δ. At δ = 0 its first and second derivatives are those of f, in any nesting of
    transforms. So partials are expanded once more, and their own partials are evaluated as plain values.
    """
    base = [x.detach() for x in tensors]
    order = _nesting.order
    if order == _HIGHEST_ORDER:
        return function(*base, *constants)
    change = [x - b for x, b in zip(tensors, base, strict=True)]
    middle = [b + 0.5 * c for b, c in zip(base, change, strict=True)]
    value = _as_tuple(_at_order(_HIGHEST_ORDER, function, *base, *constants))
    first: tuple[Any, ...] = ()
    if from_output:
        halfway = value
        for partial, c in zip(partials, change, strict=True):
            if partial is not None:
                slopes = _as_tuple(_at_order(_HIGHEST_ORDER, partial, _unpacked(value), *base, *constants))
                halfway = tuple(h + 0.5 * c * s for h, s in zip(halfway, slopes, strict=True))
        first = (_unpacked(halfway),)
    for partial, c in zip(partials, change, strict=True):
        if partial is not None:
            slopes = _as_tuple(_at_order(order + 1, partial, *first, *middle, *constants))
            value = tuple(v + c * s for v, s in zip(value, slopes, strict=True))
    return _unpacked(value)


def _as_tuple(value: Any) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def _unpacked(values: tuple[Tensor, ...]) -> Any:
    return values if len(values) > 1 else values[0]


class Differentiable(torch.autograd.Function):
    """The identity for a value that depends on ``sources``. It is differentiable so many ``times``, then refuses."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, times: int, refusal: str, *sources: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.times, ctx.refusal, *sources = inputs
        ctx.save_for_backward(*sources)
        ctx.save_for_forward(*sources)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return Differentiable.jvp(ctx, grad), *[None] * (len(ctx.needs_input_grad) - 1)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        if not ctx.times:
            raise NotImplementedError(ctx.refusal)
        result: Tensor = Differentiable.apply(tangent, ctx.times - 1, ctx.refusal, *ctx.saved_tensors)
        return result


@untraced
@functools.cache
def load_forward_mode() -> None:
    """Let torch import what its forward-mode AD needs. It uses deprecated parts of torch, whose warning we ignore."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        called_plainly(lambda: torch.func.jvp(torch.sin, (torch.zeros(()),), (torch.zeros(()),)))


def value_and_slope(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the value and the derivative of an elementwise function, by forward-mode AD."""
    load_forward_mode()
    x = x.contiguous()  # forward-mode AD does not accept expanded tensors
    value, slope, *_ = _at_order(0, torch.func.jvp, function, (x,), (torch.ones_like(x),))
    return value, slope
