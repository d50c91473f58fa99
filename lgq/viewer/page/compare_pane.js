// Compare: several models on one picture, with one zoom, errors on one scale, and their use of codes.

import { getJson, waitForPacket, withProgress } from "./api.js";
import { app, codebookOf, encode, errorMap } from "./app.js";
import { usageChart } from "./charts.js";
import { make, number, style } from "./elements.js";
import { figure, source } from "./image_pane.js";
import { Viewport, Zoom } from "./viewport.js";

const SPARE = ["#d55e00", "#009e73", "#cc79a7", "#999999"];
const DARK = matchMedia("(prefers-color-scheme: dark)");

export function comparePane(section) {
  const { models } = app.state;
  if (models.length < 2) {
    section.append(make("p", { class: "note", text: "Name two or more tokenizers to compare them on one picture: lgq view RUN_A RUN_B" }));
    return {};
  }
  const zoom = new Zoom();
  const scale = make("span");
  const problem = make("p", { class: "problem", role: "alert", hidden: true });
  const original = figure("Original", "Original picture", make("span"));
  const columns = models.map((about) => ({
    about,
    picture: figure(about.name, `Reconstruction by ${about.name}`, make("span", { text: [about.quantizer, `${number(about.codes)} codes`, about.scales ? `${about.scales} scales` : about.stages > 1 ? `${about.stages} stages` : null, `f = ${about.factor}`].filter(Boolean).join(", ") })),
    error: figure("Error per token", `Errors of ${about.name}`, make("span")),
    lpips: make("span"),
  }));
  const use = figure("Use of codes", "How often the codes of each model occur", make("span"));
  use.canvas.className = "view chart tall";
  use.canvas.setAttribute("role", "img");
  const legend = make("div", { class: "legend" });
  const cards = columns.map(({ picture, error, lpips }) => make("div", { class: "card" }, picture.element, error.element, make("p", { class: "hint measures" }, lpips)));
  section.append(problem, make("div", { class: "columns" }, make("div", { class: "card" }, original.element, use.element, legend), ...cards),
    make("div", { class: "legend" }, make("span", { text: "error 0" }), make("div", { class: "ramp error" }), scale));

  const all = [original, ...columns.flatMap(({ picture, error }) => [picture, error])];
  const views = new Map(all.map(({ canvas }) => [canvas, new Viewport(canvas, zoom, {
    onCell: (cell) => { for (const view of views.values()) if (view.canvas !== canvas) view.follow(cell, views.get(canvas).grid); },
  })]));
  let wanted = "";

  async function show() {
    const key = `${app.picture}/${app.size}`;
    if (section.hidden || key === wanted) return;
    wanted = key;
    problem.hidden = true;
    try {
      const encodings = await withProgress(Promise.all(models.map((_, i) => encode(i, app.picture, app.size))));
      if (key !== wanted) return;
      const most = Math.max(1, ...encodings.map(({ errors }) => Math.max(...errors)));
      scale.textContent = `${number(most)} of 255, for all`;
      const [first] = encodings;
      const size = [first.width, first.height];
      views.get(original.canvas).show(size, [first.rows, first.columns], [source(() => first.original)]);
      original.element.querySelector("span").textContent = `${first.width} × ${first.height} pixels`;
      columns.forEach(({ picture, error, lpips }, i) => {
        const encoding = encodings[i];
        const grid = [encoding.rows, encoding.columns];
        const map = errorMap(encoding, encoding.errors, most);
        views.get(picture.canvas).show(size, grid, [source(() => encoding.reconstruction)]);
        views.get(error.canvas).show(size, grid, [source(() => map)]);
        error.element.querySelector("span").textContent = `PSNR ${number(encoding.psnr, 2)} dB`;
        measure(encoding, lpips, key);
      });
    } catch (failure) {
      wanted = "";
      problem.textContent = failure.message;
      problem.hidden = false;
    }
  }

  async function measure({ query, grids }, place, key) {
    place.textContent = "";
    try {
      const { lpips } = await getJson(`/api/lpips?${query}&levels=${grids.length}`);
      if (key === wanted && lpips !== null) place.textContent = `LPIPS ${number(lpips, 3)}`;
    } catch { /* the Image pane says why there is no LPIPS */ }
  }

  const curves = [];

  async function loadUse() {
    if (curves.length || section.hidden) return;
    const books = models.map((_, i) => waitForPacket(`/api/codebook?model=${i}&stage=0`, () => {}).catch(() => null));
    curves.push(...(await withProgress(Promise.all(books))).map((book, i) => book && { counts: codebookOf(book).counts, colours: book.meta.colour, label: models[i].stages > 1 ? `${models[i].name}, stage 1` : models[i].name }).filter(Boolean));
    drawUse();
  }

  function drawUse() {
    if (!curves.length || section.hidden) return;
    const own = curves.map(({ colours }) => colours[Number(DARK.matches)]);
    const spare = SPARE.filter((colour) => !own.includes(colour));
    // Of tokenizers with the same quantizer, the first has its colour.
    const shown = curves.map((curve, i) => ({ ...curve, colour: own.indexOf(own[i]) === i ? own[i] : spare.shift() ?? style("--ink") }));
    usageChart(use.canvas, shown);
    legend.replaceChildren(...shown.map(({ label, colour }) => {
      const key = make("i", { class: "key" });
      key.style.background = colour;
      return make("span", {}, key, label);
    }));
  }

  new ResizeObserver(drawUse).observe(use.canvas);
  DARK.addEventListener("change", drawUse);
  app.on("encoding", show);
  app.on("choice", () => zoom.reset());
  return { show: () => { show(); loadUse(); } };
}
