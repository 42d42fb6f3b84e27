// Calls of the server that this page came from, with the key if it wants one. The key stays in this tab.

const KEY = "playhead.key";

export const at = (id) => document.getElementById(id);

/** An element with a class and a text. Text is always text: nothing on these pages is parsed as HTML. */
export function made(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

/** Write a text only where it has changed: a screen reader or a selection is not disturbed for nothing. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** What went wrong, in the server's words where it has any. */
export class Failure extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

function stored() {
  return sessionStorage.getItem(KEY);
}

function showKeyState() {
  at("forget").hidden = stored() === null;
}

at("forget").addEventListener("click", () => {
  sessionStorage.removeItem(KEY);
  showKeyState();
});
showKeyState();

at("key-cancel").addEventListener("click", () => at("key-dialog").close("cancel"));

let asking = null;

/** Ask the person for a key, once for all calls that wait for one. False if there is none. */
function askForKey() {
  asking ??= new Promise((resolve) => {
    const dialog = at("key-dialog");
    at("key-why").textContent =
      stored() === null
        ? "This server wants a key. It stays in this tab."
        : "The server does not know this key. Another one?";
    at("key").value = "";
    dialog.returnValue = "cancel";
    dialog.showModal();
    dialog.addEventListener(
      "close",
      () => {
        const key = at("key").value.trim();
        at("key").value = "";
        const isGiven = dialog.returnValue === "use" && key !== "";
        if (isGiven) sessionStorage.setItem(KEY, key);
        showKeyState();
        asking = null;
        resolve(isGiven);
      },
      { once: true },
    );
  });
  return asking;
}

async function failureOf(response) {
  let message = `The server answered ${response.status}.`;
  try {
    const body = await response.json();
    if (typeof body?.error?.message === "string") message = body.error.message;
  } catch {
    // Not JSON: the status says enough.
  }
  return new Failure(message, response.status);
}

/** The response to a call, or a Failure. A person without a key is asked for one, and the call is made again. */
export async function call(path, options = {}) {
  for (;;) {
    const headers = { ...options.headers };
    if (stored() !== null) headers.Authorization = `Bearer ${stored()}`;
    let response;
    try {
      response = await fetch(path, { ...options, headers, credentials: "omit", cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError" || error.name === "TimeoutError") throw error;
      throw new Failure("The server cannot be reached.");
    }
    if (response.ok) return response;
    if (response.status !== 401 || !(await askForKey())) throw await failureOf(response);
  }
}

/** The values of a stream of server-sent events, each parsed, until it says that it is done. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    const blocks = rest.split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) {
      const lines = block.split(/\r?\n/).filter((line) => line.startsWith("data:"));
      const data = lines.map((line) => line.slice(5).trimStart()).join("\n");
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}

export function shortNumber(value) {
  return new Intl.NumberFormat("en", { maximumFractionDigits: 1 }).format(value);
}

export function shortMs(ms) {
  if (ms < 1) return `${(1000 * ms).toFixed(0)} µs`;
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  return ms < 1000 ? `${ms.toFixed(0)} ms` : `${(ms / 1000).toFixed(2)} s`;
}

export function shortBytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let size = count;
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit && size < 10 ? size.toFixed(1) : Math.round(size)} ${units[unit]}`;
}
