// The page: chooses panes, pictures and models; everything else is in its own module.

import { isSaved, postFile, thumbnailPath, waitForJson, withProgress } from "./api.js";
import { app } from "./app.js";
import { codebookPane } from "./codebook_pane.js";
import { comparePane } from "./compare_pane.js";
import { editPane } from "./edit_pane.js";
import { make, number } from "./elements.js";
import { generatePane } from "./generate_pane.js";
import { imagePane } from "./image_pane.js";
import { tokenPanel } from "./token_panel.js";

const byId = (id) => document.getElementById(id);
const MAKERS = { image: imagePane, edit: editPane, codebook: codebookPane, compare: comparePane, generate: generatePane };
const panes = {};
let current = "image";

function openPane(name, { focus = false } = {}) {
  current = name;
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const chosen = tab.id === `tab-${name}`;
    tab.setAttribute("aria-selected", chosen);
    tab.tabIndex = chosen ? 0 : -1;
    if (chosen && focus) tab.focus();
    if (chosen) tab.scrollIntoView({ block: "nearest", inline: "nearest" });
    byId(tab.getAttribute("aria-controls")).hidden = !chosen;
  }
  app.edited = null;
  panes[name]?.show?.();
  app.emit("look");
  history.replaceState(null, "", `#${name}`);
}

function prepareTabs() {
  const tabs = [...document.querySelectorAll("[role=tab]")];
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => openPane(tab.getAttribute("aria-controls")));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = tabs.at((i + step) % tabs.length);
      openPane(next.getAttribute("aria-controls"), { focus: true });
    });
  });
}

function choosePicture(id, options = {}) {
  for (const button of byId("pictures").children) {
    const chosen = button.dataset.id === String(id);
    button.setAttribute("aria-checked", chosen);
    button.tabIndex = chosen ? 0 : -1;
    if (chosen && options.focus) button.focus();
  }
  return app.choose({ picture: id });
}

function addPicture({ id, name }) {
  const image = make("img", { src: thumbnailPath(id), alt: name, width: 54, height: 54 });
  const button = make("button", { role: "radio", "aria-checked": false, title: name, "data-id": id, onclick: () => choosePicture(id) }, image);
  button.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = [...byId("pictures").children];
    const next = all.at((all.indexOf(button) + step) % all.length);
    choosePicture(Number(next.dataset.id), { focus: true });
  });
  byId("pictures").append(button);
  return button;
}

async function openFile(file) {
  const problem = byId("open-problem");
  problem.hidden = true;
  if (!file) return;
  try {
    const headers = { "x-picture-name": encodeURIComponent(file.name || "pasted picture") };
    const answer = await withProgress(postFile("/api/pictures", file, headers));
    const picture = await answer.json();
    addPicture(picture).scrollIntoView({ block: "nearest", inline: "nearest" });
    choosePicture(picture.id);
  } catch (error) {
    problem.textContent = `${file.name || "The picture"}: ${error.reason ?? error.message}`;
    problem.hidden = false;
  }
}

function prepareFiles() {
  byId("open").addEventListener("change", (event) => { openFile(event.target.files[0]); event.target.value = ""; });
  addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])][0];
    if (file) openFile(file);
  });
  addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dropping"); });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
  addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dropping");
    openFile(event.dataTransfer.files[0]);
  });
}

function prepareChoices() {
  const { models, sizes } = app.state;
  const model = byId("model");
  models.forEach((about, i) => model.append(make("option", { value: i, text: `${about.name} (${about.quantizer}, ${number(about.codes)} codes)` })));
  model.addEventListener("change", () => { app.choose({ model: Number(model.value) }); showLevels(); });
  const size = byId("size");
  sizes.forEach((side) => size.append(make("option", { value: side, text: `${side} px` })));
  size.value = app.size;
  size.addEventListener("change", () => app.choose({ size: Number(size.value) }));
  const level = byId("level");
  level.addEventListener("change", () => app.chooseLevel(Number(level.value)));
  function showLevels() {
    const size = (grid) => (app.about.scales && grid ? `: ${grid.columns} × ${grid.rows}` : "");
    level.replaceChildren(...Array.from({ length: app.levels }, (_, i) => make("option", { value: i, text: `${i + 1}${size(app.encoding?.grids[i])}` })));
    level.value = app.level;
    byId("level-word").textContent = app.about.scales ? "Scale" : "Stage";
    byId("level-choice").hidden = app.levels === 1;
  }
  app.on("encoding level", showLevels);
  showLevels();
  byId("help-button").addEventListener("click", () => byId("help").showModal());
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !byId("help").open) { app.kept = null; app.mark([]); }
  });
}

async function begin() {
  try {
    app.state = await waitForJson("/api/state", ({ opening }) => {
      byId("opening").hidden = false;
      byId("opening-words").textContent = `${opening[0].toUpperCase()}${opening.slice(1)} …`;
    });
  } catch (error) {
    byId("open-problem").textContent = error.message;
    byId("open-problem").hidden = false;
    return;
  } finally {
    byId("opening").hidden = true;
  }
  document.title = `${app.state.models.map(({ name }) => name).join(", ")} · lgq view`;
  app.size = app.state.sizes.includes(256) ? 256 : app.state.sizes[0];
  app.level = app.firstLevel;
  for (const [name, makePane] of Object.entries(MAKERS)) {
    panes[name] = makePane(byId(name));
    if (!panes[name]) byId(`tab-${name}`).remove();
  }
  prepareTabs();
  const showToken = tokenPanel(byId("token"), (code) => (panes[current].take ? panes[current].take(code) : app.mark([code])));
  prepareChoices();
  if (isSaved) for (const id of ["open-label", "open-hint"]) byId(id).hidden = true;
  else prepareFiles();
  app.state.pictures.forEach(addPicture);
  const asked = location.hash.slice(1);
  openPane(panes[asked] ? asked : "image");
  app.loadCodebook();
  if (app.state.pictures.length) await choosePicture(app.state.pictures[0].id);
  showToken();
  document.documentElement.dataset.ready = "yes";
}

begin();
