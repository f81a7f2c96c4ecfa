"""A layer that replaces features by points on the sphere, and states how much they tell."""

from __future__ import annotations

import inspect
import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from powerspherical._torch.modes import is_exporting_to_onnx
from powerspherical.distributions import ProductOfSpheres, RotationallySymmetric
from powerspherical.distributions.kl import rate
from powerspherical.nn._latents import latents
from powerspherical.nn.heads import SphericalHead

#: Options of the bottleneck, those of its head included.
_OPTIONS = ("radius", "evaluate", *inspect.getfullargspec(SphericalHead).kwonlyargs)


class SphericalBottleneck(nn.Module):
    r"""Maps features to latents z on a sphere and their rate, ``z, rate = bottleneck(features)``.

    In training and after ``eval()``, z is a draw, so that z carries the stated rate. With ``evaluate="mode"`` it is the
    mode after ``eval()``: without noise, and the same in every call.

    At each position a ``SphericalHead`` turns the features into a distribution q on the sphere. Draws from q are
    differentiable in the features. The rate is KL(q‖U), the divergence from the uniform distribution, in nats.
    ``bottleneck.head(features)`` returns q, for its density or entropy.

    z has the shape and dtype of the features, with m·d entries along ``axis``, where m is the number of spheres
    (``product``). It is contiguous, or ``channels_last``, if the features are. The rate has the shape of the features
    without ``axis``, and at least float32. The rate of a product of spheres is the sum over its factors.


    Draws and rates are computed in float32, or in float64 for float64 features, also under autocast. The relative error
    of the rate is about 7e-7 in float32, given κ. ``torch.compile(fullgraph=True)``, ``torch.utils.checkpoint``,
    ``DistributedDataParallel`` and ``fully_shard`` work. There is no host sync, except for explicit ``noise`` and for
    float64 draws of von Mises–Fisher. In training, forward hooks of ``bottleneck.head`` run only if it has a linear
    layer or ``raw`` is given.

    Args:
        in_features, dim, family: as for ``SphericalHead``. With ``in_features=None`` the features are the outputs of
            your own layer: v, the direction before normalisation, then r, from which κ is computed.
        radius: length of z. A number, or "sqrt_dim" for √d, which gives coordinates of mean square 1.
        evaluate: "draw" or "mode", the value of z after ``eval()``. The attribute of this name can be changed.
        head: the other options of ``SphericalHead``, such as ``axis``, ``minimum``, ``nats`` and ``product``.

    >>> _ = torch.manual_seed(0)
    >>> bottleneck = SphericalBottleneck(32, dim=16, radius="sqrt_dim")
    >>> features = torch.randn(8, 100, 32)
    >>> z, rate = bottleneck(features)
    >>> z.shape, rate.shape, z.norm(dim=-1).mean()
    (torch.Size([8, 100, 16]), torch.Size([8, 100]), tensor(4., grad_fn=<MeanBackward0>))

    The output of an encoder, channels first, with four nats for each of two spheres:

    >>> bottleneck = SphericalBottleneck(None, dim=4, axis=1, nats=4.0, product=2)
    >>> z, rate = bottleneck(torch.randn(2, 8, 32, 32))
    >>> z.shape, rate.shape, rate.mean()
    (torch.Size([2, 8, 32, 32]), torch.Size([2, 32, 32]), tensor(8.))
    """

    def __init__(
        self,
        in_features: int | None,
        dim: int,
        family: str | type[RotationallySymmetric] = "power_spherical",
        *,
        radius: float | Literal["sqrt_dim"] = 1.0,
        evaluate: Literal["draw", "mode"] = "draw",
        **head: Any,
    ) -> None:
        super().__init__()
        if unknown := sorted(head.keys() - _OPTIONS):
            raise TypeError(
                f"unknown option {unknown[0]!r} of a bottleneck: choose from {', '.join(_OPTIONS)}"
            )
        if evaluate not in ("draw", "mode"):
            raise ValueError(f'evaluate must be "draw" or "mode", got {evaluate!r}')
        self.head = SphericalHead(in_features, dim, family, **head)
        length = math.sqrt(self.head.dim) if radius == "sqrt_dim" else radius
        if isinstance(length, str) or not 0 < length < math.inf:
            raise ValueError(f'radius must be a number > 0 or "sqrt_dim", got {radius!r}')
        self.radius, self.evaluate = float(length), evaluate

    def forward(
        self,
        features: Tensor,
        raw: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return z and the rate, of the shapes that the class states.

        Args:
            features, raw: as for ``SphericalHead.forward``.
            generator: source of random numbers for the draw, on the device of the features.
            noise: standard normals that determine z, whatever ``evaluate`` is, of the shape of the rate plus (d,), or
                (m, d) for a product. See ``PowerSpherical.rsample``.

        >>> bottleneck = SphericalBottleneck(None, dim=3, evaluate="mode").eval()
        >>> v, r = torch.tensor([[0.0, 0.0, 2.0]]), torch.tensor([[50.0]])
        >>> bottleneck(v, r)
        (tensor([[0., 0., 1.]]), tensor([2.9514]))
        """
        head = self.head
        # Skip a head without a linear layer: torch.compile guards each attribute and function that the call uses.
        outputs = None
        if raw is not None or not head._returns_features:
            outputs = head(features, raw, outputs_only=True)
        draws = self.training or self.evaluate == "draw" or noise is not None
        settings = head.packed_settings
        # Latents without a distribution: nobody would check its parameters.
        given = noise is not None or generator is not None
        exporting = torch.compiler.is_compiling() and is_exporting_to_onnx()
        if draws and settings is not None and not (given or head.validate_args or exporting):
            return latents(features, outputs, settings, self.radius)
        q = head(features) if outputs is None else head.distribution_from_outputs(outputs)
        expected = q.batch_shape + q.event_shape  # the noise of a draw may also broadcast
        if isinstance(noise, Tensor) and noise.shape != expected:
            raise ValueError(
                f"noise must have the shape {tuple(expected)} for these features, got {tuple(noise.shape)}"
            )
        z = q.rsample(generator=generator, noise=noise) if draws else q.mode
        if self.radius != 1:
            z = self.radius * z
        return head._layout.merged(z, features), self._rate(q)

    def _rate(self, q: RotationallySymmetric | ProductOfSpheres) -> Tensor:
        if self.head.fixed_rate is not None:
            return q.mode.new_full(q.batch_shape, self.head.fixed_rate)
        # torch's kl_divergence takes host time, and hundreds of guards under torch.compile.
        factors: Any = q.base_dist if isinstance(q, ProductOfSpheres) else q
        rates = rate(factors.family, factors.concentration, self.head.dim)
        return rates if self.head.product is None else rates.sum(-1)

    def extra_repr(self) -> str:
        return f"radius={self.radius:g}, evaluate={self.evaluate!r}"
