/* Written by tools/translate.py from the package's formulas: change those instead.
 *
 * The includer defines REAL (a type of numbers), VECTOR (of such numbers), PAIR (of vectors) and NAME, which marks the
 * functions of the type. The operations on vectors have the same names for all types. */

/* 1-t and 1+t of Power Spherical draws for d = 3, given S = ``squared_length`` of the tangent vector.
 * 
 * u = e^{-S/2} is uniform. From u = P(T ≤ t) = ((1+t)/2)^{κ+1} follows log((1+t)/2) = -S/(2(κ+1)). */
INLINE PAIR NAME(power_spherical_ends_3)(VECTOR squared_length, VECTOR kappa) {
    VECTOR log_half = squared_length / ((REAL)-2.0 * (kappa + (REAL)1.0));
    return (PAIR){(REAL)-2.0 * expm1_of(log_half), (REAL)2.0 * exp_of(log_half)};
}

/* 1-t and 1+t of von Mises–Fisher draws for d = 3, given S = ``squared_length`` of the tangent vector.
 * 
 * u = e^{-S/2} is uniform. From u = P(T ≤ t) = (e^{κ(1+t)} - 1)/(e^{2κ} - 1) follow κ(1+t) = log(1 + u(e^{2κ}-1)) and
 * κ(1-t) = -log q with q = u + (1-u)e^{-2κ} = 1 - (1-u)(1-e^{-2κ}). We use the second form of q if it is above ½. */
INLINE PAIR NAME(von_mises_fisher_ends_3)(VECTOR squared_length, VECTOR kappa) {
    kappa = at_least_of(kappa, (REAL)1e-20);
    VECTOR u = exp_of((REAL)-0.5 * squared_length);
    VECTOR rest = -expm1_of((REAL)-0.5 * squared_length);
    VECTOR complement = -expm1_of((REAL)-2.0 * kappa) * rest;
    VECTOR far = log_of(u + rest * exp_of((REAL)-2.0 * kappa));
    VECTOR minus = where_of(complement < (REAL)0.5, log1p_of(-at_most_of(complement, (REAL)0.5)), far) / -kappa;
    VECTOR small = at_most_of(kappa, (REAL)10.0);
    VECTOR close = log1p_of(u * expm1_of((REAL)2.0 * small)) / small;
    return (PAIR){minus, where_of(kappa < (REAL)10.0, close, (REAL)2.0 - minus)};
}

/* 1-t and 1+t after multiplying (1+t)/(1-t) by growth² ≥ 1. The inputs may have a common factor. */
INLINE PAIR NAME(boosted)(VECTOR minus, VECTOR plus, VECTOR growth) {
    VECTOR shrunk = minus / growth / growth;
    VECTOR scale = (REAL)2.0 / (shrunk + plus);
    return (PAIR){shrunk * scale, plus * scale};
}

/* κ = minimum + s/(1 + s·rate) and dκ/dr for the output r = ``raw`` of a head, with s = log(1 + e^r).
 * 
 * ``rate`` is 1/(maximum - minimum). */
INLINE PAIR NAME(concentration)(VECTOR raw, REAL minimum, REAL maximum, REAL rate) {
    VECTOR r = at_most_of(raw, (REAL)1e+38);
    VECTOR decay = exp_of(-abs_of(r));
    VECTOR softplus = at_least_of(r, (REAL)0.0) + log1p_of(decay);
    VECTOR shrink = (REAL)1.0 / ((REAL)1.0 + softplus * rate);
    VECTOR kappa = at_most_of(minimum + softplus * shrink, maximum);
    VECTOR slope = where_of(r > (REAL)0.0, (REAL)1.0 - (VECTOR){0}, decay) / ((REAL)1.0 + decay) * shrink * shrink;
    return (PAIR){where_of(raw == raw, kappa, raw), where_of(raw == raw, slope, raw)};
}

/* w = -log((1+t)/2)/((1-t)(1+κ)) of Power Spherical draws for d = 3, at a fixed probability. */
INLINE VECTOR NAME(power_spherical_slope_3)(VECTOR minus, VECTOR plus, VECTOR kappa) {
    minus = at_least_of(minus, (REAL)1e-30);
    return log1p_of(minus / at_least_of(plus, (REAL)1e-37)) / minus / ((REAL)1.0 + kappa);
}

/* w of von Mises–Fisher draws for d = 3, at a fixed probability.
 * 
 * With E(z) = 1 - e^{-z}, a = κ(1+t) and b = κ(1-t), w = [E(a)/a - e^{-a} E(b)/b]/E(2κ). For small κ,
 * w = κ/sinh κ · Σ κ^{2k-2} p_k c_k, where p_k = 1 + t² + … + t^{2k-2} and c_k = 1/(2k)! - κt/(2k+1)!. Two nested
 * Horner schemes compute the sum h_1: s_k = c_k + κ² s_{k+1} and h_k = s_k + κ²t² h_{k+1}. */
INLINE VECTOR NAME(von_mises_fisher_slope_3)(VECTOR minus, VECTOR plus, VECTOR kappa) {
    VECTOR large = at_least_of(kappa, (REAL)0.5);
    VECTOR a = large * at_least_of(plus, (REAL)1e-30);
    VECTOR b = large * at_least_of(minus, (REAL)1e-30);
    VECTOR far = (expm1_of(-a) / a - exp_of(-a) * (expm1_of(-b) / b)) / expm1_of((REAL)-2.0 * large);
    VECTOR small = at_most_of(kappa, (REAL)0.5);
    VECTOR square = small * small;
    VECTOR tilt = (REAL)0.5 * small * (plus - minus);
    VECTOR tilt_square = tilt * tilt;
    VECTOR partial = (REAL)0.0 * square;
    VECTOR total = partial;
    VECTOR sinhc = partial;
    partial = (REAL)1.1470745597729725e-11 - (REAL)7.647163731819816e-13 * tilt + square * partial;
    total = partial + tilt_square * total;
    sinhc = (sinhc + (REAL)7.647163731819816e-13) * square;
    partial = (REAL)2.08767569878681e-09 - (REAL)1.6059043836821613e-10 * tilt + square * partial;
    total = partial + tilt_square * total;
    sinhc = (sinhc + (REAL)1.6059043836821613e-10) * square;
    partial = (REAL)2.755731922398589e-07 - (REAL)2.505210838544172e-08 * tilt + square * partial;
    total = partial + tilt_square * total;
    sinhc = (sinhc + (REAL)2.505210838544172e-08) * square;
    partial = (REAL)2.48015873015873e-05 - (REAL)2.7557319223985893e-06 * tilt + square * partial;
    total = partial + tilt_square * total;
    sinhc = (sinhc + (REAL)2.7557319223985893e-06) * square;
    partial = (REAL)0.001388888888888889 - (REAL)0.0001984126984126984 * tilt + square * partial;
    total = partial + tilt_square * total;
    sinhc = (sinhc + (REAL)0.0001984126984126984) * square;
    partial = (REAL)0.041666666666666664 - (REAL)0.008333333333333333 * tilt + square * partial;
    total = partial + tilt_square * total;
    sinhc = (sinhc + (REAL)0.008333333333333333) * square;
    partial = (REAL)0.5 - (REAL)0.16666666666666666 * tilt + square * partial;
    total = partial + tilt_square * total;
    sinhc = (sinhc + (REAL)0.16666666666666666) * square;
    return where_of(kappa < (REAL)0.5, total / (sinhc + (REAL)1.0), far);
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
INLINE VECTOR NAME(von_mises_fisher_slope)(VECTOR plus, VECTOR kappa, REAL degrees) {
    VECTOR twice = (REAL)2.0 * at_most_of(kappa, (REAL)1e+37);
    VECTOR radius = hypot_of(twice, (REAL)0.0 * twice + degrees);
    VECTOR denominator = degrees + degrees * (degrees / (radius + twice)) + twice * plus;
    VECTOR e = (REAL)1.0 / radius;
    VECTOR u = (REAL)2.0 * radius / denominator;
    VECTOR g = degrees * e;
    VECTOR v = u - (REAL)1.0;
    VECTOR y = g * v;
    VECTOR ev = e * v;
    VECTOR one = (REAL)1.0 + g;
    VECTOR second = (REAL)0.75 * one * y * y + (REAL)0.5 * one * ((REAL)7.0 * g - (REAL)5.0) * y;
    second = ev * (second + (REAL)0.5 * ((((REAL)12.0 * g + (REAL)-5.0) * g + (REAL)-10.0) * g + (REAL)4.0)) + (REAL)0.5 * e * (g - (REAL)1.0) * (((REAL)9.0 * g + (REAL)-1.0) * g + (REAL)-4.0);
    VECTOR third = one * one * y * y * ((REAL)1.875 * y + (REAL)1.25 * ((REAL)11.0 * g - (REAL)7.0));
    third = third + (REAL)0.5 * one * ((((REAL)85.0 * g + (REAL)-23.0) * g + (REAL)-70.0) * g + (REAL)26.0) * y;
    third = ev * ev * (third + (REAL)0.75 * one * (((((REAL)95.0 * g + (REAL)-86.0) * g + (REAL)-53.0) * g + (REAL)56.0) * g + (REAL)-8.0));
    third = third + (REAL)0.125 * e * ev * ((((((REAL)545.0 * g + (REAL)-296.0) * g + (REAL)-749.0) * g + (REAL)376.0) * g + (REAL)224.0) * g + (REAL)-96.0);
    third = third + (REAL)0.5 * e * e * (g - (REAL)1.0) * (((((REAL)70.0 * g + (REAL)-13.0) * g + (REAL)-69.0) * g + (REAL)8.0) * g + (REAL)12.0);
    return e * u * ((REAL)1.0 + e * u * one * ((REAL)1.0 - g - (REAL)0.5 * y + second - third));
}

/* dlog G/dα at a fixed probability, for α ≥ 4. With h = G/α - 1, r = (h - log(1+h))/h² and p = (r - ½)/h,
 * 
 *     α dlog G/dα = 1 - hr + (r + p)/α + R/α².
 * 
 * R tends to 1/60 as h → 0 and α → ∞. In its place stands a polynomial in c = hp and 1/α, fitted to exact values for α
 * from 4 to 160 (``tests/reference/fit_gamma_draw.py``). The relative error is 1.1e-4 at α = 4, 1.3e-5 at 8 and 1.5e-6
 * at 16. */
INLINE VECTOR NAME(gamma_slope_by_expansion)(VECTOR shape, VECTOR gamma) {
    VECTOR inverse = (REAL)1.0 / shape;
    VECTOR h = (gamma - shape) * inverse;
    VECTOR series = (((((REAL)0.125 * h + (REAL)-0.14285714285714285) * h + (REAL)0.16666666666666666) * h + (REAL)-0.2) * h + (REAL)0.25) * h + (REAL)-0.3333333333333333;
    VECTOR over = (REAL)1.0 / where_of(h == (REAL)0.0, (REAL)1.0 - (VECTOR){0}, h);
    VECTOR direct = ((h - log1p_of(at_least_of(h, (REAL)-0.9999999))) * over * over - (REAL)0.5) * over;
    VECTOR p = where_of(abs_of(h) < (REAL)0.1, series, direct);
    VECTOR c = h * p;
    VECTOR r = (REAL)0.5 + c;
    VECTOR rest = (((REAL)0.01380286 * c + (REAL)-0.03988036) * c + (REAL)0.0002601254) * c + (REAL)0.01665816;
    rest = rest + inverse * ((((REAL)-0.02721489 * c + (REAL)0.04289951) * c + (REAL)-4.515679e-05) * c + (REAL)-0.01312838);
    return inverse * ((REAL)1.0 - h * r + inverse * (r + p + inverse * rest));
}

/* ψ(x) for x ≥ ½: Stirling's series at x+4, minus 1/x + … + 1/(x+3) = (2x+3)(2q+2)/(q(q+2)) with q = x(x+3). */
INLINE VECTOR NAME(digamma)(VECTOR x) {
    VECTOR q = x * (x + (REAL)3.0);
    VECTOR inverse = (REAL)1.0 / (x + (REAL)4.0);
    VECTOR square = inverse * inverse;
    VECTOR series = (REAL)0.5 + inverse * (((REAL)0.003968253968253968 * square + (REAL)-0.008333333333333333) * square + (REAL)0.08333333333333333);
    return log_of(x + (REAL)4.0) - inverse * series - ((REAL)2.0 * x + (REAL)3.0) * ((REAL)2.0 * q + (REAL)2.0) / (q * (q + (REAL)2.0));
}

/* dlog G/dα at a fixed probability, for ½ ≤ α ≤ 4, by a quadrature over one tail. With c = log G - ψ(α),
 * 
 *     dlog G/dα = ∫₀^∞ (s + c) exp(αs - G expm1(s)) ds = -∫_{-∞}^0 (s + c) exp(αs - G expm1(s)) ds.
 * 
 * We use the first integral if c > 0 and otherwise the second, so that the integrand does not change its sign. The
 * upper window follows from one step of the fixed-point iteration s ← log1p((αs + FALL)/G), the lower one from
 * expm1(s) ≥ -1. The relative error is 1e-6, and 1e-5 near c = 0. */
INLINE VECTOR NAME(gamma_slope_by_quadrature)(VECTOR shape, VECTOR gamma) {
    gamma = at_least_of(gamma, (REAL)1e-37);
    VECTOR score = log_of(gamma) - NAME(digamma)(shape);
    VECTOR inverse = (REAL)1.0 / at_least_of(gamma, (REAL)0.1);
    VECTOR above = log1p_of((shape * log1p_of((REAL)18.0 * inverse) + (REAL)18.0) * inverse);
    VECTOR window = where_of(score > (REAL)0.0, above, -(gamma + (REAL)18.0) / shape);
    VECTOR total = (REAL)0.0 * score;
    VECTOR s = (REAL)0.009219682876640378 * window;
    total = total + (REAL)0.023587668193255706 * (s + score) * exp_of(shape * s - gamma * expm1_of(s));
    s = (REAL)0.0479413718147626 * window;
    total = total + (REAL)0.05346966299765953 * (s + score) * exp_of(shape * s - gamma * expm1_of(s));
    s = (REAL)0.11504866290284765 * window;
    total = total + (REAL)0.08003916427167321 * (s + score) * exp_of(shape * s - gamma * expm1_of(s));
    s = (REAL)0.20634102285669126 * window;
    total = total + (REAL)0.10158371336153287 * (s + score) * exp_of(shape * s - gamma * expm1_of(s));
    s = (REAL)0.31608425050090994 * window;
    total = total + (REAL)0.1167462682691773 * (s + score) * exp_of(shape * s - gamma * expm1_of(s));
    s = (REAL)0.43738329574426554 * window;
    total = total + (REAL)0.12457352290670134 * (s + score) * exp_of(shape * s - gamma * expm1_of(s));
    s = (REAL)0.5626167042557344 * window;
    total = total + (REAL)0.12457352290670134 * (s + score) * exp_of(shape * s - gamma * expm1_of(s));
    s = (REAL)0.6839157494990901 * window;
    total = total + (REAL)0.1167462682691773 * (s + score) * exp_of(shape * s - gamma * expm1_of(s));
    s = (REAL)0.7936589771433087 * window;
    total = total + (REAL)0.10158371336153287 * (s + score) * exp_of(shape * s - gamma * expm1_of(s));
    s = (REAL)0.8849513370971523 * window;
    total = total + (REAL)0.08003916427167321 * (s + score) * exp_of(shape * s - gamma * expm1_of(s));
    s = (REAL)0.9520586281852375 * window;
    total = total + (REAL)0.05346966299765953 * (s + score) * exp_of(shape * s - gamma * expm1_of(s));
    s = (REAL)0.9907803171233596 * window;
    total = total + (REAL)0.023587668193255706 * (s + score) * exp_of(shape * s - gamma * expm1_of(s));
    return window * total;
}

/* T = log((1+t)/2) of the Power Spherical family; -inf at the antipode. */
INLINE VECTOR NAME(power_statistic)(VECTOR minus, VECTOR plus) {
    return where_of(plus <= (REAL)0.0, -INFINITY, -log1p_of(minus / at_least_of(plus, (REAL)1.1754943508222875e-38)));
}

/* cosh τ - t sinh τ with e^τ = 1+κ, as a sum of two terms ≥ 0. */
INLINE VECTOR NAME(cauchy_distance)(VECTOR minus, VECTOR kappa) {
    return (REAL)1.0 / ((REAL)1.0 + kappa) + minus * ((REAL)0.5 * kappa * ((kappa + (REAL)2.0) / (kappa + (REAL)1.0)));
}

/* log p = -(d-1) log(cosh τ - t sinh τ) of the spherical Cauchy family, with ``degrees`` = d-1. */
INLINE VECTOR NAME(cauchy_log_density)(VECTOR minus, VECTOR kappa, REAL degrees) {
    VECTOR shrink = (REAL)1.0 / ((REAL)1.0 + kappa);
    VECTOR sinh = (REAL)0.5 * kappa * ((kappa + (REAL)2.0) * shrink);
    VECTOR distance = shrink + minus * sinh;
    VECTOR error = minus * sinh - kappa * shrink - (distance - (REAL)1.0);
    return -degrees * (log_of(distance) + where_of(kappa < (REAL)1.0, error / distance, (REAL)0.0 - (VECTOR){0}));
}

/* The derivatives of the log-density of the spherical Cauchy family in t and κ, with ``degrees`` = d-1. */
INLINE PAIR NAME(cauchy_slopes)(VECTOR minus, VECTOR kappa, REAL degrees) {
    VECTOR shrink = (REAL)1.0 / ((REAL)1.0 + kappa);
    VECTOR sinh = (REAL)0.5 * kappa * ((kappa + (REAL)2.0) * shrink);
    VECTOR distance = shrink + minus * sinh;
    VECTOR in_kappa = shrink * ((shrink * ((REAL)1.0 - minus) - minus * sinh) / distance);
    return (PAIR){degrees * (sinh / distance), degrees * in_kappa};
}
