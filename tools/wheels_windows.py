"""What tools/wheels.py runs in a Python for Windows: the library, with torch, and file writing."""

import tempfile
from pathlib import Path

import torch

from powerspherical import PowerSpherical, VonMisesFisher
from powerspherical._files.drafts import atomic_write
from powerspherical.engines import engine
from powerspherical.kernels import library

assert not isinstance(library.loaded(), str), library.description()
for dtype in (torch.float32, torch.float64):
    for family in (PowerSpherical, VonMisesFisher):
        loc = torch.nn.functional.normalize(torch.randn(20_000, 8, dtype=dtype), dim=-1)
        kappa = torch.full((20_000,), 10.0, dtype=dtype, requires_grad=True)
        results = []
        x = None
        for name in ("c", "torch"):
            with engine(name):
                q = family(loc, kappa)
                x = q.rsample() if x is None else x.detach()
                length = (q.rsample() * loc).sum(-1).mean()
                results.append(
                    torch.stack([q.log_prob(x).mean(), length, torch.autograd.grad(length, kappa)[0].sum()])
                )
        torch.testing.assert_close(results[0][0], results[1][0])
        torch.testing.assert_close(*results, rtol=0.05, atol=0.005)  # of different draws

file = Path(tempfile.mkdtemp()) / "new" / "file"
for content in (b"new", b"replaced"):
    with atomic_write(file) as draft:
        draft.write_bytes(content)
try:
    with atomic_write(file) as draft:
        draft.write_bytes(b"interrupted")
        raise KeyboardInterrupt
except KeyboardInterrupt:
    assert file.read_bytes() == b"replaced"
assert [path.name for path in file.parent.iterdir()] == ["file"]
print(
    f"{library.description()}, torch {torch.__version__}, draws, densities, gradients and file writing",
    flush=True,
)
