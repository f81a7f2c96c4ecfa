"""The modes of torch: what is made in one must serve in the next."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from helpers.examples import DOUBLE, FLOAT, directions, families
from helpers.members import MEMBERS
from powerspherical import HypersphericalUniform, PowerSpherical

#: Constants are made once in a process, so "before any other use" needs a process of its own.
USE = """
    import os
    import sys
    sys.path.insert(0, {path!r})
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.func import grad, vmap
    from helpers.members import DRAWS, MEMBERS
    from powerspherical import PowerSpherical, SphericalCauchy, VonMisesFisher

    FAMILIES = PowerSpherical, VonMisesFisher, SphericalCauchy
    SLOW = {{"from_kl", "from_mean_length", "marginal.cdf", "marginal.icdf", "cap_probability", "cap_angle"}}

    def everything(family, dtype, device="cpu", gradient=False):
        loc = torch.eye(5, dtype=dtype, device=device)
        kappa = torch.full((5,), 3.0, dtype=dtype, device=device)
        if gradient:
            loc.requires_grad_(), kappa.requires_grad_()
        q = family(loc, kappa, validate_args=False)
        results = [member(q) for name, member in (MEMBERS | DRAWS).items() if name not in SLOW]
        if gradient:
            sum(x.double().sum() for x in results).backward()
            results += [loc.grad, kappa.grad]
        return results

    def check():
        for family in FAMILIES:
            for dtype in (torch.float32, torch.float64):
                for result in everything(family, dtype, gradient=True):
                    assert type(result) is torch.Tensor and result.isfinite().all()

    def use(families=FAMILIES, dtypes=(torch.float32, torch.float64), **options):
        for family in families:
            for dtype in dtypes:
                everything(family, dtype, **options)
"""

FIRST = {
    "inference_mode": "with torch.inference_mode(): use()",
    # Slow, and therefore not everything: with float32 parameters, many constants are float64 already.
    "FakeTensorMode": "with FakeTensorMode(): use(dtypes=[torch.float32])",
    "meta": "use(device='meta')",
    "vmap of grad": "vmap(grad(lambda x: use() or x), randomness='different')(torch.zeros(2))",
}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes that start with all modules imported")
def test_first_use_spoils_nothing(pytestconfig: pytest.Config) -> None:
    """One process imports the library and forks for each of the modes."""
    code = textwrap.dedent(USE).format(path=str(pytestconfig.rootpath / "tests"))
    for name, first in FIRST.items():
        code += f"\nif not os.fork():\n    {first}\n    check()\n    sys.exit()\n"
        code += f"if os.wait()[1]: sys.exit({name!r})\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@families
def test_training_after_inference(family: type) -> None:
    """A distribution evaluated in inference mode, its parameters still those of training."""
    loc = directions(3, 5).requires_grad_()
    kappa = torch.full((3,), 4.0, dtype=DOUBLE, requires_grad=True)
    q = family(loc, kappa)
    with torch.inference_mode():
        q.log_prob(q.sample())
        assert not q.rsample().requires_grad
    loss = q.log_prob(q.rsample()).sum() + q.entropy().sum()
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, (loc, kappa)))


def test_shapes_without_values() -> None:
    """Fake tensors know the shapes, dtypes and devices of all results."""
    with FakeTensorMode():
        loc, kappa = torch.empty(2, 3, 5, dtype=DOUBLE), torch.empty(3, dtype=FLOAT)
        q = PowerSpherical(loc, kappa, validate_args=False)
        assert (q.rsample((7,)).shape, q.rsample().dtype) == ((7, 2, 3, 5), DOUBLE)
        assert q.log_prob(loc).shape == (2, 3)
        prior = HypersphericalUniform(5, validate_args=False)
        assert torch.distributions.kl_divergence(q, prior).shape == (2, 3)
        assert prior.expand((4,)).sample().shape == (4, 5)


@pytest.mark.slow
def test_threads() -> None:
    """Two threads at once get what one gets."""

    def work(dim: int) -> list[Tensor]:
        results = []
        for kappa in (0.5, 5.0, 50.0):
            q = PowerSpherical(directions(3, dim), kappa)
            results += [member(q) for member in MEMBERS.values()]
        return results

    dims = [11, 12, 13, 14] * 2  # not used elsewhere: the constants for them are made here, by both threads
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(work, dims))
    for dim, results in zip(dims, found, strict=True):
        for actual, expected in zip(results, work(dim), strict=True):
            assert torch.equal(actual, expected)
