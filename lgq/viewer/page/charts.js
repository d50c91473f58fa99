// Curves of use: how often each code occurs, the most frequent first.

import { number, style } from "./elements.js";

/** curves: [{label, counts, colour}]; both axes are logarithmic, so that rare codes can be seen. */
export function usageChart(canvas, curves) {
  const box = canvas.getBoundingClientRect();
  const ratio = window.devicePixelRatio || 1;
  if (!box.width) return;
  Object.assign(canvas, { width: Math.round(box.width * ratio), height: Math.round(box.height * ratio) });
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const [left, right, top, bottom] = [46, 22, 12, 30];
  const [width, height] = [box.width - left - right, box.height - top - bottom];
  const sorted = curves.map(({ counts }) => Float64Array.from(counts).sort().reverse());
  const most = Math.max(2, ...sorted.map((counts) => counts[0] ?? 0));
  const longest = Math.max(2, ...sorted.map((counts) => counts.length));
  const x = (rank) => left + (width * Math.log(rank)) / Math.log(longest);
  const y = (count) => top + height - (height * Math.log(count + 1)) / Math.log(most + 1);
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = style("--faint");
  context.strokeStyle = style("--rule");
  context.lineWidth = 1;
  for (let power = 1; power <= most; power *= 10) {
    context.beginPath();
    context.moveTo(left, y(power));
    context.lineTo(left + width, y(power));
    context.stroke();
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillText(number(power), left - 6, y(power));
  }
  context.textAlign = "center";
  context.textBaseline = "top";
  for (let power = 1; power <= longest; power *= 10) context.fillText(number(power), x(power), top + height + 4);
  context.fillText("codes, the most frequent first", left + width / 2, top + height + 17);
  curves.forEach(({ colour }, i) => {
    context.beginPath();
    sorted[i].forEach((count, rank) => context.lineTo(x(rank + 1), y(count)));
    context.strokeStyle = colour;
    context.lineWidth = 2;
    context.stroke();
  });
}
