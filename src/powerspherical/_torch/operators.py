"""Define torch operators, which ``torch.compile`` does not look into. They have no derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

LIBRARY = torch.library.Library("powerspherical", "FRAGMENT")


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
