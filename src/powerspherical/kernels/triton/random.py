"""Random numbers inside a Triton kernel: uniform, normal and Gamma variables from a counter-based generator.

The generator is Philox (Salmon et al., 2011), keyed by a 64-bit seed, with the counter (index, row, stream). A random
number depends on these only, and not on how rows are distributed over programs.

On a GPU, logarithm, sine and cosine are the hardware's approximations. Their errors, about 1e-6, are too small for a
statistical test to detect.
"""

# mypy: ignore-errors
# (type checkers do not understand Triton's dialect of Python)

import threading

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerspherical._torch.random import KeyedGenerator

#: Rounds of Philox. Seven is the smallest number that passes all tests of BigCrush (Salmon et al., section 5). torch
#: uses ten. A draw of 1e6 × 64 around one direction takes 0.66 times as long as ``torch.randn`` with seven rounds, and
#: 0.78 times with ten.
_ROUNDS = tl.constexpr(7)

#: Streams: what the random numbers of a row are used for. The index is the column, or the attempt of a rejection.
NORMALS = tl.constexpr(0)
GAMMA = tl.constexpr(1)
LENGTH = tl.constexpr(2)
PROPOSAL = tl.constexpr(3)


@triton.jit
def _approximate(x, FUNCTION: tl.constexpr):
    """log₂ x, sin x or cos x: FUNCTION is "lg2", "sin" or "cos"."""
    if COMPILED:
        assembly: tl.constexpr = FUNCTION + ".approx.ftz.f32 $0, $1;"
        x = tl.inline_asm_elementwise(assembly, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        x = tl.log2(x) if FUNCTION == "lg2" else tl.sin(x) if FUNCTION == "sin" else tl.cos(x)
    return x


#: Whether kernels are compiled. Triton's interpreter has no inline assembly.
COMPILED = tl.constexpr(isinstance(_approximate, triton.JITFunction))


@triton.jit
def bits(seed, index, row, stream):
    """Four random 32-bit words for each index (32 bits) and row (64 bits), which broadcast against each other."""
    low, high = (row & 0xFFFFFFFF).to(tl.uint32), (row >> 32).to(tl.uint32)
    index, low = tl.broadcast(index.to(tl.uint32), low)
    high, _ = tl.broadcast(high, index)
    return tl.philox(seed, index, low, high, low * 0 + stream, _ROUNDS)


@triton.jit
def uniform(random_bits):
    """A uniform number in (0, 1]: the midpoint of one of 2³² equal intervals, rounded to float32."""
    return (random_bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10


@triton.jit
def normal_pair(radius_bits, angle_bits):
    """Two independent normals (Box & Muller, 1958). The radius is at most 6.8 and never zero."""
    # Midpoints from 1 - 2^-25 on are rounded to 1, whose logarithm is 0. The bound replaces it.
    radius = tl.sqrt(tl.maximum(-1.3862943611198906 * _approximate(uniform(radius_bits), "lg2"), 3e-8))
    angle = angle_bits.to(tl.int32, bitcast=True).to(tl.float32) * 1.4629180792671596e-09  # π/2^31
    return radius * _approximate(angle, "cos"), radius * _approximate(angle, "sin")


@triton.jit
def normals(seed, index, row, stream):
    """Four independent normals for each index and row."""
    a, b, c, d = bits(seed, index, row, stream)
    first, second = normal_pair(a, b)
    third, fourth = normal_pair(c, d)
    return first, second, third, fourth


@triton.jit
def _log_acceptance(w):
    """log(1+w) - w + w²/2 - w³/3. Near 0, where the terms cancel, by its power series."""
    near = tl.abs(w) < 0.25
    s = tl.where(near, w, 0.0)
    series = 0.25 + s * (-0.2 + s * (1 / 6 + s * (-1 / 7 + s * (0.125 + s * (-1 / 9 + s * 0.1)))))
    far = tl.where(near, 1.0, w)
    return tl.where(near, -s * s * s * s * series, tl.log(1.0 + far) - far + far * far * (0.5 - far / 3))


@triton.jit
def gamma_candidate(shape, seed, attempt, row, stream):
    """A candidate for a Gamma variable of a shape > 0 (Marsaglia & Tsang, 2000), and whether it is accepted.

    With d = shape - 1/3 the candidate is d(1+w)³, where w = z/√(9d) and z is normal. Its acceptance probability is
    exp(z²/2 + d(1 - v + log v)), v = (1+w)³. We cancel the large terms on paper, so that no digits are lost at large
    shapes: the exponent is 3d(log(1+w) - w + w²/2 - w³/3).
    """
    boosted = shape < 1.0  # Gamma(shape) = Gamma(shape + 1) · U^{1/shape}
    d = tl.where(boosted, shape + 1.0, shape) - 0.3333333333333333
    a, b, e, f = bits(seed, (row * 0 + attempt).to(tl.int32), row, stream)
    z, _ = normal_pair(a, b)
    w = z / tl.sqrt(9.0 * d)
    inside = w > -1.0
    w = tl.where(inside, w, 0.0)
    accepted = inside & (tl.log(uniform(e)) < d * (3.0 * _log_acceptance(w)))  # 3d may overflow
    candidate = d * (1.0 + w) * (1.0 + w) * (1.0 + w)
    power = tl.exp(tl.log(uniform(f)) / shape)
    return tl.where(boosted, candidate * power, candidate), accepted


@triton.jit
def gamma(shape, seed, row, stream):
    """A Gamma variable for each row: infinite if the shape is infinite, NaN if the shape is NaN or not positive."""
    value = tl.where(shape > 0, shape, float("nan"))
    pending = ((shape > 0) & (shape < float("inf"))).to(tl.int32)
    attempt = 0
    while tl.max(pending, 0) > 0:
        candidate, accepted = gamma_candidate(shape, seed, attempt, row, stream)
        value = tl.where((pending > 0) & accepted, candidate, value)
        pending = tl.where(accepted, 0, pending)
        attempt += 1
    return value


_WORD = 2**64 - 1

#: Without this lock, two threads that share a generator could read the same offset and draw the same numbers.
_ADVANCING = threading.Lock()


def random_seed(device: torch.device, generator: torch.Generator | None = None) -> tuple[Tensor | None, int]:
    """Return a random 63-bit integer from ``generator``, and advance it: a tensor or, if that is None, a number.

    The default is torch's generator for the device. While a CUDA graph is captured the seed is a tensor, so that each
    replay draws a new one.
    """
    if isinstance(generator, KeyedGenerator):
        return None, generator.key
    if device.type == "cpu":  # Triton's interpreter
        return None, int(torch.randint(2**63 - 1, (), generator=generator))
    if torch.cuda.is_current_stream_capturing():
        return torch.randint(2**63 - 1, (), device=device, generator=generator), 0
    if generator is None:
        generator = torch.cuda.default_generators[device.index]
    with _ADVANCING:
        offset = generator.get_offset()
        generator.set_offset(offset + 4)  # CUDA generators count in fours
    # torch's kernels use the generator's seed as their Philox key. A step of SplitMix64 gives us a different key.
    mixed = (generator.initial_seed() + (offset + 1) * 0x9E3779B97F4A7C15) & _WORD
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _WORD
    return None, (mixed ^ (mixed >> 31)) >> 1
