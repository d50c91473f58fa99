// The panel about one code: number, use, norm, typical patches, nearest codes.

import { app, codesIn, distancesTo } from "./app.js";
import { announce, drawPatch, make, number } from "./elements.js";

const NEAREST = 12;

/** onNearest(code): a nearest code is clicked. */
export function tokenPanel(panel, onNearest) {
  const title = make("h2");
  const where = make("p", { class: "where" });
  const facts = make("dl", { class: "facts" });
  const patches = make("div", { class: "patches" });
  const nearest = make("div", { class: "nearest" });
  const nearestTitle = make("h3", { text: "Nearest codes" });
  const problem = make("p", { class: "problem", role: "alert", hidden: true });
  const bar = make("progress", { id: "study", "aria-label": "Studying the codes" });
  const studied = make("div", { class: "studied", hidden: true }, make("label", { class: "hint", for: "study" }), bar);
  const patchesTitle = make("h3", { text: "Typical patches" });
  const rest = make("p", { class: "hint", hidden: true });
  panel.append(title, where, facts, studied, problem, patchesTitle, patches, rest, nearestTitle, nearest);
  let shown = null;

  function update() {
    const cell = app.cell ?? app.kept;
    const code = cell && app.encoding ? app.codeAt(cell) : app.codes.size === 1 ? [...app.codes][0] : null;
    const place = cell && app.encoding ? app.placeOf(cell) : "";
    const key = `${app.model}/${app.level}/${code}/${place}/${Boolean(app.codebook)}/${app.codes.size}/${app.edited ? app.edits : ""}`;
    if (key === shown) return;
    shown = key;
    if (code === null) return showNothing();
    title.textContent = `Code ${number(code)}`;
    const level = cell?.level ?? app.level;
    const of = app.levels > 1 ? ` of ${app.levelWord} ${level + 1}` : "";
    const spot = cell ? `Row ${cell.row + 1}, column ${cell.column + 1}${of}` : "";
    where.textContent = [spot, app.encoding ? countHere(code, level) : ""].filter(Boolean).map((words) => `${words}.`).join(" ");
    showFacts(code, level);
    showPatches(code);
    showNearest(code);
    if (cell) announce(`${spot}: code ${code}`);
  }

  /** How many tokens of the picture have a code: on a level, and on all that share its codebook. */
  function countHere(code, level) {
    const { grids } = app.encoding;
    const counts = grids.map((grid, i) => (app.stageOf(i) === app.stageOf(level) ? codesIn(grid, app.tokens).filter((other) => other === code).length : 0));
    const { rows, columns } = grids[level];
    const here = `${number(counts[level])} of ${number(rows * columns)} tokens ${app.levels > 1 ? `of this ${app.levelWord}` : "of this picture"} ${counts[level] === 1 ? "has" : "have"} this code`;
    const all = counts.reduce((sum, count) => sum + count, 0);
    return app.about.scales ? `${here}, ${number(all)} of ${number(app.tokens.length)} over all scales` : here;
  }

  function showNothing() {
    title.textContent = "Tokens";
    const marked = app.codes.size > 1 ? `${number(app.codes.size)} codes are marked. ` : "";
    where.textContent = `${marked}Point at a token, or go to one with the arrow keys: all places of its code light up.`;
    facts.replaceChildren();
    patches.replaceChildren();
    nearest.replaceChildren();
    const about = app.about;
    showList({
      Tokenizer: about.name,
      Quantizer: about.quantizer,
      Codes: number(about.codes) + (about.stages > 1 ? ` in each of ${about.stages} stages` : about.scales ? `, shared by ${about.scales} scales` : ""),
      Token: `${about.factor} × ${about.factor} pixels${about.scales ? " on the finest scale" : ""}`,
      Parameters: `${number(about.parameters / 1e6, 1)} million`,
      ...(app.codebook?.counts ? {
        "In use": `${number((100 * (app.codebook.size - app.codebook.dead)) / app.codebook.size, 1)}% of the codes, over ${number(app.codebook.images)} images`,
      } : {}),
    });
    patchesTitle.hidden = nearestTitle.hidden = patches.hidden = nearest.hidden = rest.hidden = true;
  }

  function showList(entries) {
    facts.replaceChildren(...Object.entries(entries).flatMap(([name, value]) => [make("dt", { text: name }), make("dd", { text: value })]));
  }

  function showFacts(code, level) {
    const book = app.codebook;
    patchesTitle.hidden = nearestTitle.hidden = patches.hidden = nearest.hidden = false;
    rest.hidden = !app.about.scales && level === 0;
    rest.textContent = app.about.scales
      ? "Its cells on all scales. A code is added to what coarser scales give: its patches show where it occurs, not what it draws."
      : "A code is added to what earlier stages give: its patches show where it occurs, not what it draws.";
    if (!book?.counts) return showList({ Use: "being counted …" });
    const count = book.counts[code];
    const share = count ? `${number(count)} tokens, ${number((100 * count) / book.tokens, 2)}%` : "never: a dead code";
    const here = book.levels.length > 1 ? { [`On scale ${level + 1}`]: `${number(book.levels[level].counts[code])} tokens` } : {};
    showList({ Use: share, ...here, Rank: `${number(book.ranks[code])} of ${number(book.size)}`, Norm: number(book.norms[code], 3) });
  }

  async function showPatches(code) {
    const found = await app.typicalOf(code);
    if (!found || !shown?.startsWith(`${app.model}/${app.level}/${code}/`)) return;
    const [count, side] = found.shapes.patches;
    patches.replaceChildren(...Array.from({ length: count }, (_, i) => {
      const canvas = make("canvas");
      drawPatch(canvas, found.patches, side, i);
      return canvas;
    }));
    if (!count) patches.replaceChildren(make("p", { class: "hint", text: "No patch has this code." }));
  }

  function showNearest(code) {
    const book = app.codebook;
    if (!book?.codes) return nearest.replaceChildren();
    const distances = distancesTo(book, code);
    const order = [...distances.keys()].filter((other) => other !== code)
      .sort((a, b) => distances[a] - distances[b] || a - b).slice(0, NEAREST);
    nearest.replaceChildren(...order.map((other) => {
      const canvas = make("canvas", { "aria-hidden": "true" });
      drawPatch(canvas, book.means, book.side, other);
      return make("button", {
        class: book.counts[other] ? null : "dead",
        title: `distance ${number(distances[other], 3)}, ${number(book.counts[other])} tokens`,
        "aria-label": `Code ${other}, distance ${number(distances[other], 3)}`,
        onclick: () => onNearest(other),
      }, canvas, String(other));
    }));
  }

  function showProgress() {
    const studying = !app.codebook;
    studied.hidden = !studying;
    const { done, total } = app.progress ?? { done: 0, total: 1 };
    Object.assign(bar, { max: Math.max(1, total), value: done });
    studied.firstChild.textContent = `Collecting the patches of each code: ${number(done)} of ${number(total)} images`;
    const trouble = app.codebook?.problem;
    problem.hidden = !trouble;
    if (trouble) problem.textContent = trouble.message;
  }

  app.on("look level encoding codebook", update);
  app.on("codebook progress", showProgress);
  return update;
}
