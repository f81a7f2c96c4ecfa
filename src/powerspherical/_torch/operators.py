"""Torch operators of two kinds. Dynamo, the first stage of ``torch.compile``, does not trace their Python code.

``define_operator`` defines one that stays opaque. It has no derivatives.

``composite`` records a function as one operator. While dynamo traces code, it adds a guard for each global name,
attribute and default argument, and a compiled function checks all its guards in every call. Traced, a small draw and
its divergence would have 400 guards, which take 30 µs. An operator adds a few. AOTAutograd, the next stage, runs the
operator's Python code on fake tensors and records its torch operations, so they are differentiated and fused as if
dynamo had traced them.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any, cast

import torch
from torch.compiler import is_dynamo_compiling

from powerspherical._torch.modes import is_transformed
from powerspherical._torch.private import F, is_exporting, untraced

LIBRARY = torch.library.Library("powerspherical", "FRAGMENT")
_PACKAGE = Path(__file__).parents[1]


def define_operator(
    schema: str,
    run: Callable[..., Any],
    *,
    fake: Callable[..., Any],
    batch: Callable[..., Any] | None = None,
    random: bool = False,
) -> Callable[..., Any]:
    """Define and return an operator ``torch.ops.powerspherical.*``.

    Args:
        schema: name, arguments and results, in torch's schema language.
        run: the implementation for all devices.
        fake: returns empty results of the right shapes, for tracing.
        batch: the vmap rule, see ``torch.library.register_vmap``. None if it is not called under ``vmap``.
        random: whether the operator draws random numbers.
    """
    tags = (torch.Tag.pt2_compliant_tag, *((torch.Tag.nondeterministic_seeded,) if random else ()))
    name = schema.partition("(")[0]
    LIBRARY.define(schema, tags=tags)
    LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"powerspherical::{name}", fake, lib=LIBRARY)
    if batch is not None:
        torch.library.register_vmap(f"powerspherical::{name}", batch, lib=LIBRARY)
    operator: Callable[..., Any] = getattr(torch.ops.powerspherical, name).default
    return operator


def composite(name: str, arguments: str, results: str) -> Callable[[F], F]:
    """Decorate a function of tensors and constants, which ``torch.compile`` then records as an operator of this name.

    Its result must depend on its ``arguments`` only. They and the types of the ``results`` are given in torch's schema
    language, without defaults. Callers pass arguments by position.
    """

    def decorate(function: F) -> F:
        LIBRARY.define(f"{name}({arguments}, str sources) -> {results}", tags=(torch.Tag.pt2_compliant_tag,))
        LIBRARY.impl(name, functools.partial(_run_recorded, function), "CompositeImplicitAutograd")
        operator = getattr(torch.ops.powerspherical, name).default

        @functools.wraps(function)
        def call(*inputs: Any) -> Any:
            if is_dynamo_compiling() and (sources := _recorded_sources()):
                return operator(*inputs, sources)
            return function(*inputs)

        return cast(F, call)

    return decorate


#: Whether the implementation of an operator is running. Each thread has its own.
_recorded = ContextVar("recorded", default=False)


def _run_recorded(function: Callable[..., Any], *inputs: Any) -> Any:
    """The implementation of the operators: run the function, without the sources."""
    before = _recorded.set(True)
    try:
        return function(*inputs[:-1])
    finally:
        _recorded.reset(before)


@untraced
def is_recorded() -> bool:
    """Whether this call is inside of a function that ``torch.compile`` has recorded as one operator."""
    return _recorded.get()


@untraced
def _recorded_sources() -> str | None:
    """Return the last argument of every operator, or None if no operator may be recorded here.

    We record none in ``torch.export``, because an exported program must run without this package, and none under
    transforms, which have to see the torch operations. The argument is a digest of this package's code. torch finds
    compiled graphs on disk by their operators and arguments. The digest keeps it from using one made from older code.
    """
    if is_exporting() or is_transformed():
        return None
    return _digest()


@functools.cache
def _digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@untraced
def is_ours(kind: type) -> bool:
    """Whether a class is defined in this package, so that the digest covers its code."""
    return kind.__module__.partition(".")[0] == __name__.partition(".")[0]
