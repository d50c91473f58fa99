// Small helpers for elements, colours and pixels.

/** Make an element: attributes, then children; names with "on" are listeners. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "text") element.textContent = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

export function number(value, digits = 0) {
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** A canvas that holds RGBA pixels at their own size. */
export function canvasOf(pixels, width, height) {
  const canvas = new OffscreenCanvas(width, height);
  fill(canvas, pixels);
  return canvas;
}

/** Put RGBA pixels of a width onto a canvas, all of it by default. */
export function fill(canvas, pixels, width = canvas.width, left = 0, top = 0) {
  const clamped = new Uint8ClampedArray(pixels.buffer, pixels.byteOffset, pixels.length);
  canvas.getContext("2d").putImageData(new ImageData(clamped, width), left, top);
}

/** Draw patch `index` of an array of (n, side, side, 3) bytes onto a canvas. */
export function drawPatch(canvas, patches, side, index) {
  canvas.width = canvas.height = side;
  const pixels = new Uint8ClampedArray(side * side * 4);
  const start = index * side * side * 3;
  for (let i = 0; i < side * side; i++) {
    pixels[4 * i] = patches[start + 3 * i];
    pixels[4 * i + 1] = patches[start + 3 * i + 1];
    pixels[4 * i + 2] = patches[start + 3 * i + 2];
    pixels[4 * i + 3] = 255;
  }
  canvas.getContext("2d").putImageData(new ImageData(pixels, side, side), 0, 0);
}

const RAMP = [[0, 22, 24, 27], [0.35, 122, 47, 0], [0.65, 213, 94, 0], [1, 255, 217, 184]];

/** Colour of an error between 0 and 1, from dark over orange to bright. */
export function errorColour(share) {
  const x = Math.min(1, Math.max(0, share));
  const upper = Math.max(1, RAMP.findIndex(([at]) => at >= x));
  const [a, b] = [RAMP[upper - 1], RAMP[upper]];
  const t = (x - a[0]) / (b[0] - a[0]);
  return [1, 2, 3].map((i) => Math.round(a[i] + t * (b[i] - a[i])));
}

/** A colour that belongs to a code: neighbours in number differ. */
export function codeColour(code) {
  const hue = (code * 137.508) % 360;
  const light = 0.45 + 0.12 * ((code * 7919) % 3);
  const a = 0.55 * Math.min(light, 1 - light);
  const f = (n) => {
    const k = (n + hue / 30) % 12;
    return Math.round(255 * (light - a * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return [f(0), f(8), f(4)];
}

const DARK = matchMedia("(prefers-color-scheme: dark)");
const SHADES = {
  false: [[165, 213, 242], [0, 114, 178], [0, 52, 84]],
  true: [[38, 62, 88], [82, 154, 255], [222, 237, 255]],
};

/** Colour of a share between 0 and 1: the more, the further from the background. */
export function shade(share) {
  const x = 2 * Math.min(1, Math.max(0, share));
  const [low, middle, high] = SHADES[DARK.matches];
  const [a, b, t] = x <= 1 ? [low, middle, x] : [middle, high, x - 1];
  return a.map((value, i) => Math.round(value + t * (b[i] - value)));
}

export function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function announce(text) {
  document.getElementById("status").textContent = text;
}

export function download(blob, name) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
