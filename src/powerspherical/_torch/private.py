"""Every private name of torch that this package uses. Each has a public fallback, so a new torch can only slow us down.

The environment variable ``POWERSPHERICAL_PUBLIC_TORCH=1``, set before the import, takes all fallbacks.
"""

from __future__ import annotations

import functools
import itertools
import operator
import os
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.distributions import Bernoulli, Distribution

from powerspherical._torch import TORCH

F = TypeVar("F", bound=Callable[..., Any])

#: Whether to use public names only.
PUBLIC_ONLY = os.environ.get("POWERSPHERICAL_PUBLIC_TORCH") == "1"


def _private(path: str, fallback: Any) -> Any:
    """Return the object ``torch.{path}``, or the fallback if this torch has none."""
    try:
        return fallback if PUBLIC_ONLY else operator.attrgetter(path)(torch)
    except AttributeError:
        return fallback


def untraced(function: F) -> F:
    """Make ``torch.compile`` call ``function`` and treat the result as a constant, instead of tracing it.

    ``torch.compiler.assume_constant_result`` sets the same mark, but spends seconds importing the compiler. A torch
    that does not know the mark traces the function.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


class _Probe(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any) -> None:
        return None


def _transforms_by_probe() -> bool:
    """Under a transform, ``apply`` refuses a function without ``setup_context``."""
    try:
        _Probe.apply()
    except RuntimeError:
        return True
    return False


#: Whether a transform of ``torch.func`` is running. The fallback takes 2 µs more.
transforms_active: Callable[[], bool] = _private("_C._are_functorch_transforms_active", _transforms_by_probe)


_layers: Callable[[], Any] | None = _private("_C._functorch.get_interpreter_stack", None)


@untraced
def is_batching() -> bool:
    """Whether ``torch.func.vmap`` is running. Without private names: whether any transform is.

    Then ``torch.func.grad`` of a draw uses other random numbers than a backward pass with the same seed.
    """
    if _layers is None:
        return transforms_active()
    return any(layer.key().name == "Vmap" for layer in _layers() or ())


def _tracing_modes() -> int:
    """The number of modes that trace. Others, such as those that count operations, do not see what kernels do."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    return int(type(torch.empty(0, device="cpu")) is not Tensor) + (get_proxy_mode() is not None)


#: The number of dispatch modes. The fallback takes 3 µs more.
dispatch_modes: Callable[[], int] = _private("_C._len_torch_dispatch_stack", _tracing_modes)


_ZERO = torch.zeros((), device="cpu")


def _level_by_probe() -> int:
    """Without a level of forward-mode AD, there are no dual tensors."""
    try:
        forward_ad.make_dual(_ZERO, _ZERO)
    except (RuntimeError, ValueError):
        return -1
    return 0


#: The level of forward-mode AD; -1 if none is open. The fallback takes 5 µs more.
forward_mode_level: Callable[[], int] = _level_by_probe
if not PUBLIC_ONLY and hasattr(forward_ad, "_current_level"):
    forward_mode_level = functools.partial(vars(forward_ad).__getitem__, "_current_level")


def validates_by_default() -> bool:
    """Return what ``Distribution.set_default_validate_args`` has set. The fallback takes 30 µs."""
    if not PUBLIC_ONLY and hasattr(Distribution, "_validate_args"):
        return Distribution._validate_args
    try:
        Bernoulli(probs=torch.tensor(2.0, device="cpu"))
    except ValueError:
        return True
    return False


def untraced_number(function: F) -> F:
    """Decorate a function that returns a float: ``untraced``, but for torch 2.6, whose compiler fails on the result."""
    return function if TORCH < (2, 7) else untraced(function)


def graph_break(message: str) -> None:
    """End the graph that ``torch.compile`` is tracing. Without it, the compiler finds out itself that it must."""
    if not PUBLIC_ONLY:
        torch._dynamo.graph_break(**({"msg": message} if TORCH >= (2, 8) else {}))


@untraced
def _is_exporting() -> bool:
    """Read what ``torch.export`` sets. Torch 2.6 has another flag, which is not set while the compiler traces."""
    if TORCH >= (2, 7):
        return torch.compiler._is_exporting_flag
    from torch._dynamo.symbolic_convert import tls

    tracer = getattr(tls, "current_tx", None)
    return bool(torch.compiler._is_compiling_flag if tracer is None else tracer.export)


#: Whether an export is tracing the call. Until torch 2.11 the compiler takes torch's own query for True in every graph.
is_exporting: Callable[[], bool] = _is_exporting
if PUBLIC_ONLY or TORCH >= (2, 12):
    is_exporting = torch.compiler.is_exporting


#: The table of ``torch.distributions.kl_divergence``, and the search that fills it. Without them, code that calls it
#: compiles twice.
_divergence_table: dict[tuple[type, type], Any] | None = _private("distributions.kl._KL_MEMOIZE", None)
_find_divergence: Callable[[type, type], Any] = _private("distributions.kl._dispatch_kl", None)


def look_up_divergences(types: Collection[type]) -> None:
    """Let torch find the KL divergences between all pairs of ``types`` before the compiler traces the search.

    ``torch.distributions.kl_divergence`` keeps what it finds in a table. If the compiler traces the search, it guards
    every registered pair, and its graph fills the table, which invalidates the graph: the second call compiles again. A
    table that grows later does the same.
    """
    for pair in itertools.product(types, types):
        if _divergence_table is not None and pair not in _divergence_table:
            _divergence_table[pair] = _find_divergence(*pair)


#: Gamma variables of given shapes.
standard_gamma: Callable[..., Tensor] | None = _private("_standard_gamma", None)
