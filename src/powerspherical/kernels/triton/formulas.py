"""Written by tools/translate.py from the package's formulas: change those instead. They have the documentation."""

# fmt: off
# ruff: noqa
# mypy: ignore-errors
import triton
import triton.language as tl

from powerspherical.kernels.triton.elementary import at_least, at_most, exp, expm1, hypot, log1p


@triton.jit
def power_spherical_ends_3(squared_length, kappa):
    log_half = squared_length / (-2 * (kappa + 1))
    return (-2 * expm1(log_half), 2 * exp(log_half))

@triton.jit
def von_mises_fisher_ends_3(squared_length, kappa):
    kappa = at_least(kappa, 1e-20)
    u = exp(-0.5 * squared_length)
    rest = -expm1(-0.5 * squared_length)
    complement = -expm1(-2 * kappa) * rest
    far = tl.log(u + rest * exp(-2 * kappa))
    minus = tl.where(complement < 0.5, log1p(-at_most(complement, 0.5)), far) / -kappa
    small = at_most(kappa, 10.0)
    close = log1p(u * expm1(2 * small)) / small
    return (minus, tl.where(kappa < 10.0, close, 2 - minus))

@triton.jit
def boosted(minus, plus, growth):
    shrunk = minus / growth / growth
    scale = 2 / (shrunk + plus)
    return (shrunk * scale, plus * scale)

@triton.jit
def softplus(r):
    return tl.where(r < 40.0, log1p(exp(at_most(r, 40.0))), r)

@triton.jit
def concentration(raw, minimum, maximum, rate):
    excess = softplus(at_most(raw, 1e+38))
    return at_most(minimum + excess / (1 + excess * rate), maximum)

@triton.jit
def concentration_slope(raw, rate):
    growth = exp(at_most(raw, 40.0))
    shrink = 1 / (1 + softplus(at_most(raw, 1e+38)) * rate)
    return tl.where(raw < 40.0, growth / (1 + growth), 1.0) * shrink * shrink

@triton.jit
def power_spherical_slope_3(minus, plus, kappa):
    minus = at_least(minus, 1e-30)
    return log1p(minus / at_least(plus, 1e-37)) / minus / (1 + kappa)

@triton.jit
def von_mises_fisher_slope_3(minus, plus, kappa):
    large = at_least(kappa, 0.5)
    a = large * at_least(plus, 1e-30)
    b = large * at_least(minus, 1e-30)
    far = (expm1(-a) / a - exp(-a) * (expm1(-b) / b)) / expm1(-2 * large)
    small = at_most(kappa, 0.5)
    square = small * small
    tilt = 0.5 * small * (plus - minus)
    tilt_square = tilt * tilt
    partial = 0 * square
    total = partial
    sinhc = partial
    partial = 1.1470745597729725e-11 - 7.647163731819816e-13 * tilt + square * partial
    total = partial + tilt_square * total
    sinhc = (sinhc + 7.647163731819816e-13) * square
    partial = 2.08767569878681e-09 - 1.6059043836821613e-10 * tilt + square * partial
    total = partial + tilt_square * total
    sinhc = (sinhc + 1.6059043836821613e-10) * square
    partial = 2.755731922398589e-07 - 2.505210838544172e-08 * tilt + square * partial
    total = partial + tilt_square * total
    sinhc = (sinhc + 2.505210838544172e-08) * square
    partial = 2.48015873015873e-05 - 2.7557319223985893e-06 * tilt + square * partial
    total = partial + tilt_square * total
    sinhc = (sinhc + 2.7557319223985893e-06) * square
    partial = 0.001388888888888889 - 0.0001984126984126984 * tilt + square * partial
    total = partial + tilt_square * total
    sinhc = (sinhc + 0.0001984126984126984) * square
    partial = 0.041666666666666664 - 0.008333333333333333 * tilt + square * partial
    total = partial + tilt_square * total
    sinhc = (sinhc + 0.008333333333333333) * square
    partial = 0.5 - 0.16666666666666666 * tilt + square * partial
    total = partial + tilt_square * total
    sinhc = (sinhc + 0.16666666666666666) * square
    return tl.where(kappa < 0.5, total / (sinhc + 1), far)

@triton.jit
def von_mises_fisher_slope(plus, kappa, degrees):
    twice = 2 * at_most(kappa, 1e+37)
    radius = hypot(twice, 0 * twice + degrees)
    denominator = degrees + degrees * (degrees / (radius + twice)) + twice * plus
    e = 1 / radius
    u = 2 * radius / denominator
    g = degrees * e
    v = u - 1
    y = g * v
    ev = e * v
    one = 1 + g
    second = 0.75 * one * y * y + 0.5 * one * (7 * g - 5) * y
    second = ev * (second + 0.5 * (((12 * g + -5) * g + -10) * g + 4)) + 0.5 * e * (g - 1) * ((9 * g + -1) * g + -4)
    third = one * one * y * y * (1.875 * y + 1.25 * (11 * g - 7))
    third = third + 0.5 * one * (((85 * g + -23) * g + -70) * g + 26) * y
    third = ev * ev * (third + 0.75 * one * ((((95 * g + -86) * g + -53) * g + 56) * g + -8))
    third = third + 0.125 * e * ev * (((((545 * g + -296) * g + -749) * g + 376) * g + 224) * g + -96)
    third = third + 0.5 * e * e * (g - 1) * ((((70 * g + -13) * g + -69) * g + 8) * g + 12)
    return e * u * (1 + e * u * one * (1 - g - 0.5 * y + second - third))

@triton.jit
def gamma_slope_by_expansion(shape, gamma):
    inverse = 1 / shape
    h = (gamma - shape) * inverse
    series = ((((0.125 * h + -0.14285714285714285) * h + 0.16666666666666666) * h + -0.2) * h + 0.25) * h + -0.3333333333333333
    over = 1 / tl.where(h == 0, 1.0, h)
    direct = ((h - log1p(at_least(h, -0.9999999))) * over * over - 0.5) * over
    p = tl.where(tl.abs(h) < 0.1, series, direct)
    c = h * p
    r = 0.5 + c
    rest = ((0.01380286 * c + -0.03988036) * c + 0.0002601254) * c + 0.01665816
    rest = rest + inverse * (((-0.02721489 * c + 0.04289951) * c + -4.515679e-05) * c + -0.01312838)
    return inverse * (1 - h * r + inverse * (r + p + inverse * rest))

@triton.jit
def digamma(x):
    q = x * (x + 3)
    inverse = 1 / (x + 4)
    square = inverse * inverse
    series = 0.5 + inverse * ((0.003968253968253968 * square + -0.008333333333333333) * square + 0.08333333333333333)
    return tl.log(x + 4) - inverse * series - (2 * x + 3) * (2 * q + 2) / (q * (q + 2))

@triton.jit
def gamma_slope_by_quadrature(shape, gamma):
    gamma = at_least(gamma, 1e-37)
    score = tl.log(gamma) - digamma(shape)
    inverse = 1 / at_least(gamma, 0.1)
    above = log1p((shape * log1p(18.0 * inverse) + 18.0) * inverse)
    window = tl.where(score > 0, above, -(gamma + 18.0) / shape)
    total = 0 * score
    s = 0.009219682876640378 * window
    total = total + 0.023587668193255706 * (s + score) * exp(shape * s - gamma * expm1(s))
    s = 0.0479413718147626 * window
    total = total + 0.05346966299765953 * (s + score) * exp(shape * s - gamma * expm1(s))
    s = 0.11504866290284765 * window
    total = total + 0.08003916427167321 * (s + score) * exp(shape * s - gamma * expm1(s))
    s = 0.20634102285669126 * window
    total = total + 0.10158371336153287 * (s + score) * exp(shape * s - gamma * expm1(s))
    s = 0.31608425050090994 * window
    total = total + 0.1167462682691773 * (s + score) * exp(shape * s - gamma * expm1(s))
    s = 0.43738329574426554 * window
    total = total + 0.12457352290670134 * (s + score) * exp(shape * s - gamma * expm1(s))
    s = 0.5626167042557344 * window
    total = total + 0.12457352290670134 * (s + score) * exp(shape * s - gamma * expm1(s))
    s = 0.6839157494990901 * window
    total = total + 0.1167462682691773 * (s + score) * exp(shape * s - gamma * expm1(s))
    s = 0.7936589771433087 * window
    total = total + 0.10158371336153287 * (s + score) * exp(shape * s - gamma * expm1(s))
    s = 0.8849513370971523 * window
    total = total + 0.08003916427167321 * (s + score) * exp(shape * s - gamma * expm1(s))
    s = 0.9520586281852375 * window
    total = total + 0.05346966299765953 * (s + score) * exp(shape * s - gamma * expm1(s))
    s = 0.9907803171233596 * window
    total = total + 0.023587668193255706 * (s + score) * exp(shape * s - gamma * expm1(s))
    return window * total

@triton.jit
def power_statistic(minus, plus):
    return tl.where(plus <= 0, -float("inf"), -log1p(minus / tl.where(plus <= 0, 1.0, plus)))

@triton.jit
def sinh_rapidity(kappa):
    return 0.5 * kappa * ((kappa + 2) / (kappa + 1))

@triton.jit
def cauchy_distance(minus, kappa):
    return 1 / (1 + kappa) + minus * sinh_rapidity(kappa)

@triton.jit
def cauchy_log_density(minus, kappa, degrees):
    shrink = 1 / (1 + kappa)
    sinh = 0.5 * kappa * ((kappa + 2) * shrink)
    distance = shrink + minus * sinh
    error = minus * sinh - kappa * shrink - (distance - 1)
    return -degrees * (tl.log(distance) + tl.where(kappa < 1, error / distance, 0.0))

@triton.jit
def cauchy_slopes(minus, kappa, degrees):
    shrink = 1 / (1 + kappa)
    sinh = 0.5 * kappa * ((kappa + 2) * shrink)
    distance = shrink + minus * sinh
    in_kappa = shrink * ((shrink * (1 - minus) - minus * sinh) / distance)
    return (degrees * (sinh / distance), degrees * in_kappa)
