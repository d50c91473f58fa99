// Canvases that show a picture, with zoom and pan that several of them share, and a cursor on tokens.

import { style } from "./elements.js";

const MOST_ZOOM = 40;
const NUMBERS_FROM = 30; // screen pixels of a token from which on its number is written

/** Zoom and centre, shared by all viewports of a group. */
export class Zoom extends EventTarget {
  constructor() {
    super();
    this.reset();
  }

  reset() {
    this.scale = 1;
    this.x = this.y = 0.5;
    this.dispatchEvent(new Event("change"));
  }

  set(scale, x, y) {
    this.scale = Math.min(MOST_ZOOM, Math.max(1, scale));
    const margin = 0.5 / this.scale;
    this.x = Math.min(1 - margin, Math.max(margin, x));
    this.y = Math.min(1 - margin, Math.max(margin, y));
    this.dispatchEvent(new Event("change"));
  }
}

/**
 * A canvas that shows layers of one picture.
 *
 * layers: functions (context, viewport) that draw in pixels of the picture.
 * onCell(cell): the cursor is on a token, {row, column}, or null.
 * onUse(cell, event): a token is clicked, or Enter is pressed on it.
 * drag: {start(cell), move(cell), end(cell)} takes dragging away from panning; may be null.
 */
export class Viewport {
  constructor(canvas, zoom, { onCell = () => {}, onUse = () => {}, drag = () => null } = {}) {
    Object.assign(this, { canvas, zoom, onCell, onUse, drag });
    this.size = [1, 1];
    this.grid = [1, 1];
    this.layers = [];
    this.cursor = null;
    this.pointers = new Map();
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "application");
    this.context = canvas.getContext("2d");
    new ResizeObserver(() => this.draw()).observe(canvas);
    zoom.addEventListener("change", () => {
      canvas.style.touchAction = zoom.scale > 1 ? "none" : "";
      this.draw();
    });
    canvas.addEventListener("pointerdown", (event) => this.#down(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    canvas.addEventListener("pointerup", (event) => this.#up(event));
    canvas.addEventListener("pointercancel", (event) => this.#up(event, true));
    canvas.addEventListener("pointerleave", () => { if (!this.pointers.size) this.#setCursor(null); });
    canvas.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    canvas.addEventListener("keydown", (event) => this.#key(event));
    canvas.addEventListener("blur", () => this.#setCursor(null));
  }

  /** size: width and height in pixels; grid: rows and columns of tokens. */
  show(size, grid, layers) {
    if (String(grid) !== String(this.grid)) this.cursor = null;
    Object.assign(this, { size, grid, layers });
    this.draw();
  }

  /** Scale and offset from pixels of the picture to pixels of the canvas. */
  get place() {
    const [width, height] = this.size;
    const canvas = this.canvas;
    const scale = Math.min(canvas.width / width, canvas.height / height) * this.zoom.scale;
    // An axis that fits stays in the middle.
    const offset = (length, side, centre) =>
      side * scale <= length ? (length - side * scale) / 2 : Math.min(0, Math.max(length - side * scale, length / 2 - centre * side * scale));
    return { scale, left: offset(canvas.width, width, this.zoom.x), top: offset(canvas.height, height, this.zoom.y) };
  }

  draw() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => this.drawNow());
  }

  drawNow() {
    cancelAnimationFrame(this.waiting);
    this.waiting = 0;
    const { canvas, context } = this;
    const box = canvas.getBoundingClientRect();
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
    if (!width || !height) return;
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, width, height);
    const { scale, left, top } = this.place;
    context.setTransform(scale, 0, 0, scale, left, top);
    context.imageSmoothingEnabled = scale < 2;
    for (const layer of this.layers) layer(context, this);
    this.#drawCursor();
  }

  /** Outline cells, in pixels of the screen, whatever the zoom. */
  outline(cells, colour, width = 2) {
    const { context } = this;
    const [cellWidth, cellHeight] = this.cellSize;
    const { scale } = this.place;
    const ratio = window.devicePixelRatio || 1;
    context.lineWidth = (width * ratio) / scale;
    context.strokeStyle = colour;
    context.beginPath();
    for (const { row, column } of cells) context.rect(column * cellWidth, row * cellHeight, cellWidth, cellHeight);
    context.stroke();
  }

  get cellSize() {
    return [this.size[0] / this.grid[1], this.size[1] / this.grid[0]];
  }

  /** Whether tokens are large enough on the screen to write in them. */
  get hasRoom() {
    return (this.place.scale * this.cellSize[0]) / (window.devicePixelRatio || 1) >= NUMBERS_FROM;
  }

  #drawCursor() {
    if (!this.cursor) return;
    this.outline([this.cursor], style("--paper"), 4);
    this.outline([this.cursor], style("--accent"), 2);
  }

  cellAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const { scale, left, top } = this.place;
    const ratio = this.canvas.width / box.width;
    const x = ((event.clientX - box.left) * ratio - left) / scale;
    const y = ((event.clientY - box.top) * ratio - top) / scale;
    const [cellWidth, cellHeight] = this.cellSize;
    const [row, column] = [Math.floor(y / cellHeight), Math.floor(x / cellWidth)];
    const inside = row >= 0 && column >= 0 && row < this.grid[0] && column < this.grid[1];
    return inside ? { row, column } : null;
  }

  #setCursor(cell) {
    if (cell?.row === this.cursor?.row && cell?.column === this.cursor?.column) return;
    this.cursor = cell;
    this.draw();
    this.onCell(cell);
  }

  /** Show the cursor of another viewport here, at the same place of the picture; grid: of the other. */
  follow(cell, [rows, columns] = this.grid) {
    const at = (i, from, to) => Math.floor(((i + 0.5) * to) / from);
    this.cursor = cell && { row: at(cell.row, rows, this.grid[0]), column: at(cell.column, columns, this.grid[1]) };
    this.draw();
  }

  #down(event) {
    this.canvas.focus({ preventScroll: true });
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, event);
    const cell = this.cellAt(event);
    this.moved = false;
    this.dragging = this.pointers.size === 1 ? this.drag() : null;
    if (this.dragging && cell) this.dragging.start(cell);
    this.#setCursor(cell);
  }

  #move(event) {
    const before = this.pointers.get(event.pointerId);
    const cell = this.cellAt(event);
    if (!before) {
      this.#setCursor(cell);
      return;
    }
    const distance = Math.hypot(event.clientX - this.#first(before).clientX, event.clientY - this.#first(before).clientY);
    if (distance > 4) this.moved = true;
    if (this.pointers.size === 2) this.#pinch(event, before);
    else if (this.dragging) {
      if (cell) this.dragging.move(cell);
      this.#setCursor(cell);
    } else this.#pan(event.clientX - before.clientX, event.clientY - before.clientY);
    event.origin = this.#first(before);
    this.pointers.set(event.pointerId, event);
  }

  #first(event) {
    return event.origin ?? event;
  }

  #up(event, cancelled = false) {
    if (!this.pointers.delete(event.pointerId)) return;
    const cell = this.cellAt(event);
    if (this.dragging) this.dragging.end(cell);
    else if (!this.moved && cell && !cancelled) this.onUse(cell, event);
    this.dragging = null;
    if (event.pointerType === "touch") this.#setCursor(null);
  }

  #pan(x, y) {
    if (this.zoom.scale === 1) return;
    const ratio = window.devicePixelRatio || 1;
    const { scale } = this.place;
    const [width, height] = this.size;
    this.zoom.set(this.zoom.scale, this.zoom.x - (x * ratio) / scale / width, this.zoom.y - (y * ratio) / scale / height);
  }

  #pinch(event, before) {
    const [other] = [...this.pointers.values()].filter((pointer) => pointer.pointerId !== event.pointerId);
    const apart = (a) => Math.hypot(a.clientX - other.clientX, a.clientY - other.clientY);
    this.zoomAt(event, apart(event) / Math.max(1, apart(before)));
  }

  #wheel(event) {
    // Without a modifier, the wheel scrolls the page until the picture is enlarged.
    if (!event.ctrlKey && !event.metaKey && this.zoom.scale === 1 && event.deltaY > 0) return;
    event.preventDefault();
    this.zoomAt(event, Math.exp(-event.deltaY / 300));
  }

  zoomAt(event, factor) {
    const box = this.canvas.getBoundingClientRect();
    const ratio = this.canvas.width / box.width;
    const [px, py] = [(event.clientX - box.left) * ratio, (event.clientY - box.top) * ratio];
    const { scale, left, top } = this.place;
    const [x, y] = [(px - left) / scale, (py - top) / scale];
    const zoomed = Math.min(MOST_ZOOM, Math.max(1, this.zoom.scale * factor));
    const next = (scale / this.zoom.scale) * zoomed;
    const [width, height] = this.size;
    this.zoom.set(zoomed, (x - (px - this.canvas.width / 2) / next) / width, (y - (py - this.canvas.height / 2) / next) / height);
  }

  #key(event) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (steps && event.shiftKey) {
      this.zoom.set(this.zoom.scale, this.zoom.x + (0.1 * steps[1]) / this.zoom.scale, this.zoom.y + (0.1 * steps[0]) / this.zoom.scale);
    } else if (steps && !event.ctrlKey && !event.metaKey && !event.altKey) {
      const [rows, columns] = this.grid;
      const from = this.cursor ?? { row: (rows >> 1) - steps[0], column: (columns >> 1) - steps[1] };
      this.#setCursor({
        row: Math.min(rows - 1, Math.max(0, from.row + steps[0])),
        column: Math.min(columns - 1, Math.max(0, from.column + steps[1])),
      });
      this.#reveal();
    } else if ((event.key === "Enter" || event.key === " ") && this.cursor) {
      const dragging = this.drag();
      if (dragging) {
        dragging.start(this.cursor, event);
        dragging.end(this.cursor);
      } else this.onUse(this.cursor, event);
    } else if (event.key === "+" || event.key === "=") this.zoom.set(this.zoom.scale * 1.4, this.zoom.x, this.zoom.y);
    else if (event.key === "-") this.zoom.set(this.zoom.scale / 1.4, this.zoom.x, this.zoom.y);
    else if (event.key === "0") this.zoom.reset();
    else return;
    event.preventDefault();
  }

  /** Move an enlarged picture so that the cursor is in sight. */
  #reveal() {
    if (this.zoom.scale === 1) return;
    const [x, y] = [(this.cursor.column + 0.5) / this.grid[1], (this.cursor.row + 0.5) / this.grid[0]];
    const reach = 0.4 / this.zoom.scale;
    const near = (centre, place) => Math.min(place + reach, Math.max(place - reach, centre));
    this.zoom.set(this.zoom.scale, near(this.zoom.x, x), near(this.zoom.y, y));
  }
}
