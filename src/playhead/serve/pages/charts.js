// Drawings of the graphs page: steps as bars, pages as a map, requests as lanes. Each says in words what it shows.

import { made, shortBytes, shortMs, shortNumber, write } from "/pages/server.js";

// The states of a page, by their number. The words are the legend's.
const STATES = [
  ["elsewhere", "not this group's"],
  ["free", "free"],
  ["cached", "cached"],
  ["in-flight", "in flight"],
  ["held", "held"],
  ["quarantined", "quarantined"],
];

/** A look-up of the style sheet's colours, made once per drawing. */
function palette() {
  const style = getComputedStyle(document.documentElement);
  return (name) => style.getPropertyValue(`--${name}`).trim();
}

/** The canvas, cleared, in CSS pixels of this height. */
function cleared(canvas, height) {
  const scale = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  return { pen, width };
}

/** Draw again when the colours or the width change, with what was shown last. */
function redraws(canvas, draw) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  let width = 0;
  new ResizeObserver(() => {
    if (canvas.clientWidth !== width) {
      width = canvas.clientWidth;
      draw();
    }
  }).observe(canvas);
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length ? sorted[sorted.length >> 1] : 0;
}

export class StepChart {
  static HEIGHT = 150;
  static PITCH = 5;

  constructor(canvas, said) {
    this.canvas = canvas;
    this.said = said;
    this.steps = [];
    this.isCpu = true;
    this.chosen = null; // the number of the step that is told
    redraws(canvas, () => this.draw());
    canvas.addEventListener("pointermove", (event) => this.choose(event.offsetX));
    canvas.addEventListener("pointerleave", () => this.choose(null));
    canvas.addEventListener("keydown", (event) => this.onKey(event));
    canvas.addEventListener("blur", () => this.choose(null));
  }

  show(steps, isCpu) {
    this.steps = steps;
    this.isCpu = isCpu;
    this.draw();
  }

  /** A launch on a CPU returns when the step is done, so it holds the device's time. */
  hostUs(step) {
    const launch = this.isCpu ? Math.max(0, step.launch_us - step.device_us) : step.launch_us;
    return step.plan_us + launch + step.commit_us;
  }

  get shown() {
    return this.steps.slice(-Math.max(1, Math.floor(this.canvas.clientWidth / StepChart.PITCH)));
  }

  /** Where a bar starts. The newest step is at the right edge. */
  left(index, count, width) {
    return width - (count - index) * StepChart.PITCH;
  }

  choose(x) {
    const { shown } = this;
    const index = x === null ? -1 : shown.length - 1 - Math.floor((this.canvas.clientWidth - x) / StepChart.PITCH);
    this.chosen = shown[index]?.number ?? null;
    this.draw();
  }

  onKey(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move || !this.steps.length) return;
    event.preventDefault();
    const { shown } = this;
    const at = shown.findIndex((step) => step.number === this.chosen);
    const wanted = at < 0 ? shown.length - 1 : Math.min(shown.length - 1, Math.max(0, at + move));
    this.chosen = shown[wanted].number;
    this.draw();
  }

  draw() {
    const { pen, width } = cleared(this.canvas, StepChart.HEIGHT);
    const { shown } = this;
    const totals = shown.map((step) => step.device_us + this.hostUs(step));
    // A step that captured a graph takes a hundred times as long. The scale leaves it out, and its bar is cut.
    const top = 1.15 * ([...totals].sort((a, b) => a - b)[Math.floor(0.96 * (totals.length - 1))] ?? 0) || 1;
    const perUs = (StepChart.HEIGHT - 18) / top;
    const [ofLine, ofWords, ofHost, ofDevice, ofEager] = ["line", "quiet", "host", "device", "eager"].map(palette());
    pen.fillStyle = ofLine;
    pen.fillRect(0, StepChart.HEIGHT - 1, width, 1);
    shown.forEach((step, index) => {
      const x = this.left(index, shown.length, width);
      const device = Math.min(step.device_us * perUs, StepChart.HEIGHT - 18);
      const host = Math.min(this.hostUs(step) * perUs, StepChart.HEIGHT - 18 - device);
      const bar = StepChart.PITCH - 1;
      pen.globalAlpha = this.chosen === null || step.number === this.chosen ? 1 : 0.45;
      pen.fillStyle = step.mode === "eager" ? ofEager : ofDevice;
      pen.fillRect(x, StepChart.HEIGHT - 1 - device, bar, device);
      pen.fillStyle = ofHost;
      pen.fillRect(x, StepChart.HEIGHT - 1 - device - host, bar, host);
      if (totals[index] > top) pen.fillRect(x, 14, bar, 2);
    });
    pen.globalAlpha = 1;
    pen.fillStyle = ofWords;
    pen.font = "12px system-ui, sans-serif";
    if (shown.length) pen.fillText(shortMs(top / 1000), 0, 11);
    this.tell(shown);
  }

  tell(shown) {
    const step = shown.find((one) => one.number === this.chosen);
    if (!shown.length) {
      write(this.said, "No step yet.");
      return;
    }
    const numEager = shown.filter((one) => one.mode === "eager").length;
    const summary =
      `${shown.length} steps, ${shown.length - numEager} replayed, ${numEager} eager; ` +
      `median device ${shortMs(median(shown.map((one) => one.device_us)) / 1000)}, ` +
      `host ${shortMs(median(shown.map((one) => this.hostUs(one))) / 1000)}.`;
    this.canvas.setAttribute("aria-label", `The last ${summary} Arrow keys go from step to step.`);
    write(this.said, step ? this.words(step) : summary);
  }

  words(step) {
    const size = step.mode === "eager" ? `${step.raw} rows` : `${step.raw} of ${step.padded} rows`;
    return (
      `Step ${shortNumber(step.number)}: ${step.mode}, ${size}, ${step.num_requests} requests (${step.reason}); ` +
      `device ${shortMs(step.device_us / 1000)}, host ${shortMs(this.hostUs(step) / 1000)}.`
    );
  }
}

/** One KV group: its pages in the order of the pool. */
export class PageMap {
  static MAX_HEIGHT = 200;

  constructor(group) {
    this.group = group;
    this.panel = made("div", "panel");
    const head = made("div", "group-head");
    const title = group.window === null ? "Full attention" : `Window of ${shortNumber(group.window)} tokens`;
    this.facts = made("span");
    head.append(made("h3", "", title), this.facts);
    this.legend = made("ul", "legend");
    this.legend.setAttribute("aria-label", `Pages of ${group.name}`);
    for (const [name] of [...STATES].reverse()) this.legend.append(made("li", name));
    this.canvas = made("canvas");
    this.canvas.setAttribute("role", "img");
    this.canvas.dataset.group = group.name;
    this.panel.append(head, this.legend, this.canvas);
    redraws(this.canvas, () => this.draw());
  }

  show(group) {
    this.group = group;
    this.states = Uint8Array.from(atob(group.page_states), (char) => char.charCodeAt(0));
    this.draw();
    this.tell();
  }

  draw() {
    if (!this.states) return;
    const count = this.states.length;
    const width = this.canvas.clientWidth;
    // The largest squares that fit, gap included.
    let pitch = 15;
    while (pitch > 3 && Math.ceil(count / Math.floor(width / pitch)) * pitch > PageMap.MAX_HEIGHT) pitch -= 1;
    const columns = Math.max(1, Math.floor(width / pitch));
    const { pen } = cleared(this.canvas, Math.ceil(count / columns) * pitch);
    const colour = palette();
    const colours = STATES.map(([name]) => colour(name));
    const side = pitch - 1;
    this.states.forEach((state, index) => {
      pen.fillStyle = colours[state];
      pen.fillRect((index % columns) * pitch, Math.floor(index / columns) * pitch, side, side);
    });
  }

  tell() {
    const { group } = this;
    const counts = {
      held: group.num_held,
      cached: group.num_cached,
      "in-flight": group.num_in_flight,
      free: group.num_free,
      quarantined: group.num_quarantined,
    };
    for (const item of this.legend.children) {
      const [name, words] = STATES.find(([one]) => one === item.className);
      const count = counts[name];
      write(item, count === undefined ? words : `${shortNumber(count)} ${words}`);
      item.hidden = name === "quarantined" && !count;
    }
    const square = group.pages_per_square > 1 ? `, ${shortNumber(group.pages_per_square)} pages a square` : "";
    const bytes = group.bytes_per_page ? `, ${shortBytes(group.bytes_per_page)} each` : "";
    write(this.facts, `pages of ${group.page_size} tokens${bytes}${square}`);
    this.canvas.setAttribute(
      "aria-label",
      `Map of the pages of ${group.name}: ${group.num_held} held, ${group.num_cached} cached, ${group.num_free} free.`,
    );
  }
}

/** Running requests, each with a strip per group: what it has given up, keeps, and has reserved. */
export class Lanes {
  static MAX_SHOWN = 16;
  static STRIP = 10;
  static NAMES = 84; // the names of the groups stand before the strips

  constructor(place) {
    this.place = place;
    this.lanes = [];
    this.none = place.firstElementChild;
    this.panel = made("div", "panel");
    this.panel.hidden = true;
    this.legend = made("ul", "legend");
    const items = [["held", "kept"], ["free", "reserved for tokens to come"], ["elsewhere", "given up: its window has passed"]];
    for (const [name, words] of items) this.legend.append(made("li", name, words));
    this.more = made("p", "said");
    this.list = made("div");
    this.panel.append(this.legend, this.list, this.more);
    place.append(this.panel);
    redraws(this.list, () => this.draw());
  }

  show(requests, groups) {
    this.requests = requests.slice(0, Lanes.MAX_SHOWN);
    this.groups = groups;
    this.none.hidden = requests.length > 0;
    this.panel.hidden = requests.length === 0;
    const numMore = requests.length - this.requests.length;
    write(this.more, numMore ? `${shortNumber(numMore)} more run.` : "");
    this.draw();
  }

  draw() {
    if (!this.requests) return;
    while (this.lanes.length < this.requests.length) this.addLane();
    const longest = Math.max(1, ...this.requests.map((request) => request.num_pages));
    this.lanes.forEach((lane, index) => {
      const request = this.requests[index];
      lane.box.hidden = !request;
      if (request) this.drawLane(lane, request, longest);
    });
  }

  addLane() {
    const box = made("div", "lane");
    const name = made("div", "group-head");
    const title = made("h3");
    const facts = made("span");
    name.append(title, facts);
    const canvas = made("canvas");
    canvas.setAttribute("role", "img");
    box.append(name, canvas);
    this.list.append(box);
    this.lanes.push({ box, title, facts, canvas });
  }

  drawLane({ title, facts, canvas }, request, longest) {
    const { groups } = this;
    write(title, `Row ${request.row}`);
    const cached = request.num_cached_tokens ? `, ${shortNumber(request.num_cached_tokens)} from the prefix cache` : "";
    write(facts, `${shortNumber(request.num_tokens)} tokens${cached}`);
    const { pen, width } = cleared(canvas, groups.length * (Lanes.STRIP + 5));
    const pitch = Math.min(16, (width - Lanes.NAMES) / longest);
    const side = pitch > 3 ? pitch - 1 : pitch;
    const [ofGone, ofKept, ofReserved, ofWords] = ["elsewhere", "held", "free", "quiet"].map(palette());
    pen.font = "12px system-ui, sans-serif";
    const words = groups.map((group, index) => {
      const first = request.first_pages[index] ?? 0;
      const top = index * (Lanes.STRIP + 5);
      const numWritten = Math.ceil(request.num_tokens / group.page_size);
      for (let page = 0; page < request.num_pages; page += 1) {
        pen.fillStyle = page < first ? ofGone : page < numWritten ? ofKept : ofReserved;
        pen.fillRect(Lanes.NAMES + page * pitch, top + 2, side, Lanes.STRIP);
      }
      pen.fillStyle = ofWords;
      pen.fillText(group.name, 0, top + Lanes.STRIP + 1, Lanes.NAMES - 8);
      return `${group.name} keeps pages ${first} to ${Math.max(first, numWritten - 1)}`;
    });
    canvas.setAttribute("aria-label", `Row ${request.row}: ${words.join("; ")}.`);
  }
}
