/* The page of the explorer: its state, controls, numbers and Python code. */
"use strict";

(() => {
  const DRAWS = 400;
  const HOME = { yaw: -0.55, pitch: 0.6 };
  const DEGREE = Math.PI / 180;
  const byId = (id) => document.getElementById(id);

  // State. It lives in the hash of the address, so that a link or a reload shows the same.

  const logGrid = (from, to, steps, round) =>
    [...new Set(Array.from({ length: steps + 1 }, (_, i) => round(from * (to / from) ** (i / steps))))];

  /** The values at the stops of the sliders. The number fields take any value between the ends. */
  const STOPS = {
    d: logGrid(2, 1e4, 160, Math.round),
    ka: logGrid(1e-3, 1e6, 360, (x) => Number(x.toPrecision(3))),
    kb: logGrid(1e-3, 1e6, 360, (x) => Number(x.toPrecision(3))),
    angle: Array.from({ length: 181 }, (_, i) => i),
  };
  const DEFAULTS = { d: 3, a: "power_spherical", ka: 10, b: "von_mises_fisher", kb: 10, angle: 60 };

  /** A value within the range of its slider, or null if it is not a number. */
  function valid(key, text) {
    const value = text === "" ? NaN : Number(text);
    if (!Number.isFinite(value)) return null;
    const bounded = Math.min(STOPS[key][STOPS[key].length - 1], Math.max(STOPS[key][0], value));
    return key === "d" ? Math.round(bounded) : bounded;
  }

  function stateFromHash() {
    const given = new URLSearchParams(location.hash.slice(1));
    const result = { ...DEFAULTS };
    for (const key of Object.keys(STOPS)) result[key] = valid(key, given.get(key) ?? "") ?? DEFAULTS[key];
    for (const key of ["a", "b"]) if (Object.hasOwn(Laws.FAMILIES, given.get(key))) result[key] = given.get(key);
    const [yaw, pitch] = (given.get("view") ?? "").split(",").map(parseFloat);
    const view = Number.isFinite(yaw + pitch) ? { yaw: yaw * DEGREE, pitch: pitch * DEGREE } : HOME;
    return { state: result, view: { ...view } };
  }

  function writeHash() {
    const turned = [view.yaw, view.pitch].map((angle) => Math.round(angle / DEGREE)).join();
    history.replaceState(null, "", `#${new URLSearchParams({ ...state, view: turned })}`.replace("%2C", ","));
  }

  const { state, view } = stateFromHash();
  const newUniforms = () => Array.from({ length: DRAWS }, () => [Math.random(), Math.random()]);
  let uniforms = [newUniforms(), newUniforms()];
  let laws = [];

  // Text

  /** A number with five digits and a true minus sign; a power of ten if it is very small or large. */
  function number(value) {
    const size = Math.abs(value);
    if (size === 0 || (size >= 1e-4 && size < 1e5)) return String(Number(value.toPrecision(5))).replace("-", "−");
    const [digits, power] = value.toExponential(4).split("e");
    const raised = [...power].map((sign) => "⁺⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["+-0123456789".indexOf(sign)]).join("").replace("⁺", "");
    return `${number(Number(digits))}·10${raised}`;
  }

  const degrees = (angle) => `${number(angle / DEGREE)}°`;

  const lengthText = (value, p) => (value > 0.999 ? `1−${number(Laws.meanComplement(p))}` : number(value));

  /** Numbers of one law: heading, value, and its text if it is not that of `number`. */
  const SUMMARIES = [
    ["KL to the uniform", Laws.klUniform],
    ["Entropy", Laws.entropy],
    ["Mean length ‖E x‖", Laws.meanLength, lengthText],
    ["Variance of t", Laws.variance],
    ["Cap of 50 %", (p) => Laws.capAngle(p, 0.5), degrees],
    ["Cap of 95 %", (p) => Laws.capAngle(p, 0.95), degrees],
    ["Log-normaliser", Laws.logNormalizer],
  ];

  /** What the picture shows, and what it cannot show. */
  function caption({ d, a, b }) {
    const scale = "relative to its own maximum";
    if (d === 2) return `d = 2: the circle itself, draws just inside it. The height of a curve is a density ${scale}.`;
    const turn = "Drag or use the arrow keys to turn it.";
    if (d === 3) return `d = 3: the sphere itself. A shade is a density ${scale}. ${turn}`;
    const picture = `d = ${d}: a picture of angles. Each draw lies at its true angle from its own direction, A or B, and
      at a random azimuth: distances between draws are not true. A shade is the density of draws here, ${scale}.`;
    const origin = "The uniform has no direction: its letter marks where the angles are measured from.";
    return [picture, ...([a, b].includes("uniform") ? [origin] : []), turn].join(" ");
  }

  const float = (value) => (Number.isInteger(value) ? `${value}.0` : String(value));

  /** The Python code of two distributions, their draws and their divergence. */
  function python({ d, a, ka, b, kb, angle }) {
    const [first, second] = [a, b].map((family) => Laws.FAMILIES[family].python);
    const imports = [...new Set([first, second])].sort().map((name) => `from powerspherical import ${name}`);
    const make = (name, loc, kappa) =>
      name === "HypersphericalUniform" ? `${name}(${d}, dtype=torch.float64)` : `${name}(${loc}, ${float(kappa)})`;
    return `from math import cos, radians, sin
import torch
from torch.distributions import kl_divergence
${imports.join("\n")}

angle = radians(${float(angle)})
mu, nu = torch.zeros(2, ${d}, dtype=torch.float64)
mu[0], nu[0], nu[1] = 1, cos(angle), sin(angle)
a = ${make(first, "mu", ka)}
b = ${make(second, "nu", kb)}
x, y = a.sample((${DRAWS},)), b.sample((${DRAWS},))
print(kl_divergence(a, b), kl_divergence(b, a))
`;
  }

  // Drawing

  const colour = (name) => {
    const probe = byId("probe");
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color.match(/\d+/g).slice(0, 3).map(Number);
  };
  const colours = () => ({ ball: colour("ball"), grid: colour("grid"), laws: [colour("law-a"), colour("law-b")] });
  const sphere = Sphere.create(byId("sphere"), view, colours, writeHash);

  function showPicture() {
    const turned = [0, state.angle * DEGREE];
    const layers = Object.fromEntries(["density", "draws", "caps"].map((name) => [name, byId(`show-${name}`).checked]));
    const prepared = laws.map((law, i) => Sphere.prepare(law, turned[i], uniforms[i]));
    sphere.show(prepared, layers);
  }

  function put(cell, value, text) {
    cell.textContent = text;
    cell.dataset.value = value;
  }

  function showControls() {
    for (const key of ["a", "b"]) {
      byId(key).value = state[key];
      const inputs = document.querySelectorAll(`[data-key=k${key}] input`);
      for (const input of inputs) input.disabled = state[key] === "uniform";
    }
    for (const [key, stops] of Object.entries(STOPS)) {
      const slider = document.querySelector(`[data-key=${key}] [type=range]`);
      const gaps = stops.map((stop) => Math.abs(key === "angle" ? stop - state[key] : Math.log(stop / state[key])));
      slider.value = gaps.indexOf(Math.min(...gaps));
      slider.setAttribute("aria-valuetext", String(state[key]));
      if (document.activeElement !== byId(key)) byId(key).value = state[key];
    }
  }

  function showAll() {
    laws = [Laws.law(state.a, state.ka, state.d), Laws.law(state.b, state.kb, state.d)];
    showControls();
    showPicture();
    byId("caption").textContent = caption(state);
    const [first, second] = [state.a, state.b].map((family) => Laws.FAMILIES[family].title);
    byId("sphere").setAttribute("aria-label", `Draws of A (${first}) and B (${second})`);
    const rows = SUMMARIES.map(([heading, value, text = number]) => {
      const row = document.createElement("tr");
      const head = document.createElement("th");
      head.scope = "row";
      head.textContent = heading;
      const cells = laws.map((law) => {
        const cell = document.createElement("td");
        const found = value(law);
        put(cell, found, text(found, law));
        return cell;
      });
      row.append(head, ...cells);
      return row;
    });
    byId("summaries").replaceChildren(...rows);
    const angle = state.angle * DEGREE;
    const [there, back] = [Laws.kl(laws[0], laws[1], angle), Laws.kl(laws[1], laws[0], angle)];
    put(byId("kl-ab"), there, number(there));
    put(byId("kl-ba"), back, number(back));
    Chart.draw(byId("chart"), laws);
    byId("code").textContent = python(state);
    byId("copied").textContent = "";
  }

  let waiting = false;

  /** Show a new state at the next frame. */
  function change(news) {
    Object.assign(state, news);
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      showAll();
      writeHash();
    });
  }

  // Events

  for (const key of ["a", "b"]) {
    for (const [name, { title }] of Object.entries(Laws.FAMILIES)) byId(key).add(new Option(title, name));
    byId(key).addEventListener("change", () => change({ [key]: byId(key).value }));
  }
  for (const [key, stops] of Object.entries(STOPS)) {
    const slider = document.querySelector(`[data-key=${key}] [type=range]`);
    slider.max = stops.length - 1;
    slider.addEventListener("input", () => change({ [key]: stops[slider.value] }));
    byId(key).addEventListener("input", () => {
      const value = valid(key, byId(key).value);
      if (value !== null) change({ [key]: value });
    });
    byId(key).addEventListener("blur", showControls);
  }
  document.querySelector(".controls").addEventListener("change", () =>
    requestAnimationFrame(() => {
      const [there, back] = ["kl-ab", "kl-ba"].map((id) => byId(id).textContent);
      byId("announcement").textContent = `KL of A to B ${there} nats, of B to A ${back} nats`;
    }),
  );
  for (const name of ["density", "draws", "caps"]) byId(`show-${name}`).addEventListener("change", showPicture);
  byId("redraw").addEventListener("click", () => {
    uniforms = [newUniforms(), newUniforms()];
    showPicture();
  });
  byId("copy").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(byId("code").textContent);
      byId("copied").textContent = "Copied.";
    } catch {
      // A page may not be allowed to write the clipboard: leave the last step to the reader.
      getSelection().selectAllChildren(byId("code"));
      byId("copied").textContent = "Selected: press Ctrl+C or ⌘C.";
    }
  });
  addEventListener("hashchange", () => {
    const next = stateFromHash();
    Object.assign(view, next.view);
    change(next.state);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => sphere.redraw());
  let width = 0;
  new ResizeObserver(() => {
    if (byId("chart").clientWidth === width) return;
    width = byId("chart").clientWidth;
    Chart.draw(byId("chart"), laws);
  }).observe(byId("chart"));

  showAll();
})();
