"""Random numbers inside a Triton kernel: uniforms, normals and Gammas from a counter, without any state.

The counter is (index, row, stream) under Philox (Salmon et al., 2011), keyed by a 64-bit seed: what is drawn depends on
nothing but these, and not on how rows are spread over programs. Import this only where Triton is: it is no dependency.

``FAST`` takes the hardware's approximate logarithm, sine and cosine, whose errors of about 1e-6 no test of a law can
see; Triton's interpreter knows no inline assembly and needs it off.
"""

# mypy: ignore-errors
# (what ``triton.jit`` compiles is no Python that a type checker understands)

import triton
import triton.language as tl

#: Rounds of Philox. Seven are the fewest that pass all tests of BigCrush (Salmon et al., section 5); torch takes ten.
#: Draws about one shared direction take 0.66 of the time of ``torch.randn`` with seven and 0.78 with ten (1e6 × 64).
_ROUNDS = tl.constexpr(7)

#: Which numbers of a row a counter belongs to; its index is the place in the row, or the round of a rejection.
NORMALS = tl.constexpr(0)
GAMMA = tl.constexpr(1)
LENGTH = tl.constexpr(2)
PROPOSAL = tl.constexpr(3)


@triton.jit
def _hardware(x, INSTRUCTION: tl.constexpr):
    """One of the hardware's approximate functions of one number."""
    return tl.inline_asm_elementwise(INSTRUCTION, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _log2(x, FAST: tl.constexpr):
    return _hardware(x, "lg2.approx.ftz.f32 $0, $1;") if FAST else tl.log2(x)


@triton.jit
def _cosine(x, FAST: tl.constexpr):
    return _hardware(x, "cos.approx.ftz.f32 $0, $1;") if FAST else tl.cos(x)


@triton.jit
def _sine(x, FAST: tl.constexpr):
    return _hardware(x, "sin.approx.ftz.f32 $0, $1;") if FAST else tl.sin(x)


@triton.jit
def bits(seed, index, row, stream):
    """Four times 32 random bits for each index (32 bits) and row (64 bits), which broadcast against each other."""
    low, high = (row & 0xFFFFFFFF).to(tl.uint32), (row >> 32).to(tl.uint32)
    index, low = tl.broadcast(index.to(tl.uint32), low)
    high, _ = tl.broadcast(high, index)
    return tl.philox(seed, index, low, high, low * 0 + stream, _ROUNDS)


@triton.jit
def uniform(random_bits):
    """In (0, 1], the middle of one of 2^32 equal parts, rounded."""
    return (random_bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10


@triton.jit
def normal_pair(radius_bits, angle_bits, FAST: tl.constexpr):
    """Two independent normals (Box & Muller, 1958); the radius reaches 6.8, and is never zero."""
    # A uniform that is rounded to 1 stands for numbers down to 1 - 2^-25.
    radius = tl.sqrt(tl.maximum(-1.3862943611198906 * _log2(uniform(radius_bits), FAST), 3e-8))
    angle = angle_bits.to(tl.int32, bitcast=True).to(tl.float32) * 1.4629180792671596e-09  # π/2^31
    return radius * _cosine(angle, FAST), radius * _sine(angle, FAST)


@triton.jit
def normals(seed, index, row, stream, FAST: tl.constexpr):
    """Four independent normals for each index and row."""
    a, b, c, d = bits(seed, index, row, stream)
    first, second = normal_pair(a, b, FAST)
    third, fourth = normal_pair(c, d, FAST)
    return first, second, third, fourth


@triton.jit
def _log_acceptance(w):
    """log(1+w) - w + w²/2 - w³/3, by its series where the terms would cancel."""
    near = tl.abs(w) < 0.25
    s = tl.where(near, w, 0.0)
    series = 0.25 + s * (-0.2 + s * (1 / 6 + s * (-1 / 7 + s * (0.125 + s * (-1 / 9 + s * 0.1)))))
    far = tl.where(near, 1.0, w)
    return tl.where(near, -s * s * s * s * series, tl.log(1.0 + far) - far + far * far * (0.5 - far / 3))


@triton.jit
def gamma_candidate(shape, seed, attempt, row, stream, FAST: tl.constexpr):
    """A candidate for a Gamma variable of a shape > 0 (Marsaglia & Tsang, 2000), and whether it is accepted.

    The candidate d(1+w)³ with w = z/√(9d), z normal, is accepted with probability exp(z²/2 + d(1 - v + log v)),
    v = (1+w)³. On paper the large terms cancel: what is left is 3d(log(1+w) - w + w²/2 - w³/3), right for any shape.
    """
    boosted = shape < 1.0  # a draw of shape + 1 times a power of a uniform has the smaller shape
    d = tl.where(boosted, shape + 1.0, shape) - 0.3333333333333333
    a, b, e, f = bits(seed, (row * 0 + attempt).to(tl.int32), row, stream)
    z, _ = normal_pair(a, b, FAST)
    w = z / tl.sqrt(9.0 * d)
    inside = w > -1.0
    w = tl.where(inside, w, 0.0)
    accepted = inside & (tl.log(uniform(e)) < d * (3.0 * _log_acceptance(w)))  # 3d may overflow
    candidate = d * (1.0 + w) * (1.0 + w) * (1.0 + w)
    power = tl.exp(tl.log(uniform(f)) / shape)
    return tl.where(boosted, candidate * power, candidate), accepted


@triton.jit
def gamma(shape, seed, row, stream, FAST: tl.constexpr):
    """A Gamma variable for each row. Infinite where the shape is, NaN where that is NaN or not positive."""
    value = tl.where(shape > 0, shape, float("nan"))
    pending = ((shape > 0) & (shape < float("inf"))).to(tl.int32)
    attempt = 0
    while tl.max(pending, 0) > 0:
        candidate, accepted = gamma_candidate(shape, seed, attempt, row, stream, FAST)
        value = tl.where((pending > 0) & accepted, candidate, value)
        pending = tl.where(accepted, 0, pending)
        attempt += 1
    return value
