/* The formulas of the explorer, in float64. No dependency; runs in a browser and under node.

A law of the cosine t = μᵀx has, on the rapidity line r = artanh t, the weight

    exp(kernel(r)) (1-t²)^β,    β = (d-1)/2,

where exp(kernel) is the density on the sphere relative to the uniform distribution, up to a constant:

    Power Spherical      κ log((1+t)/2)
    von Mises–Fisher     κ(t-1)
    spherical Cauchy     (d-1) log(1/(G(1-t)/2 + (1+t)/(2G))),  G = 1+κ
    uniform              0

On that line every weight has one mode, is analytic in the strip |Im r| < π/2 and falls at least exponentially. So one
composite Gauss–Legendre rule around the mode serves all families, dimensions and concentrations, and no special
function is needed beyond the log-gamma function (for the area of the sphere).

Errors are below 1e-10 for d from 2 to 10⁴ and κ from 1e-3 to 1e6, relative to the value, or to 1 where the value is
smaller. The tests compare with mpmath, and with the package where there is no table. */
"use strict";

const Laws = (() => {
  const FALL = 80; // the weight is followed until it has fallen by e^-80
  const PANELS = 32; // on each side of the mode
  const POINTS = 16; // Gauss–Legendre nodes per panel
  const NEGLIGIBLE = 1e-20; // weights relative to the mode that do not matter to a mean
  const GRADES = 52; // halvings of the window towards a logarithmic singularity

  // Elementary functions of the rapidity

  /** log((1+t)/2) = -log(1 + e^{-2r}). */
  const logHalfPlus = (r) => (r < 0 ? 2 * r - Math.log1p(Math.exp(2 * r)) : -Math.log1p(Math.exp(-2 * r)));

  /** log(1-t²) = -2 log cosh r. */
  const logSine2 = (r) =>
    Math.abs(r) < 1 ? -Math.log1p(Math.sinh(r) ** 2) : Math.log(4) + logHalfPlus(r) + logHalfPlus(-r);

  /** 1-t, accurate also if t is nearly 1. */
  const oneMinus = (r) => 2 * Math.exp(logHalfPlus(-r));

  /** The rapidity of a cosine, from 1-t and 1+t. */
  const rapidity = (minus, plus) =>
    minus > 0.5 && plus > 0.5 ? Math.atanh((plus - minus) / 2) : (Math.log(plus) - Math.log(minus)) / 2;

  /** The log-gamma function for x > 0: Stirling's series (DLMF 5.11.1) after a shift to x ≥ 10 (DLMF 5.5.1). */
  function logGamma(x) {
    let shift = 1;
    for (; x < 10; x += 1) shift *= x;
    const y = 1 / (x * x);
    const series = 1 / 12 - y * (1 / 360 - y * (1 / 1260 - y * (1 / 1680 - y * (1 / 1188 - (y * 691) / 360360))));
    return (x - 0.5) * Math.log(x) - x + Math.log(2 * Math.PI) / 2 + series / x - Math.log(shift);
  }

  /** The log of the area of the unit sphere in d dimensions, 2π^{d/2}/Γ(d/2). */
  const logArea = (dim) => Math.log(2) + (dim / 2) * Math.log(Math.PI) - logGamma(dim / 2);

  /** x + expm1(-x) ≥ 0, without cancellation at small x. */
  function excess(x) {
    if (Math.abs(x) > 0.1) return x + Math.expm1(-x);
    let sum = 0;
    for (let k = 12; k >= 2; k -= 1) sum = (1 - x * sum) / (k + 1);
    return x * x * (1 - x * sum) / 2;
  }

  /** Nodes and weights of the Gauss–Legendre rule (DLMF 3.5.15) on [0, 1], by Newton's method. */
  function gaussLegendre(count) {
    const nodes = [];
    for (let i = 0; i < count; i += 1) {
      let x = Math.cos((Math.PI * (i + 0.75)) / (count + 0.5));
      let slope = 1;
      for (let round = 0; round < 8; round += 1) {
        let [before, value] = [1, x];
        for (let k = 2; k <= count; k += 1) [before, value] = [value, ((2 * k - 1) * x * value - (k - 1) * before) / k];
        slope = (count * (before - x * value)) / (1 - x * x);
        x -= value / slope;
      }
      nodes.push({ x: (1 - x) / 2, weight: 1 / ((1 - x * x) * slope * slope) });
    }
    return nodes;
  }

  const RULE = gaussLegendre(POINTS);

  /** ∫ f over [from, to] with one Gauss–Legendre panel. */
  function integral(f, from, to) {
    let sum = 0;
    for (const { x, weight } of RULE) sum += weight * f(from + (to - from) * x);
    return (to - from) * sum;
  }

  /** ∫ f with one panel between each two edges. */
  function integralOver(f, edges) {
    let sum = 0;
    for (let i = 0; i + 1 < edges.length; i += 1) sum += integral(f, edges[i], edges[i + 1]);
    return sum;
  }

  // The families: kernel, mode of the weight on the rapidity line, log of the package's kernel minus this one

  const FAMILIES = {
    power_spherical: {
      title: "Power Spherical",
      python: "PowerSpherical",
      kernel: (kappa) => (r) => kappa * logHalfPlus(r),
      mode: (kappa, beta) => Math.log1p(kappa / beta) / 2,
      offset: (kappa) => kappa * Math.LN2, // the package's kernel is (1+t)^κ
    },
    von_mises_fisher: {
      title: "von Mises–Fisher",
      python: "VonMisesFisher",
      kernel: (kappa) => (r) => -kappa * oneMinus(r),
      mode: (kappa, beta) => Math.asinh(kappa / beta) / 2,
      offset: (kappa) => kappa, // the package's kernel is e^{κt}
    },
    spherical_cauchy: {
      title: "spherical Cauchy",
      python: "SphericalCauchy",
      kernel: (kappa, beta) => (r) =>
        2 * beta * (Math.log1p(kappa) - Math.log1p((kappa * (kappa + 2) * oneMinus(r)) / 2)),
      mode: (kappa) => Math.log1p(kappa),
      offset: () => 0,
    },
    uniform: {
      title: "uniform",
      python: "HypersphericalUniform",
      kernel: () => () => 0,
      mode: () => 0,
      offset: () => 0,
    },
  };

  // Laws

  /** The distance from the mode at which a weight has fallen by FALL, on the side given by the sign. */
  function reach(logWeight, mode, sign) {
    const floor = logWeight(mode) - FALL;
    let [near, far] = [0, 1e-3];
    while (logWeight(mode + sign * far) > floor) [near, far] = [far, 2 * far];
    for (let i = 0; i < 30; i += 1) {
      const middle = (near + far) / 2;
      if (logWeight(mode + sign * middle) > floor) near = middle;
      else far = middle;
    }
    return far;
  }

  /** The law of t for a family (a key of FAMILIES), a concentration κ ≥ 0 and a dimension d ≥ 2. */
  function law(family, kappa, dim) {
    const beta = (dim - 1) / 2;
    const kernel = FAMILIES[family].kernel(kappa, beta);
    const mode = FAMILIES[family].mode(kappa, beta);
    const logWeight = (r) => kernel(r) + beta * logSine2(r);
    const top = logWeight(mode);
    const weight = (r) => Math.exp(logWeight(r) - top);
    const [left, right] = [reach(logWeight, mode, -1), reach(logWeight, mode, 1)];
    const edges = [];
    for (let i = -PANELS; i <= PANELS; i += 1) edges.push(mode + (i * (i < 0 ? left : right)) / PANELS);

    const count = 2 * PANELS;
    const masses = Array.from({ length: count }, (_, i) => integral(weight, edges[i], edges[i + 1]));
    const total = masses.reduce((sum, mass) => sum + mass, 0);
    const below = [0]; // probabilities of r < edges[i] and of r > edges[i]; sums from the small end keep tails exact
    const above = Array(count + 1).fill(0);
    for (let i = 0; i < count; i += 1) below.push(below[i] + masses[i] / total);
    for (let i = count - 1; i >= 0; i -= 1) above[i] = above[i + 1] + masses[i] / total;

    const logTotal = Math.log(total) + top;
    const result = { family, kappa, dim, kernel, logWeight, weight, edges, below, above, total, logTotal };
    const uniform = family === "uniform" ? result : law("uniform", 0, dim);
    result.logPartition = result.logTotal - uniform.logTotal; // log E_U exp(kernel)
    return result;
  }

  /** E f(r) under a law. */
  const mean = (p, f) => integralOver((r) => p.weight(r) * f(r), p.edges) / p.total;

  /** The log of the density of x relative to the uniform distribution. */
  const logRatio = (p, r) => p.kernel(r) - p.logPartition;

  /** `log_normalizer` of the package: the log of the integral of (1+t)^κ or e^{κt}, or of its area, over the sphere. */
  const logNormalizer = (p) => p.logPartition + FAMILIES[p.family].offset(p.kappa) + logArea(p.dim);

  /** The log-density of t. */
  const logDensity = (p, r) => p.logWeight(r) - p.logTotal - logSine2(r);

  const meanLength = (p) => (p.family === "uniform" ? 0 : mean(p, Math.tanh));
  const meanComplement = (p) => mean(p, oneMinus);

  /** The variance of t. */
  function variance(p) {
    const complement = meanComplement(p);
    return mean(p, (r) => (complement - oneMinus(r)) ** 2);
  }

  /** The probabilities of cosines below and above the one with rapidity r. */
  function tails(p, r) {
    const { edges, below, above, weight, total } = p;
    const last = edges.length - 1;
    if (r <= edges[0]) return { below: 0, above: 1 };
    if (r >= edges[last]) return { below: 1, above: 0 };
    const i = panel(edges, (edge) => edge <= r);
    return {
      below: below[i] + integral(weight, edges[i], r) / total,
      above: above[i + 1] + integral(weight, r, edges[i + 1]) / total,
    };
  }

  /** The last index but the final one at which the condition holds, if it holds up to some index. */
  function panel(values, condition) {
    let [low, high] = [0, values.length - 1];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (condition(values[middle])) low = middle;
      else high = middle;
    }
    return low;
  }

  /** The rapidity of the quantile of t: the probability of cosines below it is u, above it `complement`. */
  function quantile(p, u, complement = 1 - u) {
    const { edges, below, above, weight, total } = p;
    const lower = u <= complement;
    const i = lower ? panel(below, (value) => value <= u) : panel(above, (value) => value >= complement);
    let [low, high] = [edges[i], edges[i + 1]];
    const wanted = lower ? u - below[i] : complement - above[i + 1];
    let r = (low + high) / 2;
    for (let round = 0; round < 60; round += 1) {
      const found = lower ? integral(weight, edges[i], r) : integral(weight, r, edges[i + 1]);
      const surplus = (lower ? 1 : -1) * (found / total - wanted);
      if (surplus > 0) high = r;
      else low = r;
      const newton = r - (surplus * total) / weight(r);
      const isInside = newton >= low && newton <= high;
      const isLast = isInside && Math.abs(newton - r) <= 1e-9 * (edges[i + 1] - edges[i]); // the next is below rounding
      r = isInside ? newton : (low + high) / 2;
      if (isLast) break;
    }
    return r;
  }

  /** The angle in radians around μ that contains a probability. */
  const capAngle = (p, probability) => 2 * Math.atan(Math.exp(-quantile(p, 1 - probability, probability)));

  // Entropy and divergences, in nats

  /** KL(p‖q) of two laws with the same direction. The terms are ≥ 0 where the divergence is small. */
  function klAligned(p, q) {
    const difference = (r) => logRatio(p, r) - logRatio(q, r);
    const direct = mean(p, difference);
    return direct > 0.01 ? direct : mean(p, (r) => excess(difference(r)));
  }

  const klUniform = (p) => klAligned(p, law("uniform", 0, p.dim));

  /** The differential entropy on the sphere. */
  const entropy = (p) => logArea(p.dim) - klUniform(p);

  /** E log((1-s)/2 + e(1+s)/2) for a coordinate s of a uniform point on S^{d-2}, as a function of e and 1-e. */
  function azimuthMean(dim) {
    if (dim === 2) return (e) => Math.log(e) / 2; // s = ±1
    if (dim === 3) return (e) => 2 * Math.log((1 + Math.sqrt(e)) / 2);
    const power = dim - 2; // the trapezoidal rule with the weight (1-s²)^{(d-2)/2} in the rapidity of s
    const step = Math.min(0.2, 0.5 / Math.sqrt(power));
    const count = Math.ceil(Math.acosh(Math.exp(40 / power)) / step);
    const nodes = [];
    for (let i = -count; i <= count; i += 1) nodes.push([Math.exp((power / 2) * logSine2(i * step)), i * step]);
    const total = nodes.reduce((sum, [weight]) => sum + weight, 0);
    const weights = nodes.map(([weight]) => weight / total);
    const plus = nodes.map(([, r]) => Math.exp(logHalfPlus(r)));
    return (e, rest) => {
      let sum = 0;
      for (let i = 0; i < plus.length; i += 1) {
        const log = rest < 0.5 ? Math.log1p(-rest * plus[i]) : Math.log(plus[plus.length - 1 - i] + e * plus[i]);
        sum += weights[i] * log;
      }
      return sum;
    };
  }

  /** E [kernel_q(μᵀX) - kernel_q(νᵀX)] under p, for an angle between μ and ν: what KL(p‖q) gains by the angle.

  Let t = cos φ, and s the cosine of the azimuth of X around μ. Then 1 ± νᵀX is linear in s. The mean of its log over s
  is the log of the larger end plus azimuthMean, and e is the ratio of the two ends. At e = 0 the mean has a
  logarithmic singularity or a kink: panels are halved towards that point. */
  function misalignment(p, q, angle) {
    if (angle === 0 || q.family === "uniform") return 0;
    const [sine, cosine] = [Math.sin(angle / 2), Math.cos(angle / 2)];
    if (q.family === "von_mises_fisher") return 2 * sine * sine * q.kappa * meanLength(p);
    const average = azimuthMean(p.dim);
    const isPower = q.family === "power_spherical";
    const split = (isPower ? 1 : -1) * Math.log(sine / cosine);
    const growth = 1 + q.kappa;

    const powerLoss = (offset) => {
      // 1 + cos(φ ∓ θ) = 2 cos²(φ/2) cos²(θ/2) (1 ± e^{-offset})²
      const rest = 1 / Math.cosh(offset / 2) ** 2;
      return -2 * (Math.log(cosine) - logHalfPlus(offset / 2)) - average(Math.tanh(offset / 2) ** 2, rest);
    };
    const cauchyLoss = (offset) => {
      const r = split + offset;
      const [c, s] = [Math.exp(logHalfPlus(r) / 2), Math.exp(logHalfPlus(-r) / 2)]; // of φ/2
      const spread = (sin, cos) => growth * sin * sin + (cos * cos) / growth;
      const far = spread(s * cosine + c * sine, c * cosine - s * sine);
      const near = spread(c * sine * Math.expm1(-offset), c * cosine + s * sine);
      const rest = (4 * s * c * sine * cosine * (growth - 1 / growth)) / far;
      return Math.log(far / spread(s, c)) + average(near / far, rest);
    };
    const loss = isPower ? powerLoss : cauchyLoss;
    const integrand = (offset) => {
      const weight = p.weight(split + offset);
      return weight < NEGLIGIBLE ? 0 : weight * loss(offset);
    };
    const expected = integralOver(integrand, gradedEdges(p.edges, split)) / p.total;
    return (isPower ? q.kappa : p.dim - 1) * expected;
  }

  /** The edges of panels relative to a point, with panels halved towards it if it lies among them. */
  function gradedEdges(edges, point) {
    const offsets = edges.map((edge) => edge - point);
    const last = offsets.length - 1;
    if (offsets[0] >= 0 || offsets[last] <= 0) return offsets;
    const width = offsets[last] - offsets[0];
    const graded = [0];
    for (let k = 0; k < GRADES; k += 1) graded.push(width * 2 ** -k, -width * 2 ** -k);
    const inside = graded.filter((offset) => offset > offsets[0] && offset < offsets[last]);
    return [...new Set([...offsets, ...inside])].sort((a, b) => a - b);
  }

  /** KL(p‖q) of two laws of one dimension whose directions form an angle, in radians. */
  const kl = (p, q, angle) => klAligned(p, q) + misalignment(p, q, angle);

  return {
    FAMILIES,
    capAngle,
    entropy,
    kl,
    klUniform,
    law,
    logDensity,
    logNormalizer,
    meanComplement,
    meanLength,
    oneMinus,
    quantile,
    rapidity,
    tails,
    variance,
  };
})();

if (typeof module !== "undefined") module.exports = Laws;
