"""What depends on torch's modes (transforms, tracing, capture), and small tools for tensors."""

import torch

OLDEST = (2, 6)

#: The version of torch.
TORCH = tuple(int(number) for number in torch.__version__.split(".")[:2])

if TORCH < OLDEST:
    raise ImportError(
        f"powerspherical needs torch {'.'.join(map(str, OLDEST))} or newer, found {torch.__version__}: "
        "pip install -U torch"
    )
