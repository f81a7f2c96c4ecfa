"""Whether a kernel may run here, and differentiable functions by kernels, or else by torch operations."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from powerspherical import engines
from powerspherical._torch.modes import is_transformed
from powerspherical._torch.private import dispatch_modes, forward_mode_level, transforms_active
from powerspherical.kernels import library
from powerspherical.kernels.registry import KERNELS, NUMBERS, Gradients, Kernel, Tensors

_PLAIN_TYPES = frozenset((Tensor, torch.nn.Parameter))


def is_plain(*tensors: Tensor) -> bool:
    """Whether the call runs in plain eager mode: no transform, dispatch mode, tracer, forward AD or tensor subclass.

    In plain eager mode kernels may run: nobody looks at the operations in between.
    """
    return (
        not is_dynamo_compiling()  # first: torch.compile guards all that it traces
        and _PLAIN_TYPES.issuperset(map(type, tensors))
        and not transforms_active()
        and not dispatch_modes()  # torch.export and the later stages of torch.compile have one
        and forward_mode_level() < 0
    )


def _values_suffice(grads: Sequence[Tensor], operators: bool) -> bool:
    """Whether a backward pass, given these gradients, may compute values without derivatives.

    Their own derivatives must not be needed, and they must not be batches of gradients. Kernels need plain tensors.
    Operators have no derivatives either, but the compiler may be tracing them.
    """
    if torch.is_grad_enabled() or (is_transformed() if operators else not is_plain(*grads)):
        return False
    return not any(map(_is_batch_of_gradients, grads))


def _is_batch_of_gradients(tensor: Tensor) -> bool:
    """Whether a plain tensor has no memory, as in ``torch.autograd.grad(is_grads_batched=True)``."""
    if type(tensor) not in _PLAIN_TYPES:  # such as the tensors of the compiler, which have no memory either
        return False
    try:
        tensor.data_ptr()
    except RuntimeError:
        return True
    return False


@functools.cache
def _has_triton(device: torch.device, compiling: bool) -> bool:
    """Import the kernels of Triton and return whether they run on the device."""
    from powerspherical.kernels import launch

    if not launch.runs_on(device, compiling):
        return False
    importlib.import_module("powerspherical.kernels.triton")
    return True


@functools.lru_cache(1024)
def _registered(
    what: str, engine: str | None, dtype: torch.dtype, dim: int, family: str | None
) -> Kernel | None:
    found = KERNELS.get((what, engine)) if engine else None
    if found is None or dtype not in found.dtypes or dim > found.largest_dim:
        return None
    return found if family is None or family in NUMBERS else None


def find(
    what: str,
    *tensors: Tensor,
    dim: int = 2,
    family: str | None = None,
    allowed: bool = False,
    compiling: bool = False,
) -> Kernel | None:
    """Return the kernel for ``what``, or None: torch operations compute it then.

    Args:
        what: a name under which kernels are registered.
        tensors: the arguments. The last one gives the device and the dtype. If it is empty, there is no kernel.
        dim: the dimension d.
        family: the name of the family, if the kernel depends on it.
        allowed: whether the caller knows already that kernels may run. An operator does, because transforms and modes
            act before it. Otherwise kernels run in plain eager mode only.
        compiling: whether compiled code is to call the kernel. Then we cannot try whether Triton compiles.
    """
    if not (allowed or compiling or is_plain(*tensors)):
        return None
    tensor = tensors[-1]
    engine = engines.kernels[tensor.is_cpu]
    if engine == "triton" and not _has_triton(tensor.device, compiling):
        return None
    if engine == "c" and isinstance(library.loaded(), str):
        return None
    found = _registered(what, engine, tensor.dtype, dim, family)
    if found is None or not tensor.numel() or (found.serves and not found.serves(family, *tensors)):
        return None
    if torch.jit.is_tracing():  # type: ignore[attr-defined]  # it would record memory that nobody writes
        raise NotImplementedError(
            "torch.jit.trace cannot record this package: use torch.compile or torch.export"
        )
    return found


class _ByKernel(torch.autograd.Function):
    """Values and gradients from a kernel. Gradients that are transformed or differentiated come from ``compose``."""

    @staticmethod
    def forward(ctx: Any, plan: tuple[Kernel, Callable[..., Any], Any], *tensors: Tensor) -> Any:
        kernel, _, options = plan
        outputs, kept = kernel.run(tensors, options, ctx.needs_input_grad[1:])
        ctx.plan, ctx.count = plan, len(tensors)
        ctx.save_for_backward(*tensors, *kept)
        ctx.set_materialize_grads(False)  # a gradient that is not needed is None
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Gradients:
        (kernel, compose, options), count, saved = ctx.plan, ctx.count, ctx.saved_tensors
        tensors, kept, needed = saved[:count], saved[count:], ctx.needs_input_grad[1:]
        given = [grad for grad in grads if grad is not None]
        found: Gradients = (None,) * count
        if given and _values_suffice(given, kernel.operators):
            found = kernel.gradients(grads, needed, tensors, kept, options)
        elif given:
            found = composed_gradients(lambda *tensors: compose(*tensors, *kept), grads, needed, tensors)
        return None, *found


def composed_gradients(
    compose: Callable[..., Any], grads: Gradients, needed: Sequence[bool], tensors: Tensors
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


def by_kernel(kernel: Kernel, compose: Callable[..., Any], options: Any, *tensors: Tensor) -> Any:
    """Return a differentiable function of tensors, computed by a kernel.

    Args:
        kernel: from ``find``, or one made of operators or of torch operations.
        compose: the function as differentiable torch operations, of the tensors and what ``kernel.run`` kept.
        options: the kernel's further arguments.
        tensors: the arguments.
    """
    if torch.is_grad_enabled() and True in [tensor.requires_grad for tensor in tensors]:
        return _ByKernel.apply((kernel, compose, options), *tensors)
    return kernel.run(tensors, options, (False,) * len(tensors))[0]


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
        what, tensors, dim, family: the kernel, see ``find``.
        compose: the function as differentiable torch operations. In a backward pass it also gets what the kernel kept.
        options: returns the kernel's further arguments. It is called only if there is a kernel.
    """
    kernel = find(what, *tensors, dim=dim, family=family)
    return compose(*tensors) if kernel is None else by_kernel(kernel, compose, options(), *tensors)
