/* Written by tools/translate.py from the package's formulas: change those instead. */

/* 1-t and 1+t of Power Spherical draws for d = 3, given S = ``squared_length`` of the tangent vector.
 * 
 * u = e^{-S/2} is uniform. From u = P(T ≤ t) = ((1+t)/2)^{κ+1} follows log((1+t)/2) = -S/(2(κ+1)). */
INLINE pair power_spherical_ends_3(reals squared_length, reals kappa) {
    reals log_half = squared_length / ((real)-2.0 * (kappa + (real)1.0));
    return (pair){(real)-2.0 * expm1_of(log_half), (real)2.0 * exp_of(log_half)};
}

/* 1-t and 1+t of von Mises–Fisher draws for d = 3, given S = ``squared_length`` of the tangent vector.
 * 
 * u = e^{-S/2} is uniform. From u = P(T ≤ t) = (e^{κ(1+t)} - 1)/(e^{2κ} - 1) follow κ(1+t) = log(1 + u(e^{2κ}-1)) and
 * κ(1-t) = -log q with q = u + (1-u)e^{-2κ} = 1 - (1-u)(1-e^{-2κ}). We use the second form of q if it is above ½. */
INLINE pair von_mises_fisher_ends_3(reals squared_length, reals kappa) {
    kappa = at_least_of(kappa, (real)1e-20);
    reals u = exp_of((real)-0.5 * squared_length);
    reals rest = -expm1_of((real)-0.5 * squared_length);
    reals complement = -expm1_of((real)-2.0 * kappa) * rest;
    reals far = log_of(u + rest * exp_of((real)-2.0 * kappa));
    reals minus = where_of(complement < (real)0.5, log1p_of(-at_most_of(complement, (real)0.5)), far) / -kappa;
    reals small = at_most_of(kappa, (real)10.0);
    reals close = log1p_of(u * expm1_of((real)2.0 * small)) / small;
    return (pair){minus, where_of(kappa < (real)10.0, close, (real)2.0 - minus)};
}

/* 1-t and 1+t after multiplying (1+t)/(1-t) by growth² ≥ 1. The inputs may have a common factor. */
INLINE pair boosted(reals minus, reals plus, reals growth) {
    reals shrunk = minus / growth / growth;
    reals scale = (real)2.0 / (shrunk + plus);
    return (pair){shrunk * scale, plus * scale};
}

/* log(1 + e^r). NaN takes the second branch, because the C library's exponentials turn it into a number. */
INLINE reals softplus(reals r) {
    return where_of(r < (real)40.0, log1p_of(exp_of(at_most_of(r, (real)40.0))), r);
}

/* κ = minimum + s/(1 + s·rate) for the output r = ``raw`` of a head, with s = log(1 + e^r).
 * 
 * ``rate`` is 1/(maximum - minimum). */
INLINE reals concentration(reals raw, real minimum, real maximum, real rate) {
    reals excess = softplus(at_most_of(raw, (real)1e+38));
    return at_most_of(minimum + excess / ((real)1.0 + excess * rate), maximum);
}

/* The derivative dκ/dr of ``concentration``. */
INLINE reals concentration_slope(reals raw, real rate) {
    reals growth = exp_of(at_most_of(raw, (real)40.0));
    reals shrink = (real)1.0 / ((real)1.0 + softplus(at_most_of(raw, (real)1e+38)) * rate);
    return where_of(raw < (real)40.0, growth / ((real)1.0 + growth), (real)1.0) * shrink * shrink;
}

#define SERIES_DIM (real)32

#define SERIES_KAPPA (real)40.0

#define LARGE_SHAPE (real)4.0

/* w = -log((1+t)/2)/((1-t)(1+κ)) of Power Spherical draws for d = 3, at a fixed probability. */
INLINE reals power_spherical_slope_3(reals minus, reals plus, reals kappa) {
    minus = at_least_of(minus, (real)1e-30);
    return log1p_of(minus / at_least_of(plus, (real)1e-37)) / minus / ((real)1.0 + kappa);
}

/* w of von Mises–Fisher draws for d = 3, at a fixed probability.
 * 
 * With E(z) = 1 - e^{-z}, a = κ(1+t) and b = κ(1-t), w = [E(a)/a - e^{-a} E(b)/b]/E(2κ). For small κ,
 * w = κ/sinh κ · Σ κ^{2k-2} p_k c_k, where p_k = 1 + t² + … + t^{2k-2} and c_k = 1/(2k)! - κt/(2k+1)!. Two nested
 * Horner schemes compute the sum h_1: s_k = c_k + κ² s_{k+1} and h_k = s_k + κ²t² h_{k+1}. */
INLINE reals von_mises_fisher_slope_3(reals minus, reals plus, reals kappa) {
    reals large = at_least_of(kappa, (real)0.5);
    reals a = large * at_least_of(plus, (real)1e-30);
    reals b = large * at_least_of(minus, (real)1e-30);
    reals far = (expm1_of(-a) / a - exp_of(-a) * (expm1_of(-b) / b)) / expm1_of((real)-2.0 * large);
    reals small = at_most_of(kappa, (real)0.5);
    reals square = small * small;
    reals tilt = (real)0.5 * small * (plus - minus);
    reals tilt_square = tilt * tilt;
    reals partial = (real)0.0 * square;
    reals total = partial;
    reals sinhc = partial;
    partial = (real)1.1470745597729725e-11 - (real)7.647163731819816e-13 * tilt + square * partial;
    total = partial + tilt_square * total;
    sinhc = (sinhc + (real)7.647163731819816e-13) * square;
    partial = (real)2.08767569878681e-09 - (real)1.6059043836821613e-10 * tilt + square * partial;
    total = partial + tilt_square * total;
    sinhc = (sinhc + (real)1.6059043836821613e-10) * square;
    partial = (real)2.755731922398589e-07 - (real)2.505210838544172e-08 * tilt + square * partial;
    total = partial + tilt_square * total;
    sinhc = (sinhc + (real)2.505210838544172e-08) * square;
    partial = (real)2.48015873015873e-05 - (real)2.7557319223985893e-06 * tilt + square * partial;
    total = partial + tilt_square * total;
    sinhc = (sinhc + (real)2.7557319223985893e-06) * square;
    partial = (real)0.001388888888888889 - (real)0.0001984126984126984 * tilt + square * partial;
    total = partial + tilt_square * total;
    sinhc = (sinhc + (real)0.0001984126984126984) * square;
    partial = (real)0.041666666666666664 - (real)0.008333333333333333 * tilt + square * partial;
    total = partial + tilt_square * total;
    sinhc = (sinhc + (real)0.008333333333333333) * square;
    partial = (real)0.5 - (real)0.16666666666666666 * tilt + square * partial;
    total = partial + tilt_square * total;
    sinhc = (sinhc + (real)0.16666666666666666) * square;
    return where_of(kappa < (real)0.5, total / (sinhc + (real)1.0), far);
}

/* w of von Mises–Fisher draws for d ≥ 32 or κ ≥ 40, at a fixed probability; ``degrees`` is δ = d-1.
 * 
 * Three terms of a series in e = 1/R, R² = δ² + 4κ². Differentiating the cdf gives
 * (1-t²) w' + (κ(1-t²) - δt) w = E t - t. With g = δe, u = 1+v = 2R/(R + δ + 2κt) and y = gv, the solution that is
 * regular where the bracket vanishes is
 * 
 *     w = e u [1 + e u (1+g)(p₁ + e p₂ - e² p₃)],      p₁ = 1 - g - y/2,
 * 
 * and e p₂ and e² p₃ are polynomials in y, g and ev. Relative error 2e-6. */
INLINE reals von_mises_fisher_slope(reals plus, reals kappa, real degrees) {
    reals twice = (real)2.0 * at_most_of(kappa, (real)1e+37);
    reals radius = hypot_of(twice, (real)0.0 * twice + degrees);
    reals denominator = degrees + degrees * (degrees / (radius + twice)) + twice * plus;
    reals e = (real)1.0 / radius;
    reals u = (real)2.0 * radius / denominator;
    reals g = degrees * e;
    reals v = u - (real)1.0;
    reals y = g * v;
    reals ev = e * v;
    reals one = (real)1.0 + g;
    reals second = (real)0.75 * one * y * y + (real)0.5 * one * ((real)7.0 * g - (real)5.0) * y;
    second = ev * (second + (real)0.5 * ((((real)12.0 * g + (real)-5.0) * g + (real)-10.0) * g + (real)4.0)) + (real)0.5 * e * (g - (real)1.0) * (((real)9.0 * g + (real)-1.0) * g + (real)-4.0);
    reals third = one * one * y * y * ((real)1.875 * y + (real)1.25 * ((real)11.0 * g - (real)7.0));
    third = third + (real)0.5 * one * ((((real)85.0 * g + (real)-23.0) * g + (real)-70.0) * g + (real)26.0) * y;
    third = ev * ev * (third + (real)0.75 * one * (((((real)95.0 * g + (real)-86.0) * g + (real)-53.0) * g + (real)56.0) * g + (real)-8.0));
    third = third + (real)0.125 * e * ev * ((((((real)545.0 * g + (real)-296.0) * g + (real)-749.0) * g + (real)376.0) * g + (real)224.0) * g + (real)-96.0);
    third = third + (real)0.5 * e * e * (g - (real)1.0) * (((((real)70.0 * g + (real)-13.0) * g + (real)-69.0) * g + (real)8.0) * g + (real)12.0);
    return e * u * ((real)1.0 + e * u * one * ((real)1.0 - g - (real)0.5 * y + second - third));
}

/* dlog G/dα at a fixed probability, for α ≥ 4. With h = G/α - 1, r = (h - log(1+h))/h² and p = (r - ½)/h,
 * 
 *     α dlog G/dα = 1 - hr + (r + p)/α + R/α².
 * 
 * R tends to 1/60 as h → 0 and α → ∞. In its place stands a polynomial in c = hp and 1/α, fitted to exact values for α
 * from 4 to 160 (``tests/reference/fit_gamma_draw.py``). The relative error is 1.1e-4 at α = 4, 1.3e-5 at 8 and 1.5e-6
 * at 16. */
INLINE reals gamma_slope_by_expansion(reals shape, reals gamma) {
    reals inverse = (real)1.0 / shape;
    reals h = (gamma - shape) * inverse;
    reals series = (((((real)0.125 * h + (real)-0.14285714285714285) * h + (real)0.16666666666666666) * h + (real)-0.2) * h + (real)0.25) * h + (real)-0.3333333333333333;
    reals over = (real)1.0 / where_of(h == (real)0.0, (real)1.0, h);
    reals direct = ((h - log1p_of(at_least_of(h, (real)-0.9999999))) * over * over - (real)0.5) * over;
    reals p = where_of(abs_of(h) < (real)0.1, series, direct);
    reals c = h * p;
    reals r = (real)0.5 + c;
    reals rest = (((real)0.01380286 * c + (real)-0.03988036) * c + (real)0.0002601254) * c + (real)0.01665816;
    rest = rest + inverse * ((((real)-0.02721489 * c + (real)0.04289951) * c + (real)-4.515679e-05) * c + (real)-0.01312838);
    return inverse * ((real)1.0 - h * r + inverse * (r + p + inverse * rest));
}

/* ψ(x) for x ≥ ½: Stirling's series at x+4, minus 1/x + … + 1/(x+3) = (2x+3)(2q+2)/(q(q+2)) with q = x(x+3). */
INLINE reals digamma(reals x) {
    reals q = x * (x + (real)3.0);
    reals inverse = (real)1.0 / (x + (real)4.0);
    reals square = inverse * inverse;
    reals series = (real)0.5 + inverse * (((real)0.003968253968253968 * square + (real)-0.008333333333333333) * square + (real)0.08333333333333333);
    return log_of(x + (real)4.0) - inverse * series - ((real)2.0 * x + (real)3.0) * ((real)2.0 * q + (real)2.0) / (q * (q + (real)2.0));
}

/* dlog G/dα at a fixed probability, for ½ ≤ α ≤ 4, by a quadrature over one tail. With c = log G - ψ(α),
 * 
 *     dlog G/dα = ∫₀^∞ (s + c) exp(αs - G expm1(s)) ds = -∫_{-∞}^0 (s + c) exp(αs - G expm1(s)) ds.
 * 
 * We use the first integral if c > 0 and otherwise the second, so that the integrand does not change its sign. The
 * upper window follows from one step of the fixed-point iteration s ← log1p((αs + FALL)/G), the lower one from
 * expm1(s) ≥ -1. The relative error is 1e-6, and 1e-5 near c = 0. */
INLINE reals gamma_slope_by_quadrature(reals shape, reals gamma) {
    gamma = at_least_of(gamma, (real)1e-37);
    reals score = log_of(gamma) - digamma(shape);
    reals inverse = (real)1.0 / at_least_of(gamma, (real)0.1);
    reals above = log1p_of((shape * log1p_of((real)18.0 * inverse) + (real)18.0) * inverse);
    reals window = where_of(score > (real)0.0, above, -(gamma + (real)18.0) / shape);
    reals total = (real)0.0 * score;
    reals s = (real)0.009219682876640378 * window;
    total = total + (real)0.023587668193255706 * (s + score) * exp_of(shape * s - gamma * expm1_of(s));
    s = (real)0.0479413718147626 * window;
    total = total + (real)0.05346966299765953 * (s + score) * exp_of(shape * s - gamma * expm1_of(s));
    s = (real)0.11504866290284765 * window;
    total = total + (real)0.08003916427167321 * (s + score) * exp_of(shape * s - gamma * expm1_of(s));
    s = (real)0.20634102285669126 * window;
    total = total + (real)0.10158371336153287 * (s + score) * exp_of(shape * s - gamma * expm1_of(s));
    s = (real)0.31608425050090994 * window;
    total = total + (real)0.1167462682691773 * (s + score) * exp_of(shape * s - gamma * expm1_of(s));
    s = (real)0.43738329574426554 * window;
    total = total + (real)0.12457352290670134 * (s + score) * exp_of(shape * s - gamma * expm1_of(s));
    s = (real)0.5626167042557344 * window;
    total = total + (real)0.12457352290670134 * (s + score) * exp_of(shape * s - gamma * expm1_of(s));
    s = (real)0.6839157494990901 * window;
    total = total + (real)0.1167462682691773 * (s + score) * exp_of(shape * s - gamma * expm1_of(s));
    s = (real)0.7936589771433087 * window;
    total = total + (real)0.10158371336153287 * (s + score) * exp_of(shape * s - gamma * expm1_of(s));
    s = (real)0.8849513370971523 * window;
    total = total + (real)0.08003916427167321 * (s + score) * exp_of(shape * s - gamma * expm1_of(s));
    s = (real)0.9520586281852375 * window;
    total = total + (real)0.05346966299765953 * (s + score) * exp_of(shape * s - gamma * expm1_of(s));
    s = (real)0.9907803171233596 * window;
    total = total + (real)0.023587668193255706 * (s + score) * exp_of(shape * s - gamma * expm1_of(s));
    return window * total;
}

/* T = log((1+t)/2) of the Power Spherical family; -inf at the antipode, and maybe where 1+t is subnormal. */
INLINE reals power_statistic(reals minus, reals plus) {
    return where_of(plus <= (real)0.0, -INFINITY, -log1p_of(minus / where_of(plus <= (real)0.0, (real)1.0, plus)));
}

/* sinh τ with e^τ = 1+κ, without cancellation. */
INLINE reals sinh_rapidity(reals kappa) {
    return (real)0.5 * kappa * ((kappa + (real)2.0) / (kappa + (real)1.0));
}

/* cosh τ - t sinh τ with e^τ = 1+κ, as a sum of two terms ≥ 0. */
INLINE reals cauchy_distance(reals minus, reals kappa) {
    return (real)1.0 / ((real)1.0 + kappa) + minus * sinh_rapidity(kappa);
}

/* log p = -(d-1) log(cosh τ - t sinh τ) of the spherical Cauchy family, with ``degrees`` = d-1. */
INLINE reals cauchy_log_density(reals minus, reals kappa, real degrees) {
    reals shrink = (real)1.0 / ((real)1.0 + kappa);
    reals sinh = (real)0.5 * kappa * ((kappa + (real)2.0) * shrink);
    reals distance = shrink + minus * sinh;
    reals error = minus * sinh - kappa * shrink - (distance - (real)1.0);
    return -degrees * (log_of(distance) + where_of(kappa < (real)1.0, error / distance, (real)0.0));
}

/* The derivatives of the log-density of the spherical Cauchy family in t and κ, with ``degrees`` = d-1. */
INLINE pair cauchy_slopes(reals minus, reals kappa, real degrees) {
    reals shrink = (real)1.0 / ((real)1.0 + kappa);
    reals sinh = (real)0.5 * kappa * ((kappa + (real)2.0) * shrink);
    reals distance = shrink + minus * sinh;
    reals in_kappa = shrink * ((shrink * ((real)1.0 - minus) - minus * sinh) / distance);
    return (pair){degrees * (sinh / distance), degrees * in_kappa};
}
