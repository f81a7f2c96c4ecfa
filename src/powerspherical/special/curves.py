"""Functions of κ on float32 and float64 tensors, read from ``tables``: on every device and in every mode of torch.

In plain eager mode a kernel computes a function together with its derivative. Elsewhere torch operations take the same
steps.

For every function, κ = 0 and subnormal κ give the limits and their derivatives, κ = ∞ gives the limit, NaN gives NaN,
and a negative κ counts as 0, with the derivative 0.
"""

from __future__ import annotations

import functools
import math
import operator

import torch
from torch import Tensor

from powerspherical._torch.constants import tensor_constant
from powerspherical._torch.derivatives import with_derivatives
from powerspherical._torch.modes import transforms_active
from powerspherical._torch.precision import needs_float64
from powerspherical._torch.private import is_exporting, untraced
from powerspherical.kernels.dispatch import differentiable, is_plain
from powerspherical.kernels.registry import Table
from powerspherical.special.tables import TOP, Curve, curves

#: By dtype: the integers of its size, the bits of its mantissa but for three, and the bias of its exponent.
_BITS = {torch.float32: (torch.int32, 20, 127), torch.float64: (torch.int64, 49, 1023)}


def _curve(family: str, name: str, dim: float, order: int) -> Curve:
    found = curves(family, dim)[name]
    for _ in range(order):
        found = found.slope
    return found


@untraced
def has(family: str, name: str, dim: float) -> bool:
    """Whether the curves of the family have one of that name."""
    return name in curves(family, dim)


@tensor_constant
def _rows(size: int, family: str, name: str, dim: float, order: int) -> list[list[float]]:
    rows: list[list[float]] = _curve(family, name, dim, order).rows(size).tolist()
    return rows


@untraced
def _numbers(family: str, name: str, dim: float, order: int) -> tuple[int, float, float, int]:
    """Return low, gain and decay of a curve, and the n with which it is ∝ κ^n near κ = 0."""
    found = _curve(family, name, dim, order)
    return found.cells.low, found.gain, found.decay, int((found.fit[0] != 0).argmax())


def table(like: Tensor, family: str, name: str, dim: float, order: int = 0) -> Table:
    """Return what a kernel needs: the rows, and the numbers (first, gain, decay).

    The cell of κ is ``(bits of κ >> shift) - first``, between 0 and the last row. The rows have the dtype and
    device of ``like``.
    """
    low, gain, decay, _ = _numbers(family, name, dim, order)
    *_, bias = _BITS[like.dtype]
    return _rows(like, like.dtype.itemsize, family, name, dim, order), (8 * (low + bias) - 1, gain, decay)


@with_derivatives(lambda kappa, family, name, dim, order: value(kappa, family, name, dim, order + 1))
def _by_operations(kappa: Tensor, family: str, name: str, dim: float, order: int) -> Tensor:
    """Evaluate a curve by torch operations."""
    if isinstance(dim, int):
        dim = operator.index(dim)  # the compiler's symbolic integer as a plain one
    rows, (first, gain, decay) = table(kappa, family, name, dim, order)
    integers, shift, bias = _BITS[kappa.dtype]
    inside, plain = kappa.clamp(0.0, 2.0**TOP), is_plain(kappa)
    # ONNX has no bits of numbers, and vmap has them from torch 2.13 on. At the end of a cell its neighbour is as good.
    if not plain and (is_exporting() or transforms_active()):
        least = inside.detach().clamp(min=2.0 ** ((first + 1) // 8 - bias - 1))
        exponent = torch.floor(torch.log2(least))
        fraction = least * torch.exp2(-exponent) - 1  # in [0, 1), up to rounding
        number = (8 * (exponent + bias) + torch.floor(8 * fraction)).to(torch.int64)
    else:
        number = inside.detach().view(integers) >> shift
    row = torch.embedding(rows, number.sub_(first).clamp(0, len(rows) - 1))
    minus_offset, scale, *coefficients, value = row.unbind(-1)
    x = torch.addcmul(minus_offset, inside, scale)
    for coefficient in reversed(coefficients):
        value = torch.addcmul(coefficient, value, x)
    # Where the host may look, it skips the values beyond the table if there are none.
    looks = plain and kappa.is_cpu and kappa.numel() > 0
    if (gain or decay) and not (looks and float(kappa.max()) <= 2.0**TOP):
        beyond = kappa.clamp(min=2.0**TOP) * 2.0**-TOP  # 1 inside the table
        value = torch.add(value, torch.log(beyond), alpha=gain) if gain else value * beyond**-decay
    return value


@functools.lru_cache(256)
def kernel_tables(
    family: str, name: str, dim: float, order: int, dtype: torch.dtype, device: torch.device
) -> tuple[Table, ...]:
    """Return the table of a curve, and that of its derivative if it is better than the derivative of the first."""
    like = torch.empty((), dtype=dtype, device=device)
    orders = (order,) if _curve(family, name, dim, order).own_slope is None else (order, order + 1)
    return tuple(table(like, family, name, dim, each) for each in orders)


def value(kappa: Tensor, family: str, name: str, dim: float, order: int = 0) -> Tensor:
    """Return a function of κ, or its derivative of some order.

    Args:
        kappa: any shape, float32 or float64. The result has its shape and dtype, and is differentiable.
        family, name: a curve of ``tables.curves``.
        dim: the ambient dimension d ≥ 2.
        order: how often to differentiate.
    """
    if not isinstance(kappa, Tensor) or kappa.dtype not in _BITS:
        kind = kappa.dtype if isinstance(kappa, Tensor) else type(kappa).__name__
        raise ValueError(
            f"kappa must be a float32 or float64 tensor, got {kind}: convert it with kappa.float()"
        )
    found: Tensor = differentiable(
        "curve",
        lambda kappa, *_: _by_operations(kappa, family, name, dim, order),
        lambda: kernel_tables(family, name, dim, order, kappa.dtype, kappa.device),
        kappa,
    )
    return torch.where(kappa < 0, 0.0, found) if order else found


_NEWTON_STEPS = 4


@with_derivatives(
    lambda kappa, target, family, name, dim: 1 / value(kappa, family, name, dim, 1), from_output=True
)
def inverse(target: Tensor, family: str, name: str, dim: float) -> Tensor:
    """Return the κ at which a curve has the value ``target``. The curve must increase from 0, or decrease.

    The table is searched for the cell. In the cell Newton's method starts from the chord, or in cell 0 from the
    leading power. Beyond the table the curve is a logarithm or a power. If no finite κ reaches ``target``, the result
    is infinite, or 0 on the side of κ = 0.

    Args:
        target: values of the curve, any shape, float64.
        family, name, dim: as for ``value``.
    """
    rows, (_, gain, decay) = table(target, family, name, dim)
    *_, power = _numbers(family, name, dim, 0)
    begins, top = rows[:, 2], rows[-1, 2:].sum()
    sign = 1.0 if power else -1.0
    ascending = torch.where(
        begins.isnan(), math.inf, sign * begins
    )  # NaN beyond the range of a sampled curve
    cell = (torch.searchsorted(ascending, sign * target, right=True) - 1).clamp(min=0)
    minus_offset, scale, constant, *coefficients, last = torch.embedding(rows, cell).unbind(-1)
    x = ((target - constant) / sum(coefficients, last)).clamp(0.0, 1.0)
    if power > 1:
        x = torch.where(cell == 0, x ** (1 / power), x)
    for _ in range(_NEWTON_STEPS):
        height, slope = last, torch.zeros_like(x)
        for coefficient in reversed(coefficients):
            slope = torch.addcmul(height, slope, x)
            height = torch.addcmul(coefficient, height, x)
        slope = torch.addcmul(height, slope, x)
        error = torch.addcmul(constant - target, height, x)
        x = x - torch.where(error == 0, 0.0, error / slope)
    beyond = torch.full_like(target, math.inf)
    if gain:
        beyond = 2.0**TOP * torch.exp((target - top) / gain)
    elif decay > 0:
        beyond = 2.0**TOP * (target / top) ** (-1 / decay)
    kappa = torch.where(x > 1 + 1e-9, beyond, (x - minus_offset) / scale)
    return torch.where(sign * target > sign * begins[0], kappa, torch.where(target.isnan(), target, 0.0))


@needs_float64
def inverse_mean(length: Tensor, loss: Tensor, family: str, dim: float) -> Tensor:
    """Return the κ ≥ 0 with E t = ``length`` = 1 - ``loss``, in the shape and dtype of ``length``.

    It is differentiable in ``length``. The computation is in float64, because κ² leaves the range of float32.
    """
    return _inverse_mean(length.double(), loss.detach().double(), family, dim).to(length.dtype)


@with_derivatives(
    lambda kappa, length, loss, family, dim: 1 / value(kappa, family, "mean", dim, 1), None, from_output=True
)
def _inverse_mean(length: Tensor, loss: Tensor, family: str, dim: float) -> Tensor:
    low, high = inverse(length, family, "mean", dim), inverse(loss, family, "loss", dim)
    return torch.where(length < 0.5, low, high)
