// Requests to the server, or, in a page that was saved as one file, to what is inside it.

const SLOW = 300; // milliseconds after which work shows progress
const TYPES = {
  uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, int32: Int32Array, float32: Float32Array,
};
const saved = document.getElementById("saved");
const contents = saved ? JSON.parse(saved.textContent) : null;

export const isSaved = contents !== null;

/** A problem in words, for the place that caused it; `reason` goes on after the name of a file. */
export class Problem extends Error {
  constructor(reason) {
    super(reason[0].toUpperCase() + reason.slice(1));
    this.reason = reason;
  }
}

let working = 0;

/** Show the bar at the top while a promise takes longer than SLOW. */
export async function withProgress(promise) {
  let shown = 0;
  const timer = setTimeout(() => { shown = 1; showBar(1); }, SLOW);
  try {
    return await promise;
  } finally {
    clearTimeout(timer);
    showBar(-shown);
  }
}

function showBar(change) {
  working += change;
  document.getElementById("busy").hidden = working === 0;
}

async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server does not answer: is lgq view still running?");
  }
  if (answer.ok) return answer;
  let reason = `The server answered ${answer.status}.`;
  try { reason = (await answer.json()).error; } catch { /* not JSON: the status has to do */ }
  throw new Problem(reason);
}

/** Arrays by name, views of the packet's own bytes, and its JSON as `meta`. */
export function unpack(buffer, start = 0) {
  const length = new DataView(buffer).getUint32(start, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, start + 4, length)));
  let position = start + 4 + length;
  const result = { meta: head.meta, shapes: {} };
  for (const [name, type, shape] of head.arrays) {
    const count = shape.reduce((a, b) => a * b, 1);
    const kind = TYPES[type];
    result[name] = new kind(buffer, position, count);
    result.shapes[name] = shape;
    position += Math.ceil((count * kind.BYTES_PER_ELEMENT) / 8) * 8;
  }
  result.end = position;
  return result;
}

async function savedPacket(path) {
  if (!(path in contents)) throw new Problem("This saved page does not hold that.");
  const bytes = Uint8Array.from(atob(contents[path]), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return unpack(await new Response(stream).arrayBuffer());
}

/** JSON of a path. */
export async function getJson(path) {
  if (isSaved) {
    if (!(path in contents)) throw new Problem("This saved page does not hold that.");
    return contents[path];
  }
  return (await ask(path)).json();
}

/** JSON of a path that the server may take a while to have; asks again until it has, with `progress` called. */
export async function waitForJson(path, progress) {
  if (isSaved) return getJson(path);
  for (;;) {
    const answer = await ask(path);
    const content = await answer.json();
    if (answer.status !== 202) return content;
    progress(content);
    await new Promise((resolve) => setTimeout(resolve, 150));
  }
}

/** Packet of a path; null while the server is still at work on it, with `progress` called. */
export async function getPacket(path, progress = () => {}) {
  if (isSaved) return savedPacket(path);
  const answer = await ask(path);
  if (answer.status === 202) {
    progress(await answer.json());
    return null;
  }
  return unpack(await answer.arrayBuffer());
}

/** Packet of a path that the server may take a while to have; asks again until it has. */
export async function waitForPacket(path, progress) {
  for (;;) {
    const packet = await getPacket(path, progress);
    if (packet) return packet;
    await new Promise((resolve) => setTimeout(resolve, 400));
  }
}

export async function postPacket(path, body, signal) {
  const answer = await ask(path, { method: "POST", body: JSON.stringify(body), signal });
  return unpack(await answer.arrayBuffer());
}

/** Call `take` with each packet of an answer as it arrives. */
export async function postSteps(path, body, take, signal) {
  const answer = await ask(path, { method: "POST", body: JSON.stringify(body), signal });
  const reader = answer.body.getReader();
  let rest = new Uint8Array(0);
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const joined = new Uint8Array(rest.length + value.length);
    joined.set(rest);
    joined.set(value, rest.length);
    rest = joined;
    while (rest.length >= 4) {
      const length = new DataView(rest.buffer, rest.byteOffset).getUint32(0, true);
      if (rest.length < 4 + length) break;
      const packet = unpack(rest.slice(4, 4 + length).buffer);
      rest = rest.slice(4 + length);
      if (packet.meta.error) throw new Problem(packet.meta.error);
      take(packet);
    }
  }
}

export async function postFile(path, file, headers = {}) {
  return ask(path, { method: "POST", body: file, headers });
}

export async function postForBlob(path, body) {
  return (await ask(path, { method: "POST", body: JSON.stringify(body) })).blob();
}

export function thumbnailPath(id) {
  return isSaved ? contents[`/api/thumbnail?picture=${id}`] : `/api/thumbnail?picture=${id}`;
}
