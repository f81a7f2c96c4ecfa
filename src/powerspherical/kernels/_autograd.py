"""Derivatives of a draw: of first order, in reverse mode, by the family's backward operator.

Operators differentiated by ``torch.library.register_autograd`` fail under ``torch.func.grad``: it makes an
``autograd.Function`` of them, whose ``apply`` looks for functorch's transforms from within the dispatcher,
where the current one has been taken care of. ``_SingleLevelFunction`` is ``autograd.Function`` without that
search: at the dispatcher's Autograd key it differentiates one level at a time, as torch's own operators do
there, in eager code, under transforms and in what ``torch.compile`` makes of either. It also takes less time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from powerspherical._torch.modes import is_plain

Draws = tuple[Tensor, Tensor, Tensor, Tensor]

_ONCE = (
    "a draw from {} is differentiable once, its second derivative is not implemented. Leave out the second "
    "differentiation (create_graph=True, nested torch.func transforms), or apply it to what is known in "
    "closed form (log_prob, entropy, kl_divergence) at a detached sample."
)
_REVERSE = (
    "forward-mode derivatives of a draw from {} are not implemented. Use reverse mode: backward(), "
    "torch.func.grad, torch.func.vjp or torch.func.jacrev."
)


#: Gradients of the arguments after ``loc`` and ``concentration``.
_NO_GRADIENTS = (None,) * 4

#: Whether the ``vmap`` of ``is_grads_batched``, which is one of its own, hides in a tensor.
_is_batched = torch._C._functorch.is_legacy_batchedtensor


def register_derivative(
    library: torch.library.Library,
    forward: torch._ops.OpOverload,
    backward: torch._ops.OpOverload,
    run: Callable[..., Any],
    run_backward: Callable[..., Any],
) -> Any:
    """Give the operator ``forward`` the derivative ``backward``, and errors for all further ones.

    ``forward(loc, concentration, shape, seed, dim, generator)`` returns x and the other inputs of ``backward``, see
    ``_operator``; ``run`` and ``run_backward`` are their implementations. Returns the autograd function for plain
    eager mode, which returns x alone.
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
            generator: torch.Generator | None = None,
        ) -> Draws:
            x, *rows = _run_below_autograd(forward, loc, concentration, shape, seed, dim, generator)
            ctx.dim = dim
            ctx.mark_non_differentiable(*rows)
            ctx.set_materialize_grads(False)  # spares zero gradients for the rows
            ctx.save_for_backward(x, loc, *rows, concentration)
            return (x, *rows)

        @staticmethod
        def backward(ctx: Any, grad: Tensor, *_: None) -> tuple[Tensor | None, ...]:
            first, second = needs = ctx.needs_input_grad[:2]
            inputs = grad, *ctx.saved_tensors, ctx.dim, *needs
            grad_loc, grad_concentration = backward(*inputs)
            return grad_loc if first else None, grad_concentration if second else None, *_NO_GRADIENTS

        @staticmethod
        def jvp(ctx: Any, *tangents: Tensor | None) -> None:
            raise NotImplementedError(_REVERSE.format(forward.name()))

    class PlainDraw(Draw):
        """Fewer results, and fewer looks at them: for a small batch these are what takes time."""

        @staticmethod
        def forward(  # type: ignore[override]
            ctx: Any,
            loc: Tensor,
            concentration: Tensor,
            shape: Sequence[int],
            seed: None,
            dim: int,
            generator: torch.Generator | None,
        ) -> Tensor:
            x, *rows = run(loc, concentration, shape, seed, dim, generator)
            ctx.dim = dim
            ctx.save_for_backward(x, loc, *rows, concentration)
            return x

        @staticmethod
        def backward(ctx: Any, grad: Tensor, *_: None) -> tuple[Tensor | None, ...]:
            # What was saved is plain, so the gradient alone may not be.
            if torch.is_grad_enabled() or not is_plain(grad) or _is_batched(grad):
                return Draw.backward(ctx, grad)
            first, second = needs = ctx.needs_input_grad[:2]
            grad_loc, grad_concentration = run_backward(grad, *ctx.saved_tensors, ctx.dim, *needs)
            return grad_loc if first else None, grad_concentration if second else None, *_NO_GRADIENTS

    class DrawBackward(_SingleLevelFunction):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
            return _run_below_autograd(backward, *inputs)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> None:
            raise NotImplementedError(_ONCE.format(forward.name()))

        jvp = backward

    library.impl(forward.name(), _autograd_kernel(forward, Draw), "Autograd")
    library.impl(backward.name(), _autograd_kernel(backward, DrawBackward), "Autograd")
    return PlainDraw


def _autograd_kernel(operator: torch._ops.OpOverload, function: Any) -> Callable[..., Any]:
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


def _run_below_autograd(operator: torch._ops.OpOverload, *inputs: Any) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        if not torch._C._are_functorch_transforms_active():
            return operator(*inputs)
        # ``apply`` has switched differentiation off, for all levels: outer transforms may still want it.
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
            return operator(*inputs)
