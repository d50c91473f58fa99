// Edit: take other codes for tokens, and see at once what they decode to.

import { isSaved, postFile, postForBlob, postPacket, unpack, withProgress } from "./api.js";
import { app, codesIn, tokenMap } from "./app.js";
import { announce, canvasOf, download, errorColour, fill, make, number, style } from "./elements.js";
import { figure, numbersOf, sameCode, source } from "./image_pane.js";
import { Viewport, Zoom } from "./viewport.js";

const TOOLS = {
  token: ["Token", "t", "Click a token, then one of its nearest codes, or set any number."],
  brush: ["Brush", "b", "Drag over tokens: they take the code in the field."],
  pipette: ["Pipette", "p", "Click a token: its code goes into the field."],
  region: ["Region", "r", "Drag a rectangle, or press Enter at one corner and Shift + Enter at the other."],
};
const OTHER_STAGE = "The copied tokens are of another stage, whose codes mean other things.";

export function editPane(section) {
  if (isSaved) {
    section.append(make("p", { class: "note", text: "Decoding needs the tokenizer itself: run lgq view to edit tokens." }));
    return {};
  }
  const zoom = new Zoom();
  const states = new Map(); // edits of each picture, until the page is closed
  let edit = null;
  let tool = "token";
  let clipboard = null;
  let region = null;
  let anchor = null;

  const note = make("p", { class: "note" });
  const problem = make("p", { class: "problem", role: "alert", hidden: true });
  const code = make("input", { type: "number", min: 0, step: 1, value: 0, id: "code" });
  const buttons = Object.fromEntries(Object.entries(TOOLS).map(([name, [label, key]]) => [
    name, make("button", { text: label, "aria-pressed": false, "aria-keyshortcuts": key, onclick: () => chooseTool(name) })]));
  const action = (text, run, extra = {}) => make("button", { text, onclick: run, ...extra });
  const [undoButton, redoButton] = [action("Undo", () => step("done", "undone")), action("Redo", () => step("undone", "done"))];
  const setButton = action("Set", () => take(Number(code.value)), { title: "Give this code to the chosen token or region" });
  const copyButton = action("Copy", copy);
  const pasteButton = action("Paste", paste, { title: "Put the copied tokens here, also in another picture" });
  const swapButton = action("Swap", swap, { title: "Exchange this region with the copied one" });
  const load = make("label", { class: "open" }, "Load tokens", make("input", { type: "file", accept: "application/json,.json", id: "load-tokens", onchange: loadTokens }));
  const tools = make("div", { class: "tools", role: "toolbar", "aria-label": "Edit" },
    make("div", { class: "group" }, ...Object.values(buttons)),
    make("div", { class: "group" }, make("label", { for: "code", text: "Code" }), code, setButton),
    make("div", { class: "group" }, copyButton, pasteButton, swapButton),
    make("div", { class: "group" }, undoButton, redoButton),
    make("div", { class: "group" }, action("Save picture", savePicture), action("Save tokens", saveTokens), load));
  const kind = make("select", { "aria-label": "Colours of tokens" },
    make("option", { value: "mean", text: "mean colour" }), make("option", { value: "code", text: "colour per code" }));
  const time = make("span");
  const big = figure("What the tokens decode to", "Picture that the edited tokens decode to", time);
  const small = figure("Tokens", "Map of the edited tokens", kind);
  const changes = make("span");
  const difference = figure("What has changed", "Difference to the picture before all edits", changes);
  section.append(tools, problem, make("div", { class: "views" }, make("div", {}, big.element, note), make("div", { class: "side" }, small.element, difference.element)));

  const stroke = {
    start: (cell, event) => (tool === "brush" ? paint(cell, true) : frame(cell, event)),
    move: (cell) => (tool === "brush" ? paint(cell, false) : stretch(cell)),
    end: () => announceRegion(),
  };
  const views = [big, small, difference].map(({ canvas }) => new Viewport(canvas, zoom, {
    onCell: (cell) => { views.forEach((view) => view.canvas !== canvas && view.follow(cell)); app.look(cell); },
    onUse: use,
    drag: () => (tool === "brush" || tool === "region" ? stroke : null),
  }));
  const tokens = () => edit?.tokens;

  function chooseTool(name) {
    tool = name;
    for (const [other, button] of Object.entries(buttons)) button.setAttribute("aria-pressed", other === name);
    if (name !== "region") region = null;
    showNote();
    for (const view of views) view.canvas.style.touchAction = name === "brush" || name === "region" ? "none" : "";
    refresh();
  }

  function showNote() {
    const whole = app.about.scales ? " Scale (at the top) says whose tokens are edited. A token of a coarse scale reaches far, so the whole picture is decoded each time." : "";
    note.textContent = `${TOOLS[tool][2]}${whole}`;
  }

  function use(cell) {
    if (tool === "pipette") {
      code.value = app.codeAt(cell, edit.tokens);
      announce(`Code ${code.value}`);
      chooseTool("brush");
    } else {
      app.keep(cell);
      if (app.kept) code.value = app.codeAt(cell, edit.tokens);
    }
    refresh();
  }

  // Changes: each is a list of [place, before, after], so that it can be undone.

  const placeOf = (cell) => app.placeOf(cell);

  function apply(pairs, { merge = false } = {}) {
    const began = performance.now();
    const change = pairs.filter(([place, value]) => edit.tokens[place] !== value).map(([place, value]) => [place, edit.tokens[place], value]);
    if (!change.length) return;
    for (const [place, , value] of change) edit.tokens[place] = value;
    if (merge && edit.done.length) edit.done.at(-1).push(...change);
    else edit.done.push(change);
    edit.undone = [];
    decode(began);
  }

  function step(from, to) {
    const change = edit?.[from].pop();
    if (!change) return;
    const began = performance.now();
    const order = from === "done" ? [...change].reverse() : change;
    for (const [place, before, after] of order) edit.tokens[place] = from === "done" ? before : after;
    edit[to].push(change);
    announce(from === "done" ? "Undone" : "Done again");
    decode(began);
  }

  /** Give a code to the chosen token, or to all tokens of the region. */
  function take(value) {
    problem.hidden = true;
    if (!Number.isInteger(value) || value < 0 || value >= app.about.codes) {
      return complain(`Codes of ${app.about.name} are whole numbers from 0 to ${number(app.about.codes - 1)}.`);
    }
    code.value = value;
    const cells = region ? cellsOf(region) : app.kept ? [app.kept] : [];
    if (!cells.length) return complain("Choose a token or a region first.");
    apply(cells.map((cell) => [placeOf(cell), value]));
  }

  function paint(cell, first) {
    const value = Number(code.value);
    if (!Number.isInteger(value) || value < 0 || value >= app.about.codes) return take(value);
    apply([[placeOf(cell), value]], { merge: !first });
  }

  function frame(cell, event) {
    if (event?.shiftKey && anchor) return stretch(cell);
    anchor = cell;
    region = { top: cell.row, left: cell.column, rows: 1, columns: 1 };
    refresh();
  }

  function stretch(cell) {
    if (tool !== "region" || !anchor) return;
    const [top, left] = [Math.min(anchor.row, cell.row), Math.min(anchor.column, cell.column)];
    region = { top, left, rows: Math.abs(anchor.row - cell.row) + 1, columns: Math.abs(anchor.column - cell.column) + 1 };
    refresh();
  }

  function announceRegion() {
    if (tool === "region" && region) announce(`Region of ${region.rows} by ${region.columns} tokens`);
  }

  function cellsOf({ top, left, rows, columns, level }) {
    return Array.from({ length: rows * columns }, (_, i) => ({ row: top + Math.floor(i / columns), column: left + (i % columns), level }));
  }

  const target = () => region ?? (app.kept ? { top: app.kept.row, left: app.kept.column, rows: 1, columns: 1 } : null);

  function copy() {
    problem.hidden = true;
    const from = target();
    if (!from) return complain("Choose a token or a region to copy first.");
    clipboard = { ...from, from: edit, model: app.model, level: app.level, values: cellsOf(from).map((cell) => edit.tokens[placeOf(cell)]) };
    announce(`${clipboard.values.length} tokens copied`);
    refresh();
  }

  /** Pairs that put the copied tokens with their corner at a place; tokens beyond the edge are left out. */
  function pasted(at) {
    const { rows, columns } = app.grid;
    return clipboard.values.map((value, i) => [{ row: at.top + Math.floor(i / clipboard.columns), column: at.left + (i % clipboard.columns) }, value])
      .filter(([cell]) => cell.row < rows && cell.column < columns)
      .map(([cell, value]) => [placeOf(cell), value]);
  }

  function paste() {
    problem.hidden = true;
    const at = target();
    if (!clipboard) return complain("Copy a token or a region first.");
    if (clipboard.model !== app.model) return complain("The copied tokens are of another model, whose codes mean other things.");
    if (app.stageOf(clipboard.level) !== app.stageOf()) return complain(OTHER_STAGE);
    if (!at) return complain("Choose the place to paste at: a token, or the corner of a region.");
    apply(pasted(at));
  }

  function swap() {
    problem.hidden = true;
    const at = target();
    if (!clipboard || clipboard.from !== edit) return complain("Copy a region of this picture first, then choose where to swap it.");
    if (!at) return complain("Choose the place to swap with: a token, or the corner of a region.");
    if (app.stageOf(clipboard.level) !== app.stageOf()) return complain(OTHER_STAGE);
    const other = { ...clipboard, top: at.top, left: at.left, level: app.level };
    if (other.top + other.rows > app.grid.rows || other.left + other.columns > app.grid.columns) {
      return complain("There is no room for the copied region here: choose a place further from the edge.");
    }
    const [here, there] = [cellsOf(clipboard).map(placeOf), cellsOf(other).map(placeOf)];
    if (here.some((place) => there.includes(place))) return complain("The two regions overlap: choose a place further away.");
    const values = [here, there].map((places) => places.map((place) => edit.tokens[place]));
    apply([...here.map((place, i) => [place, values[1][i]]), ...there.map((place, i) => [place, values[0][i]])]);
  }

  // Decoding: one request at a time, always of the latest tokens.

  function decode(began) {
    app.edits += 1;
    edit.wanted = began;
    if (!edit.busy) decodeLatest(edit); // sends the tokens before anything is drawn
    refresh();
  }

  async function decodeLatest(state) {
    state.busy = true;
    try {
      while (state.wanted) {
        const start = state.wanted;
        state.wanted = 0;
        const sent = Uint32Array.from(state.tokens);
        const body = { ...requestOf(state, sent), changed: rectangleOf(state, sent) };
        const packet = await withProgress(postPacket("/api/decode", body));
        state.shown = sent;
        putPixels(state, packet);
        if (state === edit) {
          views[0].drawNow();
          const took = performance.now() - start;
          time.textContent = `decoded in ${Math.round(took)} ms`;
          section.dataset.milliseconds = took;
          section.dataset.decoded = Number(section.dataset.decoded ?? 0) + 1;
          requestAnimationFrame(showDifference);
        }
      }
      problem.hidden = true;
    } catch (error) {
      complain(error.message);
    } finally {
      state.busy = false;
    }
  }

  const requestOf = ({ model, rows, columns }, values) => ({ model, shape: [rows, columns], tokens: Array.from(values) });

  /** The smallest rectangle of the finest grid with all tokens that differ from those of the picture; null if none does. */
  function rectangleOf({ shown, rows, columns, grids }, values) {
    let [top, left, bottom, right] = [Infinity, Infinity, 0, 0];
    for (const grid of grids) {
      const before = codesIn(grid, shown);
      const [down, across] = [rows / grid.rows, columns / grid.columns];
      codesIn(grid, values).forEach((value, i) => {
        if (value === before[i]) return;
        const [row, column] = [Math.floor(i / grid.columns), i % grid.columns];
        [top, left] = [Math.min(top, Math.floor(row * down)), Math.min(left, Math.floor(column * across))];
        [bottom, right] = [Math.max(bottom, Math.ceil((row + 1) * down)), Math.max(right, Math.ceil((column + 1) * across))];
      });
    }
    return bottom ? [top, left, Math.min(bottom, rows), Math.min(right, columns)] : null;
  }

  /** Put the pixels that were decoded again in their place. */
  function putPixels({ pixels, picture }, packet) {
    const { top, left } = packet.meta;
    const [height, width] = packet.shapes.pixels;
    fill(picture, packet.pixels, width, left, top);
    for (let row = 0; row < height; row++) {
      pixels.set(packet.pixels.subarray(4 * width * row, 4 * width * (row + 1)), 4 * ((top + row) * picture.width + left));
    }
  }

  /** The picture in grey, with what differs from the one before all edits in orange. */
  function showDifference() {
    if (!app.encoding) return;
    const { width, height } = app.encoding;
    const [a, b] = [app.encoding.decoded, edit.pixels];
    const pixels = new Uint8ClampedArray(width * height * 4);
    let changed = 0;
    for (let i = 0; i < pixels.length; i += 4) {
      const apart = Math.max(Math.abs(a[i] - b[i]), Math.abs(a[i + 1] - b[i + 1]), Math.abs(a[i + 2] - b[i + 2]));
      const grey = 0.45 * (0.3 * b[i] + 0.59 * b[i + 1] + 0.11 * b[i + 2]);
      const share = Math.min(1, apart / 64);
      const colour = share > 0.02 ? errorColour(0.35 + 0.65 * share) : [0, 0, 0];
      for (let c = 0; c < 3; c++) pixels[i + c] = grey + (colour[c] - grey) * Math.min(1, 3 * share);
      pixels[i + 3] = 255;
      changed += apart > 2;
    }
    edit.difference = canvasOf(pixels, width, height);
    changes.textContent = `${number((100 * changed) / (width * height), 1)}% of the pixels`;
    views[2].draw();
  }

  // Files

  async function savePicture() {
    if (!edit) return;
    download(await edit.picture.convertToBlob({ type: "image/png" }), `${baseName()}.png`);
  }

  async function saveTokens() {
    if (!edit) return;
    try {
      download(await postForBlob("/api/save-tokens", requestOf(edit, edit.tokens)), `${baseName()}-tokens.json`);
    } catch (error) {
      complain(error.message);
    }
  }

  async function loadTokens(event) {
    const [file] = event.target.files;
    event.target.value = "";
    if (!file) return;
    problem.hidden = true;
    try {
      const answer = await withProgress(postFile(`/api/token-file?model=${app.model}`, file));
      const packet = unpack(await answer.arrayBuffer());
      const { rows, columns } = packet.meta.grids.at(-1);
      if (rows !== app.encoding.rows || columns !== app.encoding.columns) {
        return complain(`${file.name} has ${columns} × ${rows} tokens, and this picture ${app.encoding.columns} × ${app.encoding.rows}: choose a picture and a size with as many.`);
      }
      apply(Array.from(packet.tokens, (value, place) => [place, value]));
    } catch (error) {
      complain(`${file.name}: ${error.reason ?? error.message}`);
    }
  }

  function baseName() {
    const picture = app.state.pictures.find(({ id }) => id === app.picture);
    return (picture?.name ?? "picture").replace(/\.\w+$/, "").replace(/[^\w-]+/g, "-");
  }

  function complain(text) {
    problem.textContent = text;
    problem.hidden = false;
  }

  // Drawing

  function refresh() {
    if (!edit || !app.encoding) return;
    edit.map = tokenMap(app.encoding, edit.tokens, app.level, kind.value, app.codebook);
    undoButton.disabled = !edit.done.length;
    redoButton.disabled = !edit.undone.length;
    pasteButton.disabled = !clipboard;
    swapButton.disabled = !clipboard || clipboard.from !== edit;
    if (!section.hidden) {
      app.edited = edit.tokens;
      app.emit("look"); // which draws
    }
  }

  function chosen(context, view) {
    const marks = [];
    if (app.kept) marks.push([app.kept]);
    if (region) marks.push(cellsOf(region));
    for (const cells of marks) {
      view.outline(cells, style("--paper"), 4);
      view.outline(cells, style("--accent"), 2);
    }
  }

  function openEdit() {
    const { encoding } = app;
    if (!encoding) return;
    const key = `${app.model}/${app.picture}/${app.size}`;
    if (!states.has(key)) {
      const picture = canvasOf(encoding.decoded, encoding.width, encoding.height);
      const { rows, columns, grids } = encoding;
      states.set(key, {
        model: app.model, rows, columns, grids, picture, done: [], undone: [],
        tokens: Uint32Array.from(encoding.tokens),
        shown: encoding.tokens, // those that `picture` and `pixels` show
        pixels: Uint8Array.from(encoding.decoded),
      });
    }
    edit = states.get(key);
    region = anchor = null;
    const [size, grid] = [[encoding.width, encoding.height], [app.grid.rows, app.grid.columns]];
    small.element.querySelector("b").textContent = app.levels > 1 ? `Tokens on ${app.levelWord} ${app.level + 1}` : "Tokens";
    showNote();
    views[0].show(size, grid, [source(() => edit.picture), chosen]);
    views[1].show(size, grid, [source(() => edit.map), sameCode(tokens, { dim: false }), numbersOf(tokens), chosen]);
    views[2].show(size, grid, [source(() => edit.difference), chosen]);
    time.textContent = "";
    code.max = app.about.codes - 1;
    showDifference();
    refresh();
  }

  addEventListener("keydown", (event) => {
    if (section.hidden || event.target.matches("input, select")) return;
    const key = event.key.toLowerCase();
    if ((event.ctrlKey || event.metaKey) && (key === "z" || key === "y")) {
      event.preventDefault();
      if (key === "y" || event.shiftKey) step("undone", "done");
      else step("done", "undone");
    } else if (!event.ctrlKey && !event.metaKey && !event.altKey) {
      const name = Object.keys(TOOLS).find((other) => TOOLS[other][1] === key);
      if (name) chooseTool(name);
    }
  });
  kind.addEventListener("change", refresh);
  app.on("encoding level", openEdit);
  app.on("codebook", refresh);
  app.on("choice", () => zoom.reset());
  app.on("look", () => views.forEach((view) => view.draw()));
  app.on("problem", () => complain(app.problem.message));
  chooseTool("token");
  return { take, show: refresh };
}
