// Generate: watch a generator choose tokens step by step; paint over a picture and let it be redrawn.

import { getPacket, postSteps, withProgress } from "./api.js";
import { app, encodingOf, mapOf } from "./app.js";
import { announce, canvasOf, make, number, shade, style } from "./elements.js";
import { figure, source } from "./image_pane.js";
import { Viewport, Zoom } from "./viewport.js";

const MANY_CLASSES = 40;

export function generatePane(section) {
  const { generator } = app.state;
  if (!generator) return null;
  const zoom = new Zoom();
  const [rows, columns] = generator.grid;
  const size = [generator.size, generator.size];
  const labelled = (text, field) => make("label", { text: `${text} ` }, field);
  const field = (value, min, max, step) => make("input", { type: "number", value, min, max, step });
  const many = generator.classes.length > MANY_CLASSES;
  const label = many
    ? make("input", { list: "classes", value: generator.classes[0] })
    : make("select", {}, ...generator.classes.map((name) => make("option", { value: name, text: name })));
  const [guidance, temperature, steps, seed] = [field(1, 0, 20, 0.1), field(1, 0, 4, 0.05), field(11, 1, 256, 1), field(0, 0, 4294967295, 1)];
  const order = make("select", {}, ...generator.orders.map((name) => make("option", { value: name, text: name })));
  const action = (text, run, extra = {}) => make("button", { text, onclick: run, ...extra });
  const [drawButton, redrawButton] = [action("Draw", () => draw(false), { class: "main" }), action("Redraw the painted part", () => draw(true))];
  const [stopButton, clearButton] = [action("Stop", () => running?.abort(), { disabled: true }), action("Clear the paint", clear)];
  const problem = make("p", { class: "problem", role: "alert", hidden: true });
  const [stepText, share] = [make("span"), make("span")];
  const slider = make("input", { type: "range", min: 0, max: 0, value: 0, step: 1, disabled: true, "aria-label": "Step of the drawing" });
  const big = figure("Drawn", "Picture that is being drawn", stepText);
  const likely = figure("Probability of each token", "Map of probabilities", share);
  const mask = figure("Picture to redraw", "Picture; drag to paint what is redrawn", make("span", { text: "drag to paint" }));
  likely.element.append(make("div", { class: "legend" }, make("span", { text: "0" }), make("div", { class: "ramp use" }), make("span", { text: "1" }), make("span", { text: "· open tokens are grey" })));
  big.element.append(slider, make("div", { class: "ends" }, make("span", { text: "first step" }), make("span", { text: "last step" })));
  section.append(make("div", { class: "tools" },
    make("div", { class: "group" }, labelled("Class", label), ...(many ? [make("datalist", { id: "classes" }, ...generator.classes.map((value) => make("option", { value })))] : [])),
    make("div", { class: "group" }, labelled("Guidance", guidance), labelled("Temperature", temperature)),
    make("div", { class: "group" }, labelled("Order", order), labelled("Steps", steps)),
    make("div", { class: "group" }, labelled("Seed", seed), action("Next", () => { seed.value = Number(seed.value) + 1; draw(false); }, { title: "Draw with the next seed" })),
    make("div", { class: "group" }, drawButton, stopButton)), problem,
  make("div", { class: "views" }, big.element,
    make("div", { class: "side" }, likely.element, make("div", {}, mask.element, make("div", { class: "tools below" }, redrawButton, clearButton)))));

  let [drawn, square, running, painting] = [[], null, null, true];
  const painted = new Uint8Array(rows * columns);
  const brush = {
    start(cell) { painting = !painted[cell.row * columns + cell.column]; brush.move(cell); },
    move(cell) { painted[cell.row * columns + cell.column] = Number(painting); refresh(); },
    end() { announce(`${painted.reduce((sum, x) => sum + x, 0)} tokens painted`); },
  };
  const follow = (canvas) => (cell) => views.forEach((view) => view.canvas !== canvas && view.follow(cell));
  const views = [
    new Viewport(big.canvas, zoom, { onCell: follow(big.canvas) }),
    new Viewport(likely.canvas, zoom, { onCell: (cell) => { follow(likely.canvas)(cell); tell(cell); } }),
    new Viewport(mask.canvas, zoom, { onCell: follow(mask.canvas), drag: () => brush }),
  ];

  const now = () => drawn[Number(slider.value)];

  /** Grey over the tokens that are not decided yet. */
  function cover(context, view) {
    const shown = now();
    if (!shown) return;
    const [width, height] = view.cellSize;
    context.fillStyle = style("--well");
    shown.open.forEach((open, i) => open && context.fillRect((i % columns) * width, Math.floor(i / columns) * height, width + 0.05, height + 0.05));
    view.outline(shown.fresh, style("--accent"), 1.5);
  }

  function paint(context, view) {
    const [width, height] = view.cellSize;
    context.fillStyle = "#d55e00b0";
    painted.forEach((on, i) => on && context.fillRect((i % columns) * width, Math.floor(i / columns) * height, width, height));
  }

  function tell(cell) {
    const shown = now();
    if (!shown || !cell) return;
    const place = cell.row * columns + cell.column;
    share.textContent = shown.open[place] ? "open" : `code ${shown.codes[place]}${shown.probabilities[place] ? `, ${number(100 * shown.probabilities[place], 1)}%` : ", given"}`;
    announce(share.textContent);
  }

  function refresh() {
    const shown = now();
    stepText.textContent = shown ? `step ${shown.step} of ${shown.steps}` : "";
    redrawButton.disabled = !square || !painted.some(Boolean) || Boolean(running);
    clearButton.disabled = !painted.some(Boolean);
    drawButton.disabled = Boolean(running);
    stopButton.disabled = !running;
    views.forEach((view) => view.draw());
  }

  function clear() {
    painted.fill(0);
    refresh();
  }

  /** Keep a step, with the probabilities that earlier steps gave to their tokens. */
  function take({ meta, tokens, probabilities, pixels }, stages) {
    const before = drawn.at(-1);
    const count = rows * columns;
    const codes = Int32Array.from({ length: count }, (_, i) => tokens[i * stages]);
    const open = Uint8Array.from(codes, (code) => Number(code < 0));
    const fresh = [];
    const sum = Float32Array.from({ length: count }, (_, i) => {
      const given = probabilities[i * stages];
      if (given) fresh.push({ row: Math.floor(i / columns), column: i % columns });
      return given || before?.probabilities[i] || 0;
    });
    drawn.push({ ...meta, codes, open, fresh, probabilities: sum, picture: canvasOf(pixels, ...size), map: mapOf(rows, columns, (i) => (open[i] ? [128, 128, 128] : shade(sum[i]))) });
    Object.assign(slider, { max: drawn.length - 1, value: drawn.length - 1, disabled: drawn.length < 2 });
    refresh();
  }

  async function draw(redraw) {
    problem.hidden = true;
    const body = {
      label: label.value, seed: Number(seed.value), steps: Number(steps.value), order: order.value,
      guidance: Number(guidance.value), temperature: Number(temperature.value),
    };
    if (redraw) {
      body.picture = app.picture;
      body.mask = Array.from({ length: rows }, (_, row) => Array.from(painted.subarray(row * columns, (row + 1) * columns)));
    }
    running?.abort();
    const own = (running = new AbortController());
    drawn = [];
    refresh();
    try {
      await withProgress(postSteps("/api/generate", body, (packet) => take(packet, packet.shapes.tokens[2]), own.signal));
      announce("Drawn");
    } catch (error) {
      if (error.name !== "AbortError") {
        problem.textContent = error.message;
        problem.hidden = false;
      }
    } finally {
      if (running === own) running = null;
      section.dataset.drawn = drawn.length;
      refresh();
    }
  }

  async function openPicture() {
    if (section.hidden) return;
    const picture = app.picture;
    try {
      const encoding = encodingOf(await withProgress(getPacket(`/api/square?picture=${picture}`)));
      if (picture === app.picture) square = encoding;
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    }
    refresh();
  }

  views[0].show(size, generator.grid, [source(() => now()?.picture), cover]);
  views[1].show(size, generator.grid, [source(() => now()?.map)]);
  views[2].show(size, generator.grid, [source(() => square?.original), paint]);
  for (const { canvas } of [mask]) canvas.style.touchAction = "none";
  slider.addEventListener("input", refresh);
  app.on("encoding", openPicture);
  refresh();
  return { show: () => { openPicture(); refresh(); } };
}
