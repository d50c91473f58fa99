// Image: original and reconstruction with a slider between them, tokens, and the error of each token.

import { getJson, isSaved, withProgress } from "./api.js";
import { app, codesIn, decodeFirst, errorMap, tokenMap } from "./app.js";
import { make, number, style } from "./elements.js";
import { Viewport, Zoom } from "./viewport.js";

const PAUSE = 250; // milliseconds that a picture stays before LPIPS, which takes long, is asked for

/** A figure with a caption and a canvas. */
export function figure(title, label, ...extras) {
  const canvas = make("canvas", { class: "view", "aria-label": label });
  const caption = make("figcaption", {}, make("b", { text: title }), ...extras);
  return { canvas, element: make("figure", {}, caption, canvas) };
}

export function source(picture) {
  return (context, view) => {
    const drawn = picture();
    if (!drawn) return;
    const smooth = context.imageSmoothingEnabled;
    if (drawn.width < view.size[0]) context.imageSmoothingEnabled = false; // a map has one pixel per token
    context.drawImage(drawn, 0, 0, ...view.size);
    context.imageSmoothingEnabled = smooth;
  };
}

/** Numbers of the tokens of the chosen level, where there is room for them. */
export function numbersOf(tokens) {
  return (context, view) => {
    if (!view.hasRoom || !app.encoding || !tokens()) return;
    const [width, height] = view.cellSize;
    const [rows, columns] = view.grid;
    const { scale, left, top } = view.place;
    const codes = codesIn(app.grid, tokens());
    context.font = `${Math.min(width, height) * 0.27}px system-ui, sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.lineWidth = Math.min(width, height) * 0.06;
    context.strokeStyle = "#000a";
    context.fillStyle = "#fff";
    for (let row = Math.max(0, Math.floor(-top / scale / height)); row < rows; row++) {
      if (row * height * scale + top > view.canvas.height) break;
      for (let column = Math.max(0, Math.floor(-left / scale / width)); column < columns; column++) {
        if (column * width * scale + left > view.canvas.width) break;
        const text = String(codes[row * columns + column]);
        const [x, y] = [(column + 0.5) * width, (row + 0.5) * height];
        context.strokeText(text, x, y);
        context.fillText(text, x, y);
      }
    }
  };
}

/** Outline the places of the codes that are looked at, and dim everything else; `level` by default the chosen one. */
export function sameCode(tokens, { dim = true, level = () => app.level } = {}) {
  return (context, view) => {
    const grid = app.encoding?.grids[level()];
    if (!grid || !tokens()) return;
    const cell = app.cell ?? app.kept;
    const codes = cell ? new Set([app.codeAt(cell, tokens())]) : app.codes;
    if (!codes.size) return;
    const cells = [];
    // The same number is another code in another codebook.
    if (app.stageOf(cell?.level) === app.stageOf(level())) {
      codesIn(grid, tokens()).forEach((code, i) => codes.has(code) && cells.push({ row: Math.floor(i / grid.columns), column: i % grid.columns }));
    }
    if (dim) {
      const [width, height] = view.cellSize;
      context.beginPath();
      context.rect(0, 0, ...view.size);
      for (const { row, column } of cells) context.rect(column * width, row * height, width, height);
      context.fillStyle = "#0006";
      context.fill("evenodd");
    }
    view.outline(cells, style("--accent"), dim ? 1 : 1.5);
  };
}

export function imagePane(section) {
  const zoom = new Zoom();
  const slider = make("input", { type: "range", min: 0, max: 100, value: 50, "aria-label": "Share of the picture that shows the original" });
  const kind = make("select", { "aria-label": "Colours of tokens" },
    make("option", { value: "mean", text: "mean colour" }), make("option", { value: "code", text: "colour per code" }));
  const big = figure("Original and reconstruction", "Original on the left, reconstruction on the right", make("span", { class: "size" }));
  const small = figure("Tokens", "Map of tokens", kind);
  const errors = figure("Error per token", "Map of errors", make("span"));
  const [low, high] = [make("span", { text: "0" }), make("span")];
  errors.element.append(make("div", { class: "legend" }, low, make("div", { class: "ramp error" }), high));
  const [psnr, lpips, bits, kinds] = [make("dd"), make("dd"), make("dd"), make("dd")];
  const problem = make("p", { class: "problem", role: "alert", hidden: true });
  const named = (title, value) => make("div", {}, make("dt", { text: title }), value);
  const measures = make("dl", { class: "numbers" }, named("PSNR", psnr), named("LPIPS", lpips), named("Bits per pixel", bits), named("Different codes", kinds));
  big.element.append(slider, make("div", { class: "ends" }, make("span", { text: "original" }), make("span", { text: "reconstruction" })));
  const first = make("input", { type: "range", min: 1, step: 1 });
  const firstText = make("output", { class: "hint" });
  const progressive = make("div", { class: "progressive", hidden: true }, firstText, first);
  const strip = make("div", { class: "grids", role: "group", hidden: true });
  section.append(problem, strip, progressive, make("div", { class: "views" }, make("div", {}, big.element, measures), make("div", { class: "side" }, small.element, errors.element)));

  const views = [big, small, errors].map(({ canvas }) => viewOf(canvas, () => app.level));
  let gridViews = []; // one for each stage or scale, where there are several
  const tokens = () => app.encoding?.tokens;
  let [maps, shown] = [{}, null];

  function viewOf(canvas, level) {
    const view = new Viewport(canvas, zoom, {
      onCell: (cell) => {
        for (const other of [...views, ...gridViews]) if (other !== view) other.follow(cell, view.grid);
        app.look(cell && { ...cell, level: level() });
      },
      onUse: (cell) => {
        if (level() !== app.level) app.chooseLevel(level());
        app.keep({ ...cell, level: level() });
      },
    });
    return view;
  }

  /** One small map for each stage or scale; they are made again where another model has another number. */
  function showGrids() {
    const { grids } = app.encoding;
    strip.hidden = grids.length === 1;
    if (strip.hidden) gridViews = [];
    else if (gridViews.length !== grids.length) {
      const figures = grids.map(() => figure("", "", make("span")));
      strip.replaceChildren(...figures.map(({ element }) => element));
      gridViews = figures.map(({ canvas }, level) => viewOf(canvas, () => level));
    }
    strip.setAttribute("aria-label", `Tokens of each ${app.levelWord}`);
    gridViews.forEach((view, level) => {
      const { rows, columns } = grids[level];
      const map = tokenMap(app.encoding, app.encoding.tokens, level, kind.value, app.codebook);
      const caption = view.canvas.parentElement.querySelector("figcaption");
      caption.firstChild.textContent = `${app.levelWord[0].toUpperCase()}${app.levelWord.slice(1)} ${level + 1}`;
      caption.lastChild.textContent = `${columns} × ${rows}`;
      view.canvas.setAttribute("aria-label", `Tokens of ${app.levelWord} ${level + 1}, ${columns} by ${rows}`);
      view.canvas.parentElement.classList.toggle("chosen", level === app.level);
      view.canvas.style.aspectRatio = `${app.encoding.width} / ${app.encoding.height}`;
      view.show([app.encoding.width, app.encoding.height], [rows, columns], [source(() => map), sameCode(tokens, { level: () => level })]);
    });
  }

  function split(context, view) {
    const { encoding } = app;
    if (!encoding) return;
    const [width, height] = view.size;
    const edge = width * (1 - slider.value / 100);
    context.drawImage(encoding.original, 0, 0, width, height);
    context.save();
    context.beginPath();
    context.rect(width - edge, 0, edge, height);
    context.clip();
    context.drawImage((shown ?? encoding).reconstruction, 0, 0, width, height);
    context.restore();
    context.fillStyle = "#fff";
    context.fillRect(width - edge - 1 / view.place.scale, 0, 2 / view.place.scale, height);
  }

  function show() {
    const { encoding } = app;
    problem.hidden = true;
    if (!encoding) return;
    const most = Math.max(...shown.errors, 1);
    maps = { error: errorMap(encoding, shown.errors, most), tokens: tokenMap(encoding, encoding.tokens, app.level, kind.value, app.codebook) };
    const [size, grid] = [[encoding.width, encoding.height], [app.grid.rows, app.grid.columns]];
    showGrids();
    views[0].show(size, grid, [split, sameCode(tokens)]);
    views[1].show(size, grid, [source(() => maps.tokens), sameCode(tokens), numbersOf(tokens)]);
    views[2].show(size, grid, [source(() => maps.error), sameCode(tokens)]);
    const of = encoding.grids.length > 1 ? ` on ${app.levelWord} ${app.level + 1}` : "";
    big.element.querySelector("figcaption span").textContent = `${encoding.width} × ${encoding.height} pixels, ${app.grid.columns} × ${app.grid.rows} tokens${of}`;
    small.element.querySelector("b").textContent = `Tokens${of}`;
    errors.element.querySelector("b").textContent = app.about.scales ? "Error per token of the finest scale" : "Error per token";
    high.textContent = `${number(most, 0)} of 255`;
  }

  async function measure() {
    const { encoding, about } = app;
    const decoded = shown;
    const used = encoding.grids.slice(0, Number(first.value));
    const codes = used.map((grid) => codesIn(grid, encoding.tokens));
    psnr.textContent = `${number(decoded.psnr, 2)} dB`;
    const places = codes.reduce((sum, { length }) => sum + length, 0);
    bits.textContent = number((places * Math.log2(about.codes)) / (encoding.width * encoding.height), 3);
    kinds.textContent = number(new Set(codes.flatMap((level, i) => Array.from(level, (code) => app.stageOf(i) * about.codes + code))).size);
    lpips.className = "";
    lpips.textContent = "…";
    await new Promise((resolve) => setTimeout(resolve, PAUSE));
    if (decoded !== shown) return;
    try {
      const { lpips: value, reason } = await getJson(`/api/lpips?${encoding.query}&levels=${used.length}`);
      if (decoded === shown) showLpips(value, reason);
    } catch (error) {
      if (decoded === shown) showLpips(null, isSaved ? "not in a saved page; lgq view measures it" : error.message);
    }
  }

  /** Show what the first stages or scales decode to, as many as the slider says. */
  async function showFirst() {
    const { encoding } = app;
    if (!encoding) return;
    const [count, all] = [Number(first.value), encoding.grids.length];
    const words = `${app.levelWord}${count > 1 ? "s" : ""} 1${count > 1 ? ` to ${count}` : ""}`;
    firstText.textContent = count === all ? `Decoded from all ${all} ${app.levelWord}s` : `Decoded from ${words} of ${all}`;
    first.setAttribute("aria-valuetext", firstText.textContent);
    try {
      const decoded = await withProgress(decodeFirst(encoding, count));
      if (encoding !== app.encoding || count !== Number(first.value)) return;
      shown = decoded;
      show();
      measure();
    } catch (error) {
      if (encoding !== app.encoding) return;
      show();
      problem.textContent = error.message;
      problem.hidden = false;
    }
  }

  function open() {
    const all = app.encoding.grids.length;
    progressive.hidden = all === 1;
    // Another picture is decoded from as many; another model, and the first picture, from all.
    const before = Number(first.max) === all ? Math.min(Number(first.value), all) : all;
    Object.assign(first, { max: all, value: before });
    first.setAttribute("aria-label", `Number of ${app.levelWord}s that are decoded`);
    shown = app.encoding;
    showFirst();
  }

  function showLpips(value, reason) {
    lpips.className = value === null ? "words" : "";
    lpips.textContent = value === null ? reason : number(value, 3);
  }

  slider.addEventListener("input", () => views[0].draw());
  kind.addEventListener("change", show);
  first.addEventListener("input", showFirst);
  app.on("encoding", open);
  app.on("level codebook", show);
  app.on("choice", () => zoom.reset());
  app.on("look", () => [...views, ...gridViews].forEach((view) => view.draw()));
  app.on("problem", () => { problem.hidden = false; problem.textContent = app.problem.message; });
  return { show: () => [...views, ...gridViews].forEach((view) => view.draw()) };
}
