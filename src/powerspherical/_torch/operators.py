"""Operators for random draws: their definition, and derivatives of first order, in reverse mode.

Operators differentiated by ``torch.library.register_autograd`` fail under ``torch.func.grad``: it makes an
``autograd.Function`` of them, whose ``apply`` looks for functorch's transforms from within the dispatcher,
where the current one has been taken care of. ``_SingleLevelFunction`` is ``autograd.Function`` without that
search: at the dispatcher's Autograd key it differentiates one level at a time, as torch's own operators do
there, in eager code, under transforms and in what ``torch.compile`` makes of either. It also takes less time.
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

_ONCE = (
    "a draw is differentiable once, its second derivative is not implemented. Leave out the second "
    "differentiation (create_graph=True, nested torch.func transforms), or apply it to what is known in "
    "closed form (log_prob, entropy, kl_divergence) at a detached sample."
)
_REVERSE = (
    "forward-mode derivatives of a draw are not implemented. Use reverse mode: backward(), torch.func.grad, "
    "torch.func.vjp or torch.func.jacrev."
)

#: What a defined operator is: an entry of ``torch.ops``.
Operator = torch._ops.OpOverload

_LIBRARY = torch.library.Library("powerspherical", "FRAGMENT")


def define_operator(
    schema: str,
    run: Callable[..., Any],
    *,
    fake: Callable[..., Any],
    batch: Callable[..., Any],
    random: bool = False,
) -> Operator:
    """Define an operator of the namespace ``powerspherical``, opaque to ``torch.compile``.

    Args:
        schema: name, arguments and results, in torch's schema language.
        run: the implementation, for all devices.
        fake: the shapes of the results, for tracing.
        batch: runs a batch of calls as one call, see ``torch.library.register_vmap``; takes the operator first.
        random: whether results differ from call to call.
    """
    tags = (torch.Tag.pt2_compliant_tag, *((torch.Tag.nondeterministic_seeded,) if random else ()))
    _LIBRARY.define(schema, tags=tags)
    operator = getattr(torch.ops.powerspherical, schema.partition("(")[0]).default
    _LIBRARY.impl(operator.name(), run, "CompositeExplicitAutograd")
    torch.library.register_fake(operator.name(), fake, lib=_LIBRARY)
    torch.library.register_vmap(operator.name(), functools.partial(batch, operator), lib=_LIBRARY)
    return operator


def register_derivative(forward: Operator, backward: Operator) -> None:
    """Give the operator ``forward`` the derivative ``backward``, and errors for all further ones.

    ``forward(loc, concentration, shape, seed, dim, family, generator)`` returns x and further tensors; ``backward``
    takes the gradient in x, then x, loc, those tensors, concentration, dim, family, and which gradients are needed.
    """

    class Draw(_SingleLevelFunction):
        @staticmethod
        def forward(
            ctx: Any,
            loc: Tensor,
            concentration: Tensor,
            shape: Sequence[int],
            seed: Tensor,
            dim: int,
            family: str,
            generator: torch.Generator | None = None,
        ) -> tuple[Tensor, ...]:
            x, *rows = _run_below_autograd(forward, loc, concentration, shape, seed, dim, family, generator)
            ctx.dim, ctx.family = dim, family
            ctx.mark_non_differentiable(*rows)
            ctx.set_materialize_grads(False)  # spares zero gradients for the rows
            ctx.save_for_backward(x, loc, *rows, concentration)
            return (x, *rows)

        @staticmethod
        def backward(ctx: Any, grad: Tensor, *_: None) -> tuple[Tensor | None, ...]:
            return pulled_back(ctx, grad, backward)

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


def pulled_back(ctx: Any, grad: Tensor, backward: Callable[..., Any]) -> tuple[Tensor | None, ...]:
    """The gradients of all inputs of a draw, from its context and the gradient in x."""
    first, second = needs = ctx.needs_input_grad[:2]
    grad_loc, grad_concentration = backward(grad, *ctx.saved_tensors, ctx.dim, ctx.family, *needs)
    return grad_loc if first else None, grad_concentration if second else None, *_NO_GRADIENTS


#: Gradients of the arguments after ``loc`` and ``concentration``.
_NO_GRADIENTS = (None,) * 5


def _autograd_kernel(operator: Operator, function: Any) -> Callable[..., Any]:
    """What ``operator`` runs at the Autograd key: ``function``, or itself where nothing is differentiated."""

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
        # ``apply`` has switched differentiation off, for all levels: outer transforms may still want it.
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
            return operator(*inputs)
