// What all panes share: the chosen model and picture, its tokens, and the code that is looked at.

import { getPacket, isSaved, waitForPacket, withProgress } from "./api.js";
import { canvasOf, codeColour, errorColour } from "./elements.js";

class App extends EventTarget {
  state = null;
  model = 0;
  stage = 0;
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

  /** Code of a token of the picture that is shown, in the chosen stage. */
  codeAt(cell, tokens = this.tokens) {
    const { columns, stages } = this.encoding;
    return tokens[(cell.row * columns + cell.column) * stages + this.stage];
  }

  look(cell) {
    this.cell = cell;
    this.emit("look");
  }

  keep(cell) {
    const same = cell && this.kept && cell.row === this.kept.row && cell.column === this.kept.column;
    this.kept = same ? null : cell;
    this.emit("look");
  }

  mark(codes) {
    this.codes = new Set(codes);
    this.emit("look");
  }

  async choose(changes) {
    Object.assign(this, changes);
    if ("model" in changes) this.stage = 0;
    if ("model" in changes || "stage" in changes) {
      this.codebook = null;
      this.codes = new Set();
      this.typical.clear();
      this.emit("codebook");
      this.loadCodebook();
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
    const [model, stage] = [this.model, this.stage];
    const current = () => model === this.model && stage === this.stage;
    try {
      const packet = await waitForPacket(`/api/codebook?model=${model}&stage=${stage}`, (progress) => {
        if (!current()) return;
        this.progress = progress;
        this.emit("progress");
      });
      if (!current()) return;
      this.codebook = codebookOf(packet);
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
      const path = `/api/code?model=${this.model}&stage=${this.stage}&code=${code}`;
      this.typical.set(code, getPacket(path).catch(() => null));
    }
    return this.typical.get(code);
  }

  /** A saved page has the patches of all codes in one array. */
  async savedTypical(code) {
    const path = `/api/typical?model=${this.model}&stage=${this.stage}`;
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
  const packet = await getPacket(`/api/encoding?model=${model}&picture=${picture}&size=${size}`);
  return encodingOf(packet);
}

export function encodingOf(packet) {
  const [height, width] = packet.shapes.original;
  const [rows, columns, stages] = packet.shapes.tokens;
  return {
    width, height, rows, columns, stages,
    tokens: packet.tokens,
    pixels: packet.original,
    decoded: packet.reconstruction,
    original: canvasOf(packet.original, width, height),
    reconstruction: canvasOf(packet.reconstruction, width, height),
    errors: tokenErrors(packet.original, packet.reconstruction, width, rows, columns, height),
    psnr: packet.meta.psnr,
  };
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

export function errorMap(encoding, most) {
  return mapOf(encoding.rows, encoding.columns, (i) => errorColour(encoding.errors[i] / most));
}

/** Map of tokens: in the mean colour of each code, or in a colour of its own. */
export function tokenMap(encoding, tokens, stage, kind, codebook) {
  const code = (i) => tokens[i * encoding.stages + stage];
  if (kind === "code") return mapOf(encoding.rows, encoding.columns, (i) => codeColour(code(i)));
  if (codebook?.colours) {
    return mapOf(encoding.rows, encoding.columns, (i) => codebook.colours.subarray(3 * code(i), 3 * code(i) + 3));
  }
  return mapOf(encoding.rows, encoding.columns, (i) => meanColour(encoding, i));
}

function meanColour({ decoded, width, height, rows, columns }, place) {
  const [across, down] = [width / columns, height / rows];
  const [left, top] = [(place % columns) * across, Math.floor(place / columns) * down];
  const sum = [0, 0, 0];
  for (let y = top; y < top + down; y++) {
    for (let x = left; x < left + across; x++) for (let c = 0; c < 3; c++) sum[c] += decoded[4 * (y * width + x) + c];
  }
  return sum.map((value) => value / (across * down));
}

function codebookOf(packet) {
  const [size, channels] = packet.shapes.codes;
  const side = packet.shapes.means[1];
  const { counts, codes, means } = packet;
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
  return { size, channels, side, counts, codes, means, norms, colours, ranks, dead, ...packet.meta, plane: packet.plane };
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
