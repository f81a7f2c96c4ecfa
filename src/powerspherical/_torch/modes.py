"""Queries about how the current call is run: plain eager mode, a transform, tracing, capture or forward-mode AD."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling as torch_is_compiling
from torch.compiler import is_dynamo_compiling
from torch.distributions import Distribution

from powerspherical._torch.constants import untraced

#: The types of plain tensors.
PLAIN_TYPES = frozenset((Tensor, torch.nn.Parameter))

# Bound here, because ``is_plain`` runs in every draw and looking up ``torch._C`` takes as long as the calls.
_is_tracing, _dispatch_modes = torch._C._is_tracing, torch._C._len_torch_dispatch_stack
_transforms_active = torch._C._are_functorch_transforms_active

#: Whether a tensor comes from ``torch.autograd.grad(is_grads_batched=True)``, which has its own ``vmap``.
is_batch_of_gradients: Callable[[Tensor], bool] = torch._C._functorch.is_legacy_batchedtensor


#: Thread-local storage of torch's ``TracingContext``. Its attribute ``tracing_context`` is set while ``torch.compile``
#: or ``torch.export`` traces in this thread.
_THREAD = torch._guards._TLS


def is_plain(*tensors: Tensor) -> bool:
    """Whether the call runs in plain eager mode: no transform, dispatch mode, tracer, forward AD or tensor subclass.

    In plain eager mode we bypass the dispatcher and call implementations directly.
    """
    return (
        not is_dynamo_compiling()  # first: torch.compile guards all that it traces
        and PLAIN_TYPES.issuperset(map(type, tensors))
        and not _is_tracing()  # torch.jit.trace records torch operations only
        and not _transforms_active()
        and not _dispatch_modes()  # torch.export and the later stages of torch.compile have one
        and forward_ad._current_level < 0
    )


def is_plain_backward(*grads: Tensor) -> bool:
    """Whether a backward pass, given these gradients, may compute values only.

    They must be plain tensors, not batches of gradients, and their own derivatives must not be needed.
    """
    return not torch.is_grad_enabled() and is_plain(*grads) and not any(map(is_batch_of_gradients, grads))


def plain_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Return the C++ ``apply`` of ``function``, for plain eager mode.

    ``Function.apply`` first looks for transforms and inspects the signature, which takes longer than a small draw.
    This also shortens the backward pass of ``function``: torch then calls its ``backward`` without looking for it.
    """
    function._backward_cls.apply = function.backward  # type: ignore[attr-defined]
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply


def transforms_active() -> bool:
    """Whether a ``torch.func`` transform is running."""
    return torch._C._are_functorch_transforms_active()


def is_tracing() -> bool:
    """Whether the call is compiled, or runs under a mode such as FakeTensorMode."""
    return torch.compiler.is_compiling() or bool(torch._C._len_torch_dispatch_stack())


def is_exporting() -> bool:
    """Whether ``torch.export`` or ``torch.onnx.export`` is tracing the call."""
    return torch.compiler.is_exporting()


def is_compiling() -> bool:
    """Whether the operations of this call become part of a compiled program.

    ``torch.compiler.is_compiling`` answers this while dynamo traces Python code. It is False in AOTAutograd, the next
    stage, which runs our operators and backward passes to record the torch operations in them.
    """
    return torch_is_compiling() or getattr(_THREAD, "tracing_context", None) is not None


def is_in_aot_autograd() -> bool:
    """Whether AOTAutograd, the stage of ``torch.compile`` after dynamo, is tracing this call.

    It traces both passes of an ``autograd.Function``, so an operator called in either becomes part of the compiled
    code.
    """
    return (
        not is_dynamo_compiling()
        and getattr(_THREAD, "tracing_context", None) is not None
        and bool(_dispatch_modes())  # without a dispatch mode, tensors are real and nothing is traced
        and not is_exporting()
    )


def differentiates_through_functions() -> bool:
    """Whether the backward of an ``autograd.Function`` is ignored.

    Forward-mode AD ignores it. So do ``torch.func`` transforms inside ``torch.compile``: they differentiate the traced
    operations of ``forward``.
    """
    return forward_ad._current_level >= 0 or (
        torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()
    )


def is_capturing(tensor: Tensor) -> bool:
    """Whether a CUDA graph is being captured on the tensor's stream."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


@untraced
def is_batching() -> bool:
    """Whether one of the running transforms is ``torch.func.vmap``."""
    layers = torch._C._functorch.get_interpreter_stack() or []
    return any(layer.key() == torch._C._functorch.TransformType.Vmap for layer in layers)


def validates_by_default() -> bool:
    """Return torch's global default for ``validate_args``, see ``Distribution.set_default_validate_args``."""
    return Distribution._validate_args


def can_look() -> bool:
    """Whether the host can read tensor values now: not while tracing, capturing a CUDA graph or batching by vmap."""
    if is_tracing():
        return False
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return False
    return not is_batching()


def without_autocast(tensor: Tensor) -> torch.autocast:
    """Return a context in which matrix products on the tensor's device keep their dtype. The meta device has none."""
    return torch.autocast("cpu" if tensor.is_meta else tensor.device.type, enabled=False)
