"""Peak memory of a call beyond its inputs, in bytes.

On CUDA the allocator keeps the count. On the CPU torch's profiler lists every allocation and every release in order,
and the peak of their running sum is exact, for all that torch's allocator hands out.
"""

import os
from collections.abc import Iterable
from itertools import accumulate

import torch

from powerspherical_paper.timing import Call


def peak(call: Call, device: torch.device) -> int:
    """Return the peak during a call, including its results. A first call, not measured, fills caches."""
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    # Otherwise the profiler writes to stderr whenever it starts and stops.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with torch.autograd.profiler.profile(profile_memory=True) as profiled:
        call()
    results = profiled.kineto_results
    assert results is not None, "a profile has results when it ends"
    changes = [(event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]"]
    return highest(size for _, size in sorted(changes, key=lambda change: change[0]))


def highest(changes: Iterable[int]) -> int:
    """Return the largest value of a running sum that starts at zero."""
    return max(accumulate(changes, initial=0))
