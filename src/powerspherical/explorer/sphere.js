/* The sphere of the explorer on a canvas: density, caps and draws of two laws, which one can turn.

In any dimension the picture keeps the angle between a point and the direction of its law. For d = 3 it is the sphere
itself, and for d = 2 the circle, seen from the front. Elsewhere one random azimuth replaces the other d-2 angles. */
"use strict";

const Sphere = (() => {
  const SHADES = 1024; // density values from angle 0 to π
  const MARGIN = 1.3; // half the width of the canvas in radii: room for the labels
  const TALLEST = 0.2; // height in radii of the largest density over a circle
  const INSIDE = [0.96, 0.91]; // radii of the draws of A and B on a circle, to tell them apart
  const FRONT = { yaw: 0, pitch: 0 }; // the view of the circle
  const SPEED = 1.5; // radians turned by a drag over one radius

  const dot = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
  const combine = (...terms) => [0, 1, 2].map((i) => terms.reduce((sum, [factor, v]) => sum + factor * v[i], 0));

  /** The unit vectors (direction, in-plane tangent, third axis) of a law turned by an angle from the first. */
  function frame(angle) {
    const [c, s] = [Math.cos(angle), Math.sin(angle)];
    return [[s, 0, c], [c, 0, -s], [0, 1, 0]];
  }

  /** Rotate a vector of the world into the view: x to the right, y up, z towards the viewer. */
  function turned([x, y, z], { yaw, pitch }) {
    const [cy, sy, cp, sp] = [Math.cos(yaw), Math.sin(yaw), Math.cos(pitch), Math.sin(pitch)];
    const [across, depth] = [x * cy - y * sy, x * sy + y * cy];
    return [across, z * cp + depth * sp, z * sp - depth * cp];
  }

  /** The point at an angle φ from the direction, with cosine and sine given, at an azimuth. */
  function pointAt([direction, tangent, third], cosine, sine, azimuth) {
    return combine([cosine, direction], [sine * Math.cos(azimuth), tangent], [sine * Math.sin(azimuth), third]);
  }

  /** The density in the picture at SHADES angles, relative to its largest value, and that value. */
  function profile(law) {
    const logs = Array.from({ length: SHADES }, (_, i) => {
      const angle = (Math.PI * (i + 0.5)) / SHADES;
      const log = Laws.logDensity(law, -Math.log(Math.tan(angle / 2))); // of t: per area of S²
      return law.dim === 2 ? log + Math.log(Math.sin(angle)) : log; // per length of the circle
    });
    const top = Math.max(...logs);
    return { heights: logs.map((log) => Math.exp(log - top)), top: Math.exp(top) };
  }

  const place = (angle) => Math.min(SHADES - 1, Math.floor((angle / Math.PI) * SHADES));

  /** What the picture needs of a law: computed once per change of parameters, not per turn. */
  function prepare(law, angle, uniforms) {
    const axes = frame(angle);
    const points = uniforms.map(([u, v]) => {
      const r = Laws.quantile(law, u);
      const azimuth = law.dim === 2 ? (v < 0.5 ? 0 : Math.PI) : 2 * Math.PI * v;
      return pointAt(axes, Math.tanh(r), 1 / Math.cosh(r), azimuth);
    });
    const caps = [0.5, 0.95].map((probability) => Laws.capAngle(law, probability));
    const { heights, top } = profile(law);
    const strength = 0.85 * (1 - Math.exp(-top)); // the uniform law on S² has density ½ and a pale shade
    return { axes, points, caps, heights, dim: law.dim, opacities: heights.map((height) => strength * height ** 0.6) };
  }

  /** The disc as an image of `size` pixels, with light from the viewer. It is shaded by the densities if asked for. */
  function shade(context, size, laws, colours, view, isShaded) {
    const image = context.createImageData(size, size);
    const [first, second] = laws.map((law) => turned(law.axes[0], view));
    const opacity = (law, t) => (isShaded ? law.opacities[place(Math.acos(Math.min(1, Math.max(-1, t))))] : 0);
    for (let row = 0; row < size; row += 1) {
      for (let column = 0; column < size; column += 1) {
        const x = (2 * (column + 0.5)) / size - 1;
        const y = 1 - (2 * (row + 0.5)) / size;
        const z = Math.sqrt(Math.max(0, 1 - x * x - y * y));
        const [a, b] = [opacity(laws[0], dot([x, y, z], first)), opacity(laws[1], dot([x, y, z], second))];
        const covered = 1 - (1 - a) * (1 - b);
        const share = a / (a + b || 1);
        const light = 0.8 + 0.2 * z;
        const pixel = 4 * (row * size + column);
        for (let i = 0; i < 3; i += 1) {
          const ink = share * colours.laws[0][i] + (1 - share) * colours.laws[1][i];
          image.data[pixel + i] = light * ((1 - covered) * colours.ball[i] + covered * ink);
        }
        image.data[pixel + 3] = 255;
      }
    }
    return image;
  }

  const around = (steps) => Array.from({ length: steps + 1 }, (_, i) => (2 * Math.PI * i) / steps);
  const parallel = (axes, angle) => around(120).map((a) => pointAt(axes, Math.cos(angle), Math.sin(angle), a));
  const meridian = (axes, azimuth) => around(120).map((a) => pointAt(axes, Math.cos(a), Math.sin(a), azimuth));

  const css = ([r, g, b], alpha = 1) => `rgb(${r} ${g} ${b} / ${alpha})`;
  const isFront = ([, , z]) => z > -1e-9; // all of a circle seen from the front is

  /** Draws points and lines of the world on a canvas, as seen in a view. What lies behind is pale. */
  class Painter {
    constructor(canvas, view, palette) {
      const ratio = Math.min(2, window.devicePixelRatio || 1);
      this.width = canvas.clientWidth;
      this.radius = this.width / 2 / MARGIN;
      this.view = view;
      this.palette = palette;
      canvas.width = canvas.height = Math.round(this.width * ratio); // also clears the canvas
      this.context = canvas.getContext("2d");
      this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    }

    /** Where a vector of the view lies on the canvas. */
    screen([x, y]) {
      return [this.width / 2 + this.radius * x, this.width / 2 - this.radius * y];
    }

    /** The ball, shaded by the densities of the laws if asked for. `buffer` is a canvas to compute in. */
    ball(buffer, laws, isShaded) {
      const { context, radius, width } = this;
      buffer.width = buffer.height = Math.round(2 * radius);
      const image = shade(context, buffer.width, laws, this.palette, this.view, isShaded);
      buffer.getContext("2d").putImageData(image, 0, 0);
      context.save();
      context.beginPath();
      context.arc(width / 2, width / 2, radius, 0, 2 * Math.PI);
      context.clip();
      context.drawImage(buffer, width / 2 - radius, width / 2 - radius, 2 * radius, 2 * radius);
      context.restore();
    }

    line(points, colour, { strength = 1, thickness = 1, dashes = [] }) {
      const { context } = this;
      context.lineWidth = thickness;
      context.setLineDash(dashes);
      const seen = points.map((point) => turned(point, this.view));
      for (const front of [false, true]) {
        context.strokeStyle = css(colour, front ? strength : 0.25 * strength);
        context.beginPath();
        for (let i = 0; i + 1 < seen.length; i += 1) {
          if (isFront(seen[i]) !== front) continue;
          if (i === 0 || isFront(seen[i - 1]) !== front) context.moveTo(...this.screen(seen[i]));
          context.lineTo(...this.screen(seen[i + 1]));
        }
        context.stroke();
      }
      context.setLineDash([]);
    }

    dots(points, colour) {
      const { context } = this;
      context.lineWidth = 0.6;
      context.strokeStyle = css(this.palette.ball, 0.9);
      for (const point of points) {
        const seen = turned(point, this.view);
        const front = isFront(seen);
        context.beginPath();
        context.arc(...this.screen(seen), front ? 2 : 1.5, 0, 2 * Math.PI);
        context.fillStyle = css(colour, front ? 0.9 : 0.18);
        context.fill();
        if (front) context.stroke();
      }
    }

    /** A direction: a pin on the sphere with a letter. */
    pin(direction, letter, colour) {
      this.line([direction, combine([1.14, direction])], colour, { thickness: 2.5 });
      const { context } = this;
      const seen = turned(combine([1.23, direction]), this.view);
      const isSeen = isFront(seen) || Math.hypot(seen[0], seen[1]) > 1;
      context.font = "600 15px system-ui, sans-serif";
      context.textAlign = "center";
      context.textBaseline = "middle";
      context.lineJoin = "round";
      context.lineWidth = 4;
      context.strokeStyle = css(this.palette.ball);
      context.strokeText(letter, ...this.screen(seen));
      context.fillStyle = css(colour, isSeen ? 1 : 0.4);
      context.fillText(letter, ...this.screen(seen));
    }
  }

  /** Draw laws on a circle: densities as curves around it, caps as ticks, draws inside. */
  function paintCircle(painter, laws, layers) {
    painter.line(meridian(frame(0), 0), painter.palette.grid, {});
    laws.forEach((law, index) => {
      const colour = painter.palette.laws[index];
      const curve = around(720).map((angle) => {
        const height = 1 + TALLEST * law.heights[place(Math.min(angle, 2 * Math.PI - angle))];
        return combine([height, pointAt(law.axes, Math.cos(angle), Math.sin(angle), 0)]);
      });
      if (layers.density) painter.line(curve, colour, { thickness: 2.5 });
      const ticks = law.caps.flatMap((angle, i) => [angle, -angle].map((side) => [side, i ? 1.5 : 3]));
      for (const [angle, thickness] of layers.caps ? ticks : []) {
        const end = pointAt(law.axes, Math.cos(angle), Math.sin(angle), 0);
        painter.line([combine([0.92, end]), combine([1.08, end])], colour, { thickness });
      }
      if (layers.draws) painter.dots(law.points.map((point) => combine([INSIDE[index], point])), colour);
    });
  }

  /** Draw laws on the sphere: densities as shades, caps as circles, and draws. */
  function paintSphere(painter, laws, layers, buffer) {
    painter.ball(buffer, laws, layers.density);
    const grid = [0, 1, 2, 3, 4, 5].map((i) => (i * Math.PI) / 6);
    for (const angle of grid) {
      painter.line(parallel(frame(0), angle), painter.palette.grid, { strength: 0.3 });
      painter.line(meridian(frame(0), angle), painter.palette.grid, { strength: 0.3 });
    }
    laws.forEach((law, index) => {
      const colour = painter.palette.laws[index];
      law.caps.forEach((angle, i) => {
        if (layers.caps) painter.line(parallel(law.axes, angle), colour, { thickness: 1.75, dashes: i ? [5, 4] : [] });
      });
      if (layers.draws) painter.dots(law.points, colour);
    });
  }

  /** A picture on a canvas. `colours()` returns RGB triples; `onTurn()` is called when the user turns the view. */
  function create(canvas, view, colours, onTurn) {
    const buffer = document.createElement("canvas");
    let [laws, layers, isWaiting] = [[], {}, false];

    function draw() {
      isWaiting = false;
      const isCircle = laws[0].dim === 2;
      const painter = new Painter(canvas, isCircle ? FRONT : view, colours());
      (isCircle ? paintCircle : paintSphere)(painter, laws, layers, buffer);
      laws.forEach((law, index) => painter.pin(law.axes[0], "AB"[index], painter.palette.laws[index]));
    }

    function redraw() {
      if (!isWaiting) requestAnimationFrame(draw);
      isWaiting = true;
    }

    function turn(yaw, pitch) {
      view.yaw += yaw;
      view.pitch = Math.max(-Math.PI / 2, Math.min(Math.PI / 2, view.pitch + pitch));
      onTurn();
      redraw();
    }

    let held = null; // where the pointer was last, while it holds the sphere
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      held = [event.clientX, event.clientY];
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!held) return;
      const unit = (SPEED * 2 * MARGIN) / canvas.clientWidth;
      turn((event.clientX - held[0]) * unit, (event.clientY - held[1]) * unit);
      held = [event.clientX, event.clientY];
    });
    canvas.addEventListener("lostpointercapture", () => {
      held = null;
    });
    canvas.addEventListener("keydown", (event) => {
      const step = Math.PI / 36;
      const turns = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
      if (!turns[event.key]) return;
      event.preventDefault();
      turn(...turns[event.key]);
    });
    new ResizeObserver(redraw).observe(canvas);

    return {
      redraw,
      show(newLaws, newLayers) {
        [laws, layers] = [newLaws, newLayers];
        redraw();
      },
    };
  }

  return { create, prepare };
})();
