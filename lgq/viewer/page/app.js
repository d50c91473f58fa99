// What all panes share: the chosen model and picture, its tokens, and the code that is looked at.

import { getPacket, isSaved, waitForPacket, withProgress } from "./api.js";
import { canvasOf, codeColour, errorColour } from "./elements.js";

class App extends EventTarget {
  state = null;
  model = 0;
  level = 0; // stage or scale that is looked at
  picture = 0;
  size = 256;
  encoding = null;
  edited = null; // tokens of the Edit pane, while it is open
  edits = 0; // so far, on all pictures
  codebook = null;
  cell = null; // token under the cursor
  kept = null; // token that was clicked
  codes = new Set(); // codes that are marked in the pictures
  typical = new Map();

  get about() { return this.state.models[this.model]; }

  /** Tokens that the open pane shows. */
  get tokens() { return this.edited ?? this.encoding?.tokens; }

  emit(name) { this.dispatchEvent(new Event(name)); }

  on(names, listener) {
    for (const name of names.split(" ")) this.addEventListener(name, listener);
  }

  /** Number of stages or scales, and what one is called. */
  get levels() { return this.about.scales || this.about.stages; }

  get levelWord() { return this.about.scales ? "scale" : "stage"; }

  /** Level to begin with: the finest scale, and the first stage. */
  get firstLevel() { return Math.max(0, this.about.scales - 1); }

  /** Grid of the stage or scale that is looked at. */
  get grid() { return this.encoding.grids[this.level]; }

  /** Codebook behind a stage or scale: stages have one each, scales share one. */
  stageOf(level = this.level) { return this.about.scales ? 0 : level; }

  /** Where a cell, {row, column, level}, is among the tokens of the picture; the chosen level by default. */
  placeOf({ row, column, level = this.level }) {
    const { first, step, columns } = this.encoding.grids[level];
    return first + step * (row * columns + column);
  }

  codeAt(cell, tokens = this.tokens) { return tokens[this.placeOf(cell)]; }

  look(cell) {
    this.cell = cell;
    this.emit("look");
  }

  keep(cell) {
    const same = cell && this.kept && this.placeOf(cell) === this.placeOf(this.kept);
    this.kept = same ? null : cell;
    this.emit("look");
  }

  /** Look at another stage or scale of the picture. */
  chooseLevel(level) {
    const same = this.stageOf(level) === this.stageOf();
    this.level = level;
    this.cell = this.kept = null;
    if (!same) this.#changeCodebook();
    this.emit("level");
    this.emit("look");
  }

  #changeCodebook() {
    this.codebook = null;
    this.codes = new Set();
    this.typical.clear();
    this.emit("codebook");
    this.loadCodebook();
  }

  mark(codes) {
    this.codes = new Set(codes);
    this.emit("look");
  }

  async choose(changes) {
    Object.assign(this, changes);
    if ("model" in changes) {
      this.encoding = null; // its grids are those of another model
      this.level = this.firstLevel;
      this.#changeCodebook();
    }
    this.cell = this.kept = null;
    this.emit("choice");
    const asked = (this.asked = Symbol());
    try {
      const encoding = await withProgress(encode(this.model, this.picture, this.size));
      if (asked !== this.asked) return;
      this.encoding = encoding;
      this.problem = null;
      this.emit("encoding");
    } catch (error) {
      if (asked !== this.asked) return;
      this.problem = error;
      this.emit("problem");
    }
  }

  async loadCodebook() {
    const [model, stage] = [this.model, this.stageOf()];
    const current = () => model === this.model && stage === this.stageOf();
    try {
      const packet = await waitForPacket(`/api/codebook?model=${model}&stage=${stage}`, (progress) => {
        if (!current()) return;
        this.progress = progress;
        this.emit("progress");
      });
      if (!current()) return;
      this.codebook = { ...codebookOf(packet), stage };
      this.emit("codebook");
    } catch (error) {
      if (!current()) return;
      this.codebook = { problem: error };
      this.emit("codebook");
    }
  }

  /** Typical patches of a code, loaded once. */
  async typicalOf(code) {
    if (isSaved) return this.savedTypical(code);
    if (!this.typical.has(code)) {
      const path = `/api/code?model=${this.model}&stage=${this.stageOf()}&code=${code}`;
      this.typical.set(code, getPacket(path).catch(() => null));
    }
    return this.typical.get(code);
  }

  /** A saved page has the patches of all codes in one array. */
  async savedTypical(code) {
    const path = `/api/typical?model=${this.model}&stage=${this.stageOf()}`;
    if (!this.typical.has(path)) this.typical.set(path, getPacket(path).catch(() => null));
    const all = await this.typical.get(path);
    if (!all || !this.codebook?.counts) return null;
    const [, most, side] = all.shapes.patches;
    const count = Math.min(most, this.codebook.counts[code]);
    const length = side * side * 3;
    const patches = all.patches.subarray(code * most * length, (code * most + count) * length);
    return { patches, shapes: { patches: [count, side, side, 3] } };
  }
}

export const app = new App();

/** A picture through a model, with pixels, tokens and the error of each token. */
export async function encode(model, picture, size) {
  const query = `model=${model}&picture=${picture}&size=${size}`;
  return encodingOf(await getPacket(`/api/encoding?${query}`), query);
}

/** grids: {rows, columns, first, step} of each stage or scale; rows and columns are those of the finest. */
export function encodingOf(packet, query = "") {
  const [height, width] = packet.shapes.original;
  const { grids } = packet.meta;
  const { rows, columns } = grids.at(-1);
  const encoding = {
    width, height, rows, columns, grids, query,
    tokens: packet.tokens,
    pixels: packet.original,
    original: canvasOf(packet.original, width, height),
    prefixes: new Map(),
  };
  return Object.assign(encoding, reconstructionOf(encoding, packet));
}

function reconstructionOf({ pixels, width, height, rows, columns }, packet) {
  return {
    decoded: packet.reconstruction,
    reconstruction: canvasOf(packet.reconstruction, width, height),
    errors: tokenErrors(pixels, packet.reconstruction, width, rows, columns, height),
    psnr: packet.meta.psnr,
  };
}

/** What the first stages or scales of a picture decode to; loaded once. */
export async function decodeFirst(encoding, levels) {
  if (levels === encoding.grids.length) return encoding;
  if (!encoding.prefixes.has(levels)) {
    const packet = await getPacket(`/api/reconstruction?${encoding.query}&levels=${levels}`);
    encoding.prefixes.set(levels, reconstructionOf(encoding, packet));
  }
  return encoding.prefixes.get(levels);
}

/** Codes of a grid in reading order. */
export function codesIn({ rows, columns, first, step }, tokens) {
  return Uint32Array.from({ length: rows * columns }, (_, i) => tokens[first + step * i]);
}

/** Root mean square error of the pixels of each token, in grey levels of 255. */
export function tokenErrors(a, b, width, rows, columns, height) {
  const [across, down] = [width / columns, height / rows];
  const sums = new Float32Array(rows * columns);
  for (let y = 0; y < height; y++) {
    const row = Math.floor(y / down) * columns;
    for (let x = 0; x < width; x++) {
      const i = 4 * (y * width + x);
      const [r, g, blue] = [a[i] - b[i], a[i + 1] - b[i + 1], a[i + 2] - b[i + 2]];
      sums[row + Math.floor(x / across)] += r * r + g * g + blue * blue;
    }
  }
  for (let i = 0; i < sums.length; i++) sums[i] = Math.sqrt(sums[i] / (3 * across * down));
  return sums;
}

/** A picture with one pixel per token, in the colours of a function of the token's place. */
export function mapOf(rows, columns, colour) {
  const pixels = new Uint8ClampedArray(rows * columns * 4);
  for (let i = 0; i < rows * columns; i++) pixels.set([...colour(i), 255], 4 * i);
  return canvasOf(pixels, columns, rows);
}

export function errorMap({ rows, columns }, errors, most) {
  return mapOf(rows, columns, (i) => errorColour(errors[i] / most));
}

/** Map of the tokens of a level: in the mean colour of each code there, or in a colour of its own. */
export function tokenMap(encoding, tokens, level, kind, codebook) {
  const grid = encoding.grids[level];
  const codes = codesIn(grid, tokens);
  if (kind === "code") return mapOf(grid.rows, grid.columns, (i) => codeColour(codes[i]));
  if (codebook?.colours && codebook.stage === app.stageOf(level)) {
    const colours = codebook.levels[level - codebook.stage].colours;
    return mapOf(grid.rows, grid.columns, (i) => colours.subarray(3 * codes[i], 3 * codes[i] + 3));
  }
  return mapOf(grid.rows, grid.columns, (i) => meanColour(encoding, grid, i));
}

function meanColour({ decoded, width, height }, { rows, columns }, place) {
  const ends = (i, count, length) => [Math.floor((i * length) / count), Math.ceil(((i + 1) * length) / count)];
  const [left, right] = ends(place % columns, columns, width);
  const [top, bottom] = ends(Math.floor(place / columns), rows, height);
  const sum = [0, 0, 0];
  for (let y = top; y < bottom; y++) {
    for (let x = left; x < right; x++) for (let c = 0; c < 3; c++) sum[c] += decoded[4 * (y * width + x) + c];
  }
  return sum.map((value) => value / ((right - left) * (bottom - top)));
}

/** levels: counts and mean colours of the codes in each stage or scale that has them; `counts` are of all. */
export function codebookOf(packet) {
  const [size, channels] = packet.shapes.codes;
  const side = packet.shapes.means[1];
  const { codes, means } = packet;
  const levels = Array.from({ length: packet.shapes.counts[0] }, (_, level) => ({
    counts: packet.counts.subarray(level * size, (level + 1) * size),
    colours: packet.colours.subarray(3 * level * size, 3 * (level + 1) * size),
  }));
  const counts = addUp(levels.map((level) => level.counts));
  const norms = new Float32Array(size);
  const colours = new Uint8Array(3 * size);
  for (let code = 0; code < size; code++) {
    let sum = 0;
    for (let c = 0; c < channels; c++) sum += codes[code * channels + c] ** 2;
    norms[code] = Math.sqrt(sum);
    for (let c = 0; c < 3; c++) {
      let level = 0;
      for (let i = 0; i < side * side; i++) level += means[3 * (code * side * side + i) + c];
      colours[3 * code + c] = Math.round(level / (side * side));
    }
  }
  const order = [...counts.keys()].sort((a, b) => counts[b] - counts[a] || a - b);
  const ranks = new Uint32Array(size);
  order.forEach((code, rank) => { ranks[code] = rank + 1; });
  const dead = counts.reduce((sum, count) => sum + (count === 0), 0);
  return { size, channels, side, counts, levels, codes, means, norms, colours, ranks, dead, ...packet.meta };
}

export function addUp(arrays) {
  return arrays[0].map((_, i) => arrays.reduce((sum, array) => sum + array[i], 0));
}

/** Distances of all codes to one of them. */
export function distancesTo({ codes, channels, size }, code) {
  const distances = new Float32Array(size);
  for (let other = 0; other < size; other++) {
    let sum = 0;
    for (let c = 0; c < channels; c++) sum += (codes[other * channels + c] - codes[code * channels + c]) ** 2;
    distances[other] = Math.sqrt(sum);
  }
  return distances;
}
