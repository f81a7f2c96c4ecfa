/* The sphere of the explorer on a canvas: density, caps and draws of two laws, which one can turn.

In any dimension the picture keeps the angle between a point and the direction of its law. For d = 3 it is the sphere
itself, for d = 2 a great circle of it. Elsewhere the other d-2 angles are replaced by one random azimuth. */
"use strict";

const Sphere = (() => {
  const SHADES = 1024; // density values from angle 0 to π
  const MARGIN = 1.3; // half the width of the canvas in radii: room for the labels
  const TALLEST = 0.2; // height in radii of the largest density over a circle
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
    const values = Array.from({ length: SHADES }, (_, i) => {
      const angle = (Math.PI * (i + 0.5)) / SHADES;
      const density = Math.exp(Laws.logDensity(law, -Math.log(Math.tan(angle / 2)))); // of t: per area of S²
      return law.dim === 2 ? density * Math.sin(angle) : density; // per length of the circle
    });
    const top = Math.max(...values);
    return { heights: values.map((value) => value / top), top };
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

  /** A picture on a canvas. `colours()` returns RGB triples; `turnedTo(view)` is called when the user turns it. */
  function create(canvas, view, colours, turnedTo) {
    const context = canvas.getContext("2d");
    const buffer = document.createElement("canvas");
    let [laws, layers, waiting] = [[], { density: true, draws: true, caps: true }, false];

    function draw() {
      waiting = false;
      const width = canvas.clientWidth;
      const ratio = Math.min(2, window.devicePixelRatio || 1);
      canvas.width = canvas.height = Math.round(width * ratio);
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      const palette = colours();
      const radius = width / 2 / MARGIN;
      const css = ([r, g, b], alpha = 1) => `rgb(${r} ${g} ${b} / ${alpha})`;
      const screen = ([x, y]) => [width / 2 + radius * x, width / 2 - radius * y];

      buffer.width = buffer.height = Math.round(2 * radius);
      const isShaded = layers.density && laws[0].dim > 2;
      buffer.getContext("2d").putImageData(shade(context, buffer.width, laws, palette, view, isShaded), 0, 0);
      context.save();
      context.beginPath();
      context.arc(width / 2, width / 2, radius, 0, 2 * Math.PI);
      context.clip();
      context.drawImage(buffer, width / 2 - radius, width / 2 - radius, 2 * radius, 2 * radius);
      context.restore();

      /** A polyline on the sphere: full strength in front, pale behind. */
      function line(points, colour, strength, thickness, dashes = []) {
        context.lineWidth = thickness;
        context.setLineDash(dashes);
        const seen = points.map((point) => turned(point, view));
        for (const front of [false, true]) {
          context.strokeStyle = css(colour, front ? strength : 0.25 * strength);
          context.beginPath();
          for (let i = 0; i + 1 < seen.length; i += 1) {
            if (seen[i][2] >= 0 !== front) continue;
            if (i === 0 || seen[i - 1][2] >= 0 !== front) context.moveTo(...screen(seen[i]));
            context.lineTo(...screen(seen[i + 1]));
          }
          context.stroke();
        }
        context.setLineDash([]);
      }

      const around = (steps) => Array.from({ length: steps + 1 }, (_, i) => (2 * Math.PI * i) / steps);
      const circle = (axes, angle) => around(120).map((a) => pointAt(axes, Math.cos(angle), Math.sin(angle), a));
      const meridian = (axes, azimuth) => around(120).map((a) => pointAt(axes, Math.cos(a), Math.sin(a), azimuth));
      const world = frame(0);
      for (let i = 1; i < 6; i += 1) line(circle(world, (i * Math.PI) / 6), palette.grid, 0.3, 1);
      for (let i = 0; i < 6; i += 1) line(meridian(world, (i * Math.PI) / 6), palette.grid, 0.3, 1);

      laws.forEach((law, index) => {
        const colour = palette.laws[index];
        if (law.dim === 2 && layers.density) {
          const curve = around(720).map((angle) => {
            const height = 1 + TALLEST * law.heights[place(Math.min(angle, 2 * Math.PI - angle))];
            return combine([height, pointAt(law.axes, Math.cos(angle), Math.sin(angle), 0)]);
          });
          line(curve, colour, 1, 2.5);
        }
        if (layers.caps) {
          law.caps.forEach((angle, i) => {
            if (law.dim > 2) line(circle(law.axes, angle), colour, 1, 1.75, i ? [5, 4] : []);
            else {
              for (const side of [0, Math.PI]) {
                const end = pointAt(law.axes, Math.cos(angle), Math.sin(angle), side);
                line([combine([0.92, end]), combine([1.08, end])], colour, 1, i ? 1.5 : 3);
              }
            }
          });
        }
        if (layers.draws) {
          for (const point of law.points) {
            const seen = turned(point, view);
            const front = seen[2] >= 0;
            context.beginPath();
            context.arc(...screen(seen), front ? 2 : 1.5, 0, 2 * Math.PI);
            context.fillStyle = css(colour, front ? 0.9 : 0.18);
            context.fill();
            if (front) {
              context.lineWidth = 0.6;
              context.strokeStyle = css(palette.ball, 0.9);
              context.stroke();
            }
          }
        }
      });

      context.font = "600 15px system-ui, sans-serif";
      context.textAlign = "center";
      context.textBaseline = "middle";
      laws.forEach((law, index) => {
        const direction = law.axes[0];
        line([direction, combine([1.14, direction])], palette.laws[index], 1, 2.5);
        const seen = turned(combine([1.23, direction]), view);
        context.fillStyle = css(palette.laws[index], seen[2] >= 0 || Math.hypot(seen[0], seen[1]) > 1 ? 1 : 0.4);
        context.strokeStyle = css(palette.ball);
        context.lineWidth = 4;
        context.lineJoin = "round";
        context.strokeText("AB"[index], ...screen(seen));
        context.fillText("AB"[index], ...screen(seen));
      });
    }

    function redraw() {
      if (!waiting) requestAnimationFrame(draw);
      waiting = true;
    }

    function turn(yaw, pitch) {
      view.yaw += yaw;
      view.pitch = Math.max(-Math.PI / 2, Math.min(Math.PI / 2, view.pitch + pitch));
      turnedTo(view);
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
