"""Tails, quantiles and slopes from a log-kernel alone, against law.json."""

from __future__ import annotations

import mpmath
import pytest
import torch
from torch import Tensor

from helpers.kernels import KERNELS
from helpers.mpmath_tables import load
from powerspherical.families import VON_MISES_FISHER, Family
from powerspherical.quadrature import law
from powerspherical.quadrature.cosine import Cosine

DOUBLE = torch.float64
kernels = pytest.mark.parametrize("name", KERNELS)


def columns(name: str, dim: int) -> dict[str, Tensor]:
    table = load("law.json")
    rows = [[float(x) for x in row[1:]] for row in table["rows"] if row[0] == name and row[1] == dim]
    return dict(zip(table["columns"][1:], torch.tensor(rows, dtype=DOUBLE).unbind(1), strict=True))


def points(near: Tensor, sign: Tensor) -> Cosine:
    return Cosine(torch.where(sign > 0, near, 2 - near), torch.where(sign > 0, 2 - near, near))


def quantile_error(kernel: Family, u: Tensor, complement: Tensor, kappa: Tensor, dim: int) -> Tensor:
    """Return by how much the log of the smaller probability at the quantile differs from that wanted."""
    t = law.quantile(kernel, u, complement, kappa, dim)
    log_tail, below = law.log_near_tail(kernel, t, kappa, dim)
    return (log_tail - torch.where(below, u, complement).log()).abs()


@kernels
@pytest.mark.parametrize("dim", [2, 3, 10, 60, 300, 1000])
def test_table(name: str, dim: int) -> None:
    kernel, rows = KERNELS[name], columns(name, dim)
    t, kappa, wanted = points(rows["near"], rows["sign"]), rows["kappa"], rows["log_tail"]
    log_tail, below = law.log_near_tail(kernel, t, kappa, dim)
    assert torch.equal(below, rows["below"] > 0)
    torch.testing.assert_close(log_tail, wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(law.slope(kernel, t, kappa, dim), rows["slope"], rtol=3e-12, atol=0)
    near, far = torch.exp(wanted), -torch.expm1(wanted)
    found = law.quantile(
        kernel, *(torch.where(below, a, b) for a, b in ((near, far), (far, near))), kappa, dim
    )
    assert ((found.rapidity - t.rapidity) * rows["hazard"]).abs().max() < 1e-12


def test_closed_forms_of_a_family_are_used() -> None:
    """On the sphere of R³ the Langevin law has the cdf (e^{κt} - e^{-κ})/(e^κ - e^{-κ})."""
    kappas, rapidities = torch.tensor([0.5, 3.0, 80.0]).double(), torch.linspace(-2, 4, 7, dtype=DOUBLE)
    kappa, rapidity = torch.meshgrid(kappas, rapidities, indexing="ij")
    t, family = Cosine.of_rapidity(rapidity), VON_MISES_FISHER
    below = torch.expm1(kappa * t.plus) / torch.expm1(2 * kappa)
    above = torch.expm1(-kappa * t.minus) / torch.expm1(-2 * kappa)
    log_tail, is_below = law.log_near_tail(family, t, kappa, 3)
    torch.testing.assert_close(log_tail, torch.where(is_below, below, above).log(), rtol=0, atol=1e-12)
    assert quantile_error(family, below, above, kappa, 3).max() < 1e-12
    exact = VON_MISES_FISHER.slope(t, None, kappa, 3)
    torch.testing.assert_close(law.slope(family, t, kappa, 3), exact, rtol=1e-12, atol=0)


def test_small_probability_of_a_nearly_uniform_circle() -> None:
    kappa, u = torch.tensor([0.014997462106707361, 4.83409470273421e-07], dtype=DOUBLE)
    t = law.quantile(KERNELS["power_spherical"], u, 1 - u, kappa, 2)
    with mpmath.workdps(30):
        half = mpmath.mpf(1) / 2
        reached = mpmath.betainc(half + kappa.item(), half, 0, half * t.plus.item(), regularized=True)
        assert abs(reached / u.item() - 1) < 1e-12


@kernels
@pytest.mark.parametrize("kappa", [0.0, 11.0, 300.0])
def test_many_points_with_one_concentration(name: str, kappa: float) -> None:
    """Quantiles and slopes of large batches are interpolated."""
    normal = torch.linspace(-5, 5, 5000, dtype=DOUBLE)
    u, complement = torch.special.ndtr(normal), torch.special.ndtr(-normal)
    some, kappas = slice(None, None, 100), torch.full_like(u, kappa)  # too few points for an interpolation
    for dim in (2, 64):
        t = law.quantile(KERNELS[name], u, complement, kappas, dim)
        slope = law.slope(KERNELS[name], t, kappas, dim)
        few = u[some], complement[some], kappas[some], dim
        torch.testing.assert_close(
            Cosine(*(x[some] for x in t)), law.quantile(KERNELS[name], *few), rtol=1e-10, atol=0
        )
        expected = law.slope(KERNELS[name], Cosine(*(x[some] for x in t)), kappas[some], dim)
        torch.testing.assert_close(slope[some], expected, rtol=1e-9, atol=0)


@kernels
def test_batched_by_vmap(name: str) -> None:
    """The host cannot see errors, so the numbers of rays and arcs are fixed."""
    normal = torch.linspace(-8, 8, 80, dtype=DOUBLE)
    u, complement = torch.special.ndtr(normal), torch.special.erfc(normal / 2**0.5) / 2
    u = torch.special.erfc(-normal / 2**0.5) / 2
    kernel = KERNELS[name]
    for dim in (2, 16):
        for kappa in torch.tensor([0.0, 11.0, 40.0, 1e4], dtype=DOUBLE):
            t = torch.func.vmap(lambda u, c, k=kappa, d=dim: law.quantile(kernel, u, c, k, d))(u, complement)
            log_tail, below = law.log_near_tail(kernel, t, kappa.expand_as(u), dim)
            torch.testing.assert_close(log_tail, torch.where(below, u, complement).log(), rtol=0, atol=2e-12)


@pytest.mark.slow
def test_exported() -> None:
    """Of a kernel with a pole. `tests/integration/test_export.py` has those of the families."""

    class Quantile(torch.nn.Module):
        def forward(self, u: Tensor, complement: Tensor, kappa: Tensor) -> Cosine:
            return law.quantile(KERNELS["pole"], u, complement, kappa, 5)

    u = torch.linspace(1e-9, 1 - 1e-9, 50, dtype=DOUBLE)
    inputs = u, 1 - u, torch.linspace(0, 50, 50, dtype=DOUBLE)
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(Quantile(), tuple(x[:4] for x in inputs), dynamic_shapes=(batch,) * 3)
    torch.testing.assert_close(
        tuple(program.module()(*inputs)), tuple(Quantile()(*inputs)), rtol=1e-12, atol=0
    )


@kernels
def test_extreme_concentrations(name: str) -> None:
    """NaN stays NaN, at 0 the law is that of uniform points, and at 1e30 the points are close to the mode."""
    kappa = torch.tensor([torch.nan, 0.0, 1e-300, 1e30], dtype=DOUBLE)
    u = torch.full_like(kappa, 0.3)
    t = law.quantile(KERNELS[name], u, 1 - u, kappa, 2)
    log_tail, below = law.log_near_tail(KERNELS[name], t, kappa, 2)
    slope = law.slope(KERNELS[name], t, kappa, 2)
    assert t.minus[0].isnan()
    assert log_tail[0].isnan()
    assert slope[0].isnan()
    torch.testing.assert_close(t.minus[1:3], 1 + torch.cos(0.3 * torch.pi * torch.ones(2, dtype=DOUBLE)))
    assert 0 < t.minus[3] < 1e-14
    torch.testing.assert_close(log_tail[1:].exp(), torch.where(below, u, 1 - u)[1:], rtol=1e-11, atol=0)
    assert slope[1:].isfinite().all()
