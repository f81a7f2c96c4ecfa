"""Define torch operators, and for random draws their first derivatives in reverse mode.

``torch.library.register_autograd`` does not work under ``torch.func.grad``: inside the dispatcher its
``autograd.Function.apply`` looks again for a transform that has already been handled. We register a
``_SingleLevelFunction`` at the Autograd key instead. It skips that search and differentiates one level at a time, as
torch's own operators do. This works in eager mode, under transforms and under ``torch.compile``, and is faster.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from powerspherical._torch.modes import PLAIN_TYPES, is_batch_of_gradients, is_plain

_ONCE = (
    "a draw is differentiable once, its second derivative is not implemented. Leave out the second "
    "differentiation (create_graph=True, nested torch.func transforms), or differentiate a closed form "
    "(log_prob, entropy, kl_divergence) at a detached sample."
)
_REVERSE = (
    "forward-mode derivatives of a draw are not implemented. Use reverse mode: backward(), torch.func.grad, "
    "torch.func.vjp or torch.func.jacrev."
)

#: The type of an entry of ``torch.ops``.
Operator = torch._ops.OpOverload

_LIBRARY = torch.library.Library("powerspherical", "FRAGMENT")


def define_operator(
    schema: str,
    run: Callable[..., Any],
    *,
    fake: Callable[..., Any],
    batch: Callable[..., Any] | None = None,
    random: bool = False,
) -> Operator:
    """Define and return an operator ``torch.ops.powerspherical.*``, which ``torch.compile`` does not look into.

    Args:
        schema: name, arguments and results, in torch's schema language.
        run: the implementation for all devices.
        fake: returns empty results of the right shapes, for tracing.
        batch: the vmap rule, see ``torch.library.register_vmap``. Its first argument is the operator. None if the
            operator is not called under ``vmap``.
        random: whether the operator draws random numbers.
    """
    tags = (torch.Tag.pt2_compliant_tag, *((torch.Tag.nondeterministic_seeded,) if random else ()))
    _LIBRARY.define(schema, tags=tags)
    operator = getattr(torch.ops.powerspherical, schema.partition("(")[0]).default
    _LIBRARY.impl(operator.name(), run, "CompositeExplicitAutograd")
    torch.library.register_fake(operator.name(), fake, lib=_LIBRARY)
    if batch is not None:
        torch.library.register_vmap(operator.name(), functools.partial(batch, operator), lib=_LIBRARY)
    names = [argument.name for argument in operator._schema.arguments]
    gradients = [place for place, name in enumerate(names) if name.startswith("grad")]
    operator._op = _shortcut(operator._op, run, gradients)  # what a call of the operator in Python calls
    return operator


def _shortcut(
    dispatch: Callable[..., Any], run: Callable[..., Any], gradients: Sequence[int] = ()
) -> Callable[..., Any]:
    """Return a function that calls ``run`` where only values are needed, as in compiled code, otherwise ``dispatch``.

    For a small batch the dispatcher takes as long as ``run``: it converts every argument and result twice.
    ``gradients`` are the places of arguments that may be batches of gradients. Callers pass these by position.
    """

    def call(*inputs: Any, **options: Any) -> Any:
        values = (*inputs, *options.values()) if options else inputs
        if (
            _KNOWN_TYPES.issuperset(map(type, values))
            and is_plain()
            and not (torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in values))
            and not any(is_batch_of_gradients(x) for x in map(values.__getitem__, gradients) if x is not None)
        ):
            return run(*inputs, **options)
        return dispatch(*inputs, **options)

    return call


#: Types of arguments outside of tracing. This test takes less time than ``isinstance(x, Tensor)`` for each argument.
_KNOWN_TYPES = PLAIN_TYPES | {
    bool,
    int,
    float,
    str,
    list,
    tuple,
    torch.Size,
    torch.dtype,
    torch.Generator,
    type(None),
}


def register_derivative(forward: Operator, backward: Operator) -> None:
    """Register ``backward`` as the first derivative of ``forward``. Second and forward-mode derivatives raise.

    ``forward(loc, concentration, shape, seed, number, dim, family, generator)`` returns x and ``scalars``. ``backward``
    takes the gradient in x, x, loc, scalars, concentration, dim, family, and two booleans: whether the gradients in loc
    and in concentration are needed.
    """

    class Draw(_SingleLevelFunction):
        @staticmethod
        def forward(ctx: Any, loc: Tensor, concentration: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
            x, scalars = _run_below_autograd(forward, loc, concentration, *rest)
            _shape, _seed, _number, ctx.dim, ctx.family, *_ = rest
            ctx.mark_non_differentiable(scalars)
            ctx.set_materialize_grads(False)  # do not allocate a zero gradient for the scalars
            ctx.save_for_backward(x, loc, scalars, concentration)
            return x, scalars

        @staticmethod
        def backward(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor | None, ...]:
            needs_loc, needs_concentration = needs = ctx.needs_input_grad[:2]
            grad_loc, grad_concentration = backward(grad, *ctx.saved_tensors, ctx.dim, ctx.family, *needs)
            return (
                grad_loc if needs_loc else None,
                grad_concentration if needs_concentration else None,
                *[None] * (len(ctx.needs_input_grad) - 2),
            )

        @staticmethod
        def jvp(ctx: Any, *tangents: Tensor | None) -> None:
            raise NotImplementedError(_REVERSE)

    class DrawBackward(_SingleLevelFunction):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
            return _run_below_autograd(backward, *inputs)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> None:
            raise NotImplementedError(_ONCE)

        jvp = backward

    _LIBRARY.impl(forward.name(), _autograd_kernel(forward, Draw), "Autograd")
    _LIBRARY.impl(backward.name(), _autograd_kernel(backward, DrawBackward), "Autograd")


def _autograd_kernel(operator: Operator, function: Any) -> Callable[..., Any]:
    """Return the kernel of ``operator`` at the Autograd key: it applies ``function`` if a derivative is needed."""

    def kernel(*inputs: Any) -> Any:
        if torch._C._are_functorch_transforms_active():
            with enable_single_level_autograd_function():
                return function.apply(*inputs)
        if forward_ad._current_level >= 0 or (
            torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs)
        ):
            return function.apply(*inputs)
        return _run_below_autograd(operator, *inputs)

    return kernel


def _run_below_autograd(operator: Operator, *inputs: Any) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        if not torch._C._are_functorch_transforms_active():
            return operator(*inputs)
        # ``apply`` has disabled gradients at all levels, but outer transforms may still need them.
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
            return operator(*inputs)
