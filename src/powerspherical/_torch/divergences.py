"""torch's table of KL divergences between types of distributions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from powerspherical._torch.private import divergence_table, find_divergence


def look_up_divergences(types: Iterable[type]) -> None:
    """Let torch find the KL divergences between all pairs of ``types`` before the compiler traces the search.

    ``torch.distributions.kl_divergence`` searches the registered pairs and keeps what it finds in a table. If the
    compiler traces the search, it guards every registered pair. Its graph also fills the table, which invalidates the
    graph, so that the second call compiles again. A table that grows later does the same.
    """
    types = list(types)
    for p, q in itertools.product(types, types):
        if divergence_table is not None and (p, q) not in divergence_table:
            divergence_table[p, q] = find_divergence(p, q)
