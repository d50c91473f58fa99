// Codebook: every code as a patch, a map in the plane, where codes occur, and how they grew.

import { getPacket, isSaved, withProgress } from "./api.js";
import { addUp, app, codesIn, distancesTo } from "./app.js";
import { usageChart } from "./charts.js";
import { announce, canvasOf, make, number, shade, style } from "./elements.js";
import { figure, sameCode, source } from "./image_pane.js";
import { Viewport, Zoom } from "./viewport.js";

const PLANE = 1000; // side of the map, in its own units
const CELLS = 80; // steps of the cursor across the map
const MANY = 60; // marked codes, from which on their marks are thin
const DEAD = "#d55e00";

const select = (label, options) => make("label", { text: `${label} ` }, make("select", {}, ...Object.entries(options).map(([value, text]) => make("option", { value, text }))));

export function codebookPane(section) {
  const sort = select("Sort by", { brightness: "brightness", use: "use", norm: "norm", similarity: "similarity to the code", number: "number" });
  const colour = select("Colour by", { use: "use", norm: "norm", age: "age" });
  const method = select("Map", { pca: "PCA", umap: "UMAP" });
  const counted = select("Count", { all: "all scales", one: "the chosen scale" });
  const field = (label) => label.querySelector("select");
  const problem = make("p", { class: "problem", role: "alert", hidden: true });
  const [summary, legend, moment] = [make("span"), make("div", { class: "legend" }), make("output", { class: "hint" })];
  const slider = make("input", { type: "range", min: 0, value: 0, step: 1, "aria-label": "Validation of the run", disabled: true });
  const time = make("div", { class: "time" }, make("div", { class: "ends" }, make("b", { text: "Over training" }), moment), slider);
  const codes = figure("Codes", "All codes as their mean patches", summary);
  const map = figure("Map", "Codes in the plane", make("span"));
  const where = figure("Where they occur", "Picture with the places of the marked codes", make("span"));
  const use = figure("Use", "How often codes occur", make("span"));
  use.canvas.className = "view chart";
  use.canvas.setAttribute("role", "img");
  map.element.append(legend);
  section.append(make("div", { class: "tools" }, sort, colour, counted, method), problem,
    make("div", { class: "views even" }, codes.element, map.element, where.element, make("div", {}, use.element, time)));

  let [order, plane, history, atlas] = [[], null, null, null];
  const zooms = [new Zoom(), new Zoom(), new Zoom()];
  const codeView = new Viewport(codes.canvas, zooms[0], { onCell: (cell) => point(codeIn(cell)), onUse: (cell, event) => toggle(codeIn(cell), event) });
  const mapView = new Viewport(map.canvas, zooms[1], { onCell: (cell) => point(cell && nearestIn(cell)), drag: () => lasso });
  const pictureView = new Viewport(where.canvas, zooms[2], {
    onCell: (cell) => app.look(cell),
    onUse: (cell, event) => toggle(app.codeAt(cell), event),
  });
  const tokens = () => app.encoding?.tokens;
  let pointed = null;

  // The moment that the time slider shows

  const at = () => (history && Number(slider.value) < history.steps.length - 1 ? Number(slider.value) : -1);
  const countsNow = () => (at() < 0 ? countsIn(app.codebook.levels.map(({ counts }) => counts)) : countsAt(at()));

  /** Counts of the chosen scale, or of all. */
  function countsIn(levels) {
    if (levels.length === 1) return levels[0];
    return field(counted).value === "one" ? levels[app.level] : addUp(levels);
  }

  function countsAt(moment) {
    const [, levels, size] = history.shapes.counts;
    return countsIn(Array.from({ length: levels }, (_, i) => history.counts.subarray((moment * levels + i) * size, (moment * levels + i + 1) * size)));
  }

  const normsNow = () => (at() < 0 || !history.norms ? app.codebook.norms : history.norms.subarray(at() * app.codebook.size, (at() + 1) * app.codebook.size));

  /** Since which validation a code has been in use without a break; -1 for a code that is dead at the end. */
  function ages() {
    const { size } = app.codebook;
    const last = history.steps.length - 1;
    const counts = history.steps.map((_, moment) => countsAt(moment));
    return Int32Array.from({ length: size }, (_, code) => {
      let since = last;
      while (since >= 0 && counts[since][code] > 0) since--;
      return since === last ? -1 : since + 1;
    });
  }

  // Which code is meant

  function codeIn(cell) {
    const place = cell ? cell.row * codeView.grid[1] + cell.column : -1;
    return place >= 0 && place < order.length ? order[place] : null;
  }

  function position(code) {
    const [x, y] = [plane.points[2 * code], plane.points[2 * code + 1]];
    return [((x - plane.left) / plane.side) * PLANE, PLANE - ((y - plane.bottom) / plane.side) * PLANE];
  }

  function inside(top, left, bottom, right) {
    const unit = PLANE / CELLS;
    const found = [];
    for (let code = 0; code < app.codebook.size; code++) {
      const [x, y] = position(code);
      if (x >= left * unit && x < right * unit && y >= top * unit && y < bottom * unit) found.push(code);
    }
    return found;
  }

  function nearestIn(cell) {
    if (!plane) return null;
    const unit = PLANE / CELLS;
    const [x, y] = [(cell.column + 0.5) * unit, (cell.row + 0.5) * unit];
    let [best, least] = [null, (2 * unit) ** 2];
    for (let code = 0; code < app.codebook.size; code++) {
      const [a, b] = position(code);
      const apart = (a - x) ** 2 + (b - y) ** 2;
      if (apart < least) [best, least] = [code, apart];
    }
    return best;
  }

  function point(code) {
    pointed = code;
    if (code !== null) announce(`Code ${code}, ${countsNow()[code]} tokens`);
    draw();
  }

  function toggle(code, event) {
    if (code === null) return;
    const marked = new Set(event?.shiftKey || event?.ctrlKey ? app.codes : []);
    if (app.codes.has(code) && (marked.size || app.codes.size === 1)) marked.delete(code);
    else marked.add(code);
    app.kept = null;
    app.mark(marked);
  }

  let corner = null;
  let frame = null;
  const lasso = {
    start(cell) { corner = cell; frame = null; },
    move(cell) {
      if (!corner || !plane) return;
      frame = [Math.min(corner.row, cell.row), Math.min(corner.column, cell.column), Math.max(corner.row, cell.row) + 1, Math.max(corner.column, cell.column) + 1];
      mapView.draw();
    },
    end() {
      if (plane && corner) {
        const near = nearestIn(corner);
        app.kept = null;
        app.mark(frame ? inside(...frame) : near === null ? [] : [near]);
        announce(`${app.codes.size} codes marked`);
      }
      [corner, frame] = [null, null];
    },
  };

  // Drawing

  function sorted() {
    const { size, colours, counts } = app.codebook;
    const [used, norms] = [countsNow(), normsNow()];
    const keys = {
      brightness: (code) => 0.299 * colours[3 * code] + 0.587 * colours[3 * code + 1] + 0.114 * colours[3 * code + 2],
      use: (code) => -used[code],
      norm: (code) => norms[code],
      number: (code) => code,
    };
    const by = field(sort).value;
    const chosen = [...app.codes][0] ?? counts.indexOf(Math.max(...counts));
    const distances = by === "similarity" ? distancesTo(app.codebook, chosen) : null;
    const key = distances ? (code) => distances[code] : keys[by];
    const values = Float64Array.from({ length: size }, (_, code) => key(code));
    const dead = by === "brightness" ? (code) => counts[code] === 0 : () => false; // grey for want of a patch
    return [...Array(size).keys()].sort((a, b) => dead(a) - dead(b) || values[a] - values[b] || a - b);
  }

  function makeAtlas() {
    const { size, side, means } = app.codebook;
    const columns = Math.ceil(Math.sqrt(size));
    const rows = Math.ceil(size / columns);
    const pixels = new Uint8ClampedArray(columns * rows * side * side * 4);
    order.forEach((code, place) => {
      const [left, top] = [(place % columns) * side, Math.floor(place / columns) * side];
      for (let i = 0; i < side * side; i++) {
        const to = 4 * ((top + Math.floor(i / side)) * columns * side + left + (i % side));
        for (let c = 0; c < 3; c++) pixels[to + c] = means[3 * (code * side * side + i) + c];
        pixels[to + 3] = 255;
      }
    });
    return { canvas: canvasOf(pixels, columns * side, rows * side), rows, columns, side };
  }

  function drawMarks(context, view) {
    const { columns, side } = atlas;
    const counts = countsNow();
    context.strokeStyle = DEAD;
    context.lineWidth = 0.12 * side;
    context.beginPath();
    order.forEach((code, place) => {
      if (counts[code]) return;
      const [x, y] = [(place % columns) * side, Math.floor(place / columns) * side];
      context.moveTo(x + 0.2 * side, y + 0.2 * side);
      context.lineTo(x + 0.8 * side, y + 0.8 * side);
      context.moveTo(x + 0.8 * side, y + 0.2 * side);
      context.lineTo(x + 0.2 * side, y + 0.8 * side);
    });
    context.stroke();
    const marked = shown();
    const cells = [];
    order.forEach((code, place) => marked.has(code) && cells.push({ row: Math.floor(place / columns), column: place % columns }));
    // So many outlines would hide the patches.
    if (cells.length <= MANY) view.outline(cells, "#fff", 4);
    view.outline(cells, style("--accent"), cells.length <= MANY ? 2 : 1);
  }

  /** Codes that are marked, under the cursor, or under the cursor in the picture. */
  function shown() {
    const codes = new Set(app.codes);
    if (pointed !== null) codes.add(pointed);
    const cell = app.cell ?? app.kept;
    if (cell && app.encoding) codes.add(app.codeAt(cell));
    return codes;
  }

  function drawPlane(context) {
    if (!plane || !app.codebook?.counts) return;
    const { size } = app.codebook;
    const [counts, norms] = [countsNow(), normsNow()];
    const by = field(colour).value;
    const since = by === "age" && history ? ages() : null;
    const [least, most] = [Math.min(...norms), Math.max(...norms)];
    const frequent = Math.log(Math.max(2, Math.max(...counts)));
    const value = (code) => (by === "norm" ? (norms[code] - least) / (most - least || 1)
      : since ? 1 - since[code] / (history.steps.length - 1) : Math.log(Math.max(1, counts[code])) / frequent);
    const radius = Math.max(2.2, Math.min(7, 260 / Math.sqrt(size))) / Math.sqrt(zooms[1].scale);
    const points = at() >= 0 && history.planes && plane.method === "pca" ? history.planes.subarray(2 * at() * size, 2 * (at() + 1) * size) : plane.points;
    const place = (code) => [((points[2 * code] - plane.left) / plane.side) * PLANE, PLANE - ((points[2 * code + 1] - plane.bottom) / plane.side) * PLANE];
    context.lineWidth = 0.35 * radius;
    for (let code = 0; code < size; code++) {
      const [x, y] = place(code);
      if (!counts[code]) {
        context.strokeStyle = DEAD;
        context.beginPath();
        context.moveTo(x - radius, y - radius);
        context.lineTo(x + radius, y + radius);
        context.moveTo(x + radius, y - radius);
        context.lineTo(x - radius, y + radius);
        context.stroke();
        continue;
      }
      context.fillStyle = `rgb(${shade(value(code)).join(" ")})`;
      context.beginPath();
      context.arc(x, y, radius, 0, 7);
      context.fill();
    }
    const marked = shown();
    const [ring, line] = marked.size <= MANY ? [1.9, 0.9] : [1.2, 0.5];
    for (const code of marked) {
      const [x, y] = place(code);
      context.beginPath();
      context.arc(x, y, ring * radius, 0, 7);
      context.lineWidth = line * radius;
      context.strokeStyle = style("--ink");
      context.stroke();
    }
    if (frame) {
      const unit = PLANE / CELLS;
      context.strokeStyle = style("--accent");
      context.lineWidth = 3;
      context.strokeRect(frame[1] * unit, frame[0] * unit, (frame[3] - frame[1]) * unit, (frame[2] - frame[0]) * unit);
    }
  }

  function drawUse() {
    if (!app.codebook?.counts || section.hidden) return;
    usageChart(use.canvas, [{ counts: countsNow(), colour: style("--accent") }]);
  }

  function draw() {
    codeView.draw();
    mapView.draw();
    pictureView.draw();
  }

  function rearrange() {
    if (!app.codebook?.counts) return;
    order = sorted();
    atlas = makeAtlas();
    const size = [atlas.columns * atlas.side, atlas.rows * atlas.side];
    codeView.show(size, [atlas.rows, atlas.columns], [source(() => atlas.canvas), drawMarks]);
    mapView.show([PLANE, PLANE], [CELLS, CELLS], [drawPlane]);
    describe();
  }

  function describe() {
    const counts = countsNow();
    const used = counts.reduce((sum, count) => sum + (count > 0), 0);
    summary.textContent = `${number(used)} of ${number(app.codebook.size)} in use`;
    const by = field(colour).value;
    const ends = { use: ["rare", "frequent"], norm: ["short", "long"], age: ["new", "old"] }[by];
    legend.replaceChildren(make("span", { text: ends[0] }), make("div", { class: "ramp use" }), make("span", { text: ends[1] }), make("span", { class: "dead", text: "× dead" }));
    const marked = app.codes.size;
    map.element.querySelector("figcaption span").textContent = marked ? `${number(marked)} marked` : "drag to mark codes";
    if (history) {
      const now = Number(slider.value);
      const inUse = countsAt(now).reduce((sum, count) => sum + (count > 0), 0);
      moment.textContent = `step ${number(history.steps[now])}: ${number(inUse)} codes in use on the validation images`;
    }
    if (!app.encoding) return;
    const here = new Set(codesIn(app.grid, app.encoding.tokens));
    where.element.querySelector("b").textContent = app.levels > 1 ? `Where they occur on ${app.levelWord} ${app.level + 1}` : "Where they occur";
    where.element.querySelector("figcaption span").textContent = marked
      ? `${number([...app.codes].filter((code) => here.has(code)).length)} of ${number(marked)} marked codes`
      : `${number(here.size)} different codes`;
  }

  async function load() {
    problem.hidden = true;
    [plane, history, pointed] = [null, null, null];
    slider.disabled = true;
    moment.textContent = "";
    counted.hidden = !app.about.scales;
    if (!app.codebook?.counts || section.hidden) return;
    rearrange();
    drawUse();
    const book = app.codebook;
    const query = `model=${app.model}&stage=${app.stageOf()}`;
    try {
      await loadPlane(book);
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    }
    if (app.about.history) {
      const packet = await withProgress(getPacket(`/api/history?${query}`).catch(() => null));
      if (book !== app.codebook) return;
      if (packet) {
        history = { ...packet, steps: packet.meta.steps };
        Object.assign(slider, { max: history.steps.length - 1, value: history.steps.length - 1, disabled: false });
      }
    }
    if (!history) moment.textContent = "a run of two validations or more can be looked back at";
    field(colour).querySelector("[value=age]").disabled = !history;
    if (!history && field(colour).value === "age") field(colour).value = "use";
    describe();
    draw();
  }

  async function loadPlane(book) {
    const chosen = field(method).value;
    const packet = await withProgress(getPacket(`/api/plane?model=${app.model}&stage=${app.stageOf()}&method=${chosen}`));
    if (book !== app.codebook) return;
    const points = packet.plane;
    let [left, right, bottom, top] = [Infinity, -Infinity, Infinity, -Infinity];
    for (let i = 0; i < points.length; i += 2) {
      left = Math.min(left, points[i]); right = Math.max(right, points[i]);
      bottom = Math.min(bottom, points[i + 1]); top = Math.max(top, points[i + 1]);
    }
    const side = 1.08 * Math.max(right - left, top - bottom, 1e-6);
    plane = { points, side, left: (left + right - side) / 2, bottom: (bottom + top - side) / 2, method: chosen };
    mapView.draw();
  }

  function showPicture() {
    const { encoding } = app;
    if (!encoding) return;
    pictureView.show([encoding.width, encoding.height], [app.grid.rows, app.grid.columns], [source(() => app.encoding?.original), sameCode(tokens)]);
    if (app.codebook?.counts) describe();
  }

  function recount() {
    if (!app.codebook?.counts || section.hidden) return;
    rearrange();
    drawUse();
    draw();
  }

  field(sort).addEventListener("change", rearrange);
  field(counted).addEventListener("change", recount);
  field(colour).addEventListener("change", () => { describe(); draw(); });
  field(method).addEventListener("change", async () => {
    problem.hidden = true;
    try {
      await loadPlane(app.codebook);
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
      field(method).value = "pca";
    }
  });
  slider.addEventListener("input", recount);
  new ResizeObserver(drawUse).observe(use.canvas);
  if (!app.state.umap || isSaved) method.hidden = true;
  app.on("codebook", load);
  app.on("encoding level", showPicture);
  app.on("level", recount);
  app.on("look", () => {
    if (!app.codebook?.counts || section.hidden) return;
    if (field(sort).value === "similarity") rearrange();
    describe();
    draw();
  });
  return { show: () => { load(); showPicture(); } };
}
