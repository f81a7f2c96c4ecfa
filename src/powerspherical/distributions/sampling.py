"""The base class that gives every distribution ``sample``, ``rsample`` and ``noise``."""

from __future__ import annotations

import numbers
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from typing_extensions import Self

from powerspherical._torch.modes import is_exporting_to_onnx
from powerspherical._torch.vectors import computing
from powerspherical.distributions import validation
from powerspherical.sampling import noise as explicit


def sizes(name: str, value: Any) -> torch.Size:
    """Convert an integer ≥ 0, or a sequence of them, to a shape."""
    sequence: Any = value
    if not isinstance(value, tuple) and isinstance(value, numbers.Integral) and not isinstance(value, bool):
        sequence = (value,)
    try:
        shape = torch.Size(sequence)
        # The compiler cannot compare data-dependent sizes.
        if shape and not torch.compiler.is_compiling() and min(shape) < 0:
            raise TypeError
    except TypeError:
        raise ValueError(f"{name} must be an integer ≥ 0 or a tuple of them, got {value!r}") from None
    return shape


class Draws(Distribution):
    """``sample``, ``rsample`` and ``noise``, from torch's generator or the caller's.

    A subclass implements ``_draws``, ``_points`` and ``_like``.

    >>> from powerspherical import PowerSpherical
    >>> kappa = torch.tensor([1.0, 10.0], requires_grad=True)
    >>> q = PowerSpherical(torch.eye(3)[0], kappa)
    >>> x = q.rsample((5,))
    >>> x.shape, q.sample((5,)).shape
    (torch.Size([5, 2, 3]), torch.Size([5, 2, 3]))
    >>> x[..., 0].sum().backward()
    >>> kappa.grad > 0  # a larger κ moves points towards loc
    tensor([True, True])
    >>> q.rsample(noise=q.noise(256, sobol=True)).mean(0)[1, 0].round(decimals=2)  # E t = κ/(κ+2)
    tensor(0.8300, grad_fn=<RoundBackward1>)
    """

    has_rsample = True

    #: A tensor with the dtype and device of the draws.
    _like: Tensor

    def sample(
        self,
        sample_shape: Any = torch.Size(),
        *,
        generator: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        """Return the draws of ``rsample`` without gradients, of shape ``sample_shape + batch_shape + event_shape``."""
        with torch.no_grad():
            return self.rsample(sample_shape, generator=generator, noise=noise)

    def rsample(
        self,
        sample_shape: Any = torch.Size(),
        *,
        generator: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        """Return draws of shape ``sample_shape + batch_shape + event_shape``, differentiable once in the parameters.

        Args:
            sample_shape: an integer ≥ 0 or a tuple of them.
            generator: source of random numbers, on the device of the parameters. Default: torch's own generator, which
                ``torch.manual_seed`` seeds. ``torch.compile`` can trace only draws from the default generator.
            noise: standard normals that determine the draws, instead of ``sample_shape`` and ``generator``: the result
                of ``noise``, or any finite tensor of shape (…) + ``event_shape`` that broadcasts with the batch shape.
                The draws are differentiable once in it too, and accurate to rounding. They take a few µs each on a CPU.
        """
        shape = self._batch_shape
        if not (isinstance(sample_shape, tuple) and len(sample_shape) == 0):  # usually it is empty
            shape = sizes("sample_shape", sample_shape) + shape
        if noise is None:
            # ONNX has normals, but not our operator.
            if torch.compiler.is_compiling() and is_exporting_to_onnx():
                return self._points(self.noise(sample_shape, generator=generator))
            return self._draws(shape, generator)
        if len(shape) > len(self._batch_shape) or generator is not None:
            raise ValueError("noise determines draws and their shape: leave out sample_shape and generator")
        like = self._like
        validation.noise(noise, self.batch_shape, self.event_shape, like.device, self._validate_args)
        return self._points(noise.to(computing(like.dtype)))

    def noise(
        self,
        sample_shape: Any = torch.Size(),
        *,
        generator: torch.Generator | None = None,
        sobol: bool = False,
    ) -> Tensor:
        """Return standard normals of shape ``sample_shape + batch_shape + event_shape``, for ``rsample(noise=…)``.

        The same noise serves every distribution of the same event shape. Draws for ``noise`` and for ``-noise`` are
        antithetic. The dtype is that of the draws, at least float32.

        Args:
            sample_shape, generator: as in ``rsample``.
            sobol: whether the samples of each batch element form a randomised Sobol sequence, for averages over them.
                Batch elements are uncorrelated. The event must have at most 21201 entries. Best with 2ᵏ samples.
        """
        shape = sizes("sample_shape", sample_shape)
        return explicit.normals(shape, self.batch_shape, self.event_shape, self._like, generator, sobol=sobol)

    def _draws(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        """Return draws of shape ``shape + event_shape``."""
        raise NotImplementedError

    def _points(self, noise: Tensor) -> Tensor:
        """Return the draws for checked ``noise``."""
        raise NotImplementedError

    def _start(self, batch_shape: torch.Size, event_shape: torch.Size, validate_args: bool | None) -> None:
        """Do what torch's constructor does, without its checks of arguments: ours have better messages."""
        self._batch_shape, self._event_shape = batch_shape, event_shape
        self._validate_args = validation.is_enabled(validate_args)
        super(Distribution, self).__init__()

    def expand(self, batch_shape: Any, _instance: Any = None) -> Self:
        """Return this distribution expanded to the batch shape ``batch_shape``. No memory is copied."""
        new = self.__new__(type(self)) if _instance is None else _instance
        vars(new).update(vars(self))
        new._batch_shape = torch.Size(batch_shape)
        self._like.new_empty(()).expand(self._batch_shape).expand(new._batch_shape)  # raises if it cannot
        new._broadcast(new._batch_shape)
        return new

    def _broadcast(self, batch_shape: torch.Size) -> None:
        """Expand the parameters, if there are any."""
