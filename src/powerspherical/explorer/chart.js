/* The chart of the explorer: density and cdf of the cosine t for two laws, as SVG. */
"use strict";

const Chart = (() => {
  const HEIGHT = 260;
  const EDGE = { left: 46, right: 34, top: 12, bottom: 38 };
  const GRID = 240;
  const TALLER = 6; // a peak more than this many times higher than the other law's is cut
  const OUTSIDE = 1e-4; // the probability that the axis may leave out on each side

  const element = (name, attributes, text = "") => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.textContent = text;
    return node;
  };

  /** 1-t at the ends of the axis, the larger first. The axis covers both laws, or all of [-1, 1]. */
  function range(laws) {
    const ends = laws.map((law) => [OUTSIDE, 1 - OUTSIDE].map((u) => Laws.oneMinus(Laws.quantile(law, u))));
    const from = Math.max(...ends.map(([low]) => low));
    const to = Math.min(...ends.map(([, high]) => high));
    const room = 0.04 * (from - to);
    const near = to - room < 0.5 * (from - to) ? 0 : to - room; // reach up to t = 1 if it is not far
    return from - near > 1.2 ? [2, 0] : [Math.min(2, from + room), near];
  }

  /** About `count` round values between two numbers. */
  function ticks(from, to, count) {
    const raw = (to - from) / count;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw);
    const first = Math.ceil(from / step - 1e-9);
    return Array.from({ length: Math.floor(to / step + 1e-9) - first + 1 }, (_, i) => (first + i) * step);
  }

  const short = (value) => String(Number(value.toPrecision(4))).replace("-", "−");

  /** Labels of the axis: values of t, or 1 minus a small number where the axis is narrow and ends near 1. */
  function labels(from, to, count) {
    if (from > 0.01) return ticks(1 - from, 1 - to, count).map((t) => [1 - t, short(Number(t.toFixed(10)))]);
    return ticks(to, from, count).map((minus) => [minus, minus === 0 ? "1" : `1−${short(minus)}`]);
  }

  /** Rapidities at which to evaluate a law: evenly over the axis, and where the law has its structure. */
  function abscissae(law, from, to) {
    const even = Array.from({ length: GRID }, (_, i) => {
      const minus = from + ((to - from) * (i + 0.5)) / GRID;
      return Laws.rapidity(minus, 2 - minus);
    });
    const own = law.edges.filter((r) => Laws.oneMinus(r) < from && Laws.oneMinus(r) > to);
    return [...even, ...own].sort((a, b) => a - b);
  }

  /** Draw the chart of laws into an svg element of any width. */
  function draw(svg, laws) {
    const width = svg.clientWidth;
    svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const [from, to] = range(laws);
    const curves = laws.map((law) =>
      abscissae(law, from, to).map((r) => ({
        minus: Laws.oneMinus(r),
        density: Math.exp(Laws.logDensity(law, r)),
        ...Laws.tails(law, r),
      })),
    );
    // For d = 2 a density is infinite at t = ±1: its peak is then the largest value where most of the mass lies.
    const counts = ({ below, above }) => laws[0].dim > 2 || (below > 0.1 && above > 0.1);
    const peaks = curves.map((points) => Math.max(...points.filter(counts).map(({ density }) => density)));
    const top = 1.1 * Math.min(Math.max(...peaks), TALLER * Math.min(...peaks));
    const x = (minus) => EDGE.left + ((from - minus) / (from - to)) * (width - EDGE.left - EDGE.right);
    const y = (share) => HEIGHT - EDGE.bottom - share * (HEIGHT - EDGE.top - EDGE.bottom);
    const path = (points) => "M" + points.map(([a, b]) => `${a.toFixed(2)},${b.toFixed(2)}`).join("L");

    const parts = [];
    for (const value of ticks(0, top, 4)) {
      const height = y(value / top);
      parts.push(element("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: height, y2: height }));
      parts.push(element("text", { x: EDGE.left - 6, y: height + 4, "text-anchor": "end" }, short(value)));
    }
    for (const value of [0, 0.5, 1]) {
      parts.push(element("text", { x: width - EDGE.right + 6, y: y(value) + 4 }, short(value)));
    }
    for (const [minus, label] of labels(from, to, Math.max(3, Math.floor(width / 90)))) {
      parts.push(element("line", { class: "grid", x1: x(minus), x2: x(minus), y1: y(0), y2: y(0) + 4 }));
      parts.push(element("text", { x: x(minus), y: y(0) + 18, "text-anchor": "middle" }, label));
    }
    parts.push(element("text", { x: x((from + to) / 2), y: HEIGHT - 4, "text-anchor": "middle" }, "t"));
    curves.forEach((points, index) => {
      const law = `law-${"ab"[index]}`;
      const rising = points.map(({ minus, below }) => [x(minus), y(below)]);
      const clipped = points.map(({ minus, density }) => [x(minus), y(Math.min(1.02, density / top))]);
      const closed = [[clipped[0][0], y(0)], ...clipped, [clipped[clipped.length - 1][0], y(0)]];
      parts.push(element("path", { class: `area ${law}`, d: `${path(closed)}Z` }));
      parts.push(element("path", { class: `density ${law}`, d: path(clipped) }));
      parts.push(element("path", { class: `cdf ${law}`, d: path(rising) }));
    });
    svg.replaceChildren(...parts);
  }

  return { draw };
})();
