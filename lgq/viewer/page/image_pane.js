// Image: original and reconstruction with a slider between them, tokens, and the error of each token.

import { getJson, isSaved } from "./api.js";
import { app, errorMap, tokenMap } from "./app.js";
import { make, number, style } from "./elements.js";
import { Viewport, Zoom } from "./viewport.js";

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

/** Numbers of tokens, where there is room for them. */
export function numbersOf(tokens) {
  return (context, view) => {
    if (!view.hasRoom || !tokens()) return;
    const [width, height] = view.cellSize;
    const [rows, columns] = view.grid;
    const { scale, left, top } = view.place;
    const stages = app.encoding.stages;
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
        const text = String(tokens()[(row * columns + column) * stages + app.stage]);
        const [x, y] = [(column + 0.5) * width, (row + 0.5) * height];
        context.strokeText(text, x, y);
        context.fillText(text, x, y);
      }
    }
  };
}

/** Outline the places of the codes that are looked at, and dim everything else. */
export function sameCode(tokens, { dim = true } = {}) {
  return (context, view) => {
    if (!app.encoding || !tokens()) return;
    const cell = app.cell ?? app.kept;
    const codes = cell ? new Set([app.codeAt(cell, tokens())]) : app.codes;
    if (!codes.size) return;
    const cells = [];
    const [rows, columns] = view.grid;
    const stages = app.encoding.stages;
    for (let i = 0; i < rows * columns; i++) {
      if (codes.has(tokens()[i * stages + app.stage])) cells.push({ row: Math.floor(i / columns), column: i % columns });
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
  section.append(problem, make("div", { class: "views" }, make("div", {}, big.element, measures), make("div", { class: "side" }, small.element, errors.element)));

  const views = [big, small, errors].map(({ canvas }) => new Viewport(canvas, zoom, {
    onCell: (cell) => { views.forEach((view) => view.canvas !== canvas && view.follow(cell)); app.look(cell); },
    onUse: (cell) => app.keep(cell),
  }));
  const tokens = () => app.encoding?.tokens;
  let maps = {};

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
    context.drawImage(encoding.reconstruction, 0, 0, width, height);
    context.restore();
    context.fillStyle = "#fff";
    context.fillRect(width - edge - 1 / view.place.scale, 0, 2 / view.place.scale, height);
  }

  function show() {
    const { encoding } = app;
    problem.hidden = true;
    if (!encoding) return;
    const most = Math.max(...encoding.errors, 1);
    maps = { error: errorMap(encoding, most), tokens: tokenMap(encoding, encoding.tokens, app.stage, kind.value, app.codebook) };
    const [size, grid] = [[encoding.width, encoding.height], [encoding.rows, encoding.columns]];
    views[0].show(size, grid, [split, sameCode(tokens)]);
    views[1].show(size, grid, [source(() => maps.tokens), sameCode(tokens), numbersOf(tokens)]);
    views[2].show(size, grid, [source(() => maps.error), sameCode(tokens)]);
    big.element.querySelector("figcaption span").textContent = `${encoding.width} × ${encoding.height} pixels, ${encoding.columns} × ${encoding.rows} tokens`;
    high.textContent = `${number(most, 0)} of 255`;
  }

  async function measure() {
    const { encoding, about } = app;
    psnr.textContent = `${number(encoding.psnr, 2)} dB`;
    const places = encoding.rows * encoding.columns * encoding.stages;
    bits.textContent = number((places * Math.log2(about.codes)) / (encoding.width * encoding.height), 3);
    kinds.textContent = number(new Set(encoding.tokens).size);
    lpips.className = "";
    lpips.textContent = "…";
    try {
      const { lpips: value, reason } = await getJson(`/api/lpips?model=${app.model}&picture=${app.picture}&size=${app.size}`);
      if (encoding === app.encoding) showLpips(value, reason);
    } catch (error) {
      if (encoding === app.encoding) showLpips(null, isSaved ? "not in a saved page; lgq view measures it" : error.message);
    }
  }

  function showLpips(value, reason) {
    lpips.className = value === null ? "words" : "";
    lpips.textContent = value === null ? reason : number(value, 3);
  }

  slider.addEventListener("input", () => views[0].draw());
  kind.addEventListener("change", show);
  app.on("encoding", () => { show(); measure(); });
  app.on("codebook", show);
  app.on("choice", () => zoom.reset());
  app.on("look", () => views.forEach((view) => view.draw()));
  app.on("problem", () => { problem.hidden = false; problem.textContent = app.problem.message; });
  return { show: () => views.forEach((view) => view.draw()) };
}
