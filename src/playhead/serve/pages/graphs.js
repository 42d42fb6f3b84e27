// The graphs page: asks for a snapshot of the engine about twice a second, while somebody can see it.

import { at, call, made, shortBytes, shortMs, shortNumber, write } from "/pages/server.js";
import { Lanes, PageMap, StepChart } from "/pages/charts.js";

const POLL_MS = 500;
const RETRY_MS = 2000;
const PATIENCE_MS = 5000;
const MAX_STEPS = 240;

let steps = [];
let lastStep = 0;
let before = null; // the counters of the last answer, for rates
let isPaused = false;
let timer = 0;

const chart = new StepChart(at("steps"), at("step-said"));

// Counters.

function share(part, whole) {
  return whole ? `${(100 * part / whole).toFixed(1)}%` : "none yet";
}

function counters(data, perSecond) {
  const { stats, groups } = data.snapshot;
  const now = data.snapshot;
  const numReplays = sum(now.graphs, (graph) => graph.num_replays);
  const numPadded = sum(now.graphs, (graph) => graph.num_padded);
  const numRaw = sum(now.graphs, (graph) => graph.num_raw);
  const usedSlabs = Math.max(0, now.num_slabs - 1 - now.num_free_slabs);
  const refusals = sum(Object.values(now.prefix_refusals), (count) => count);
  return [
    ["Running", `${now.num_running}`, `of ${now.max_running}`],
    ["Waiting", shortNumber(now.num_waiting), "requests"],
    ["Tokens/s", shortNumber(perSecond), "generated"],
    ["Generated", shortNumber(stats.num_generated_tokens), "tokens"],
    ["Prompt tokens", shortNumber(stats.num_prompt_tokens), `+ ${shortNumber(stats.num_cached_tokens)} cached`],
    ["Steps", shortNumber(stats.num_steps), `${shortNumber(stats.num_wasted_rows)} rows wasted`],
    ["Replayed", share(numReplays, stats.num_steps), "of steps"],
    ["Padding", share(numPadded - numRaw, numPadded), "of rows"],
    ["Prefix hits", share(now.num_hit_pages, now.num_asked_pages), "of pages"],
    ["Refused hits", shortNumber(refusals), "window expired"],
    ["Arena", share(usedSlabs, now.num_slabs - 1), shortBytes(usedSlabs * now.slab_bytes)],
    ["Held", shortNumber(sum(groups, (group) => group.num_held)), "pages"],
    ["Preemptions", shortNumber(stats.num_preemptions), "requests"],
    ["Ledger errors", shortNumber(stats.num_violations), stats.num_violations ? "each is a bug" : "of pages"],
  ];
}

function sum(values, of) {
  return values.reduce((total, value) => total + of(value), 0);
}

function showCounters(rows) {
  const list = at("counters");
  rows.forEach(([label, value, small], index) => {
    let box = list.children[index];
    if (!box) {
      box = made("div");
      const figure = made("dd");
      figure.append(made("span"), document.createTextNode(" "), made("small"));
      box.append(made("dt", "", label), figure);
      list.append(box);
    }
    write(box.querySelector("span"), value);
    write(box.querySelector("small"), small);
  });
}

function tokensPerSecond(stats) {
  const now = { ms: performance.now(), tokens: stats.num_generated_tokens };
  const then = before;
  before = now;
  return then && now.ms > then.ms && now.tokens >= then.tokens ? (1000 * (now.tokens - then.tokens)) / (now.ms - then.ms) : 0;
}

// Memory.

const maps = new Map();

function showGroups(groups) {
  for (const group of groups) {
    let map = maps.get(group.name);
    if (!map) {
      map = new PageMap(group);
      maps.set(group.name, map);
      at("groups").append(map.panel);
    }
    map.show(group);
  }
}

const lanes = new Lanes(at("requests"));

// Graphs.

const tables = new Map();

function showRunners({ runners, graphs }) {
  for (const runner of runners) {
    const rows = graphs.filter((graph) => graph.runner === runner.name);
    const shape = rows.map((graph) => graph.bucket).join();
    let shown = tables.get(runner.name);
    if (shown?.shape !== shape) {
      const made = runnerPanel(runner, rows);
      if (shown) shown.panel.replaceWith(made.panel);
      else at("runners").append(made.panel);
      shown = { ...made, shape };
      tables.set(runner.name, shown);
    }
    rows.forEach((graph, index) => showGraph(shown.rows[index], graph));
    showReasons(shown, runner, rows);
  }
}

const COLUMNS = ["Size", "Replays", "Rows", "Padding", "Bytes", "Captured in"];

function runnerPanel(runner, graphs) {
  const panel = made("div", "panel");
  const scroll = made("div", "scroll");
  const table = made("table");
  const caption = made("caption", "", `${runner.name} `);
  caption.append(made("span", "", runner.mode === "eager" ? "graphs are off" : `${runner.mode} graphs`));
  const head = made("thead");
  const headRow = made("tr");
  for (const name of COLUMNS) {
    const cell = made("th", "", name);
    cell.scope = "col";
    headRow.append(cell);
  }
  head.append(headRow);
  const body = made("tbody");
  const rows = graphs.map((graph) => graphRow(graph));
  body.append(...rows.map((row) => row.line));
  table.append(caption, ...(graphs.length ? [head, body] : []));
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", `Graphs of ${runner.name}`);
  scroll.append(table);
  const said = made("p", "said");
  panel.append(scroll, said);
  return { panel, rows, said };
}

function graphRow(graph) {
  const line = made("tr");
  const name = made("th", "", `${graph.bucket}`);
  name.scope = "row";
  const cells = COLUMNS.slice(1).map(() => made("td"));
  const waste = cells[2];
  waste.className = "waste";
  const track = made("span", "track");
  const fill = made("span");
  track.append(fill);
  const figure = made("span");
  waste.append(figure, track);
  line.append(name, ...cells);
  return { line, cells, figure, fill };
}

function showGraph({ cells, figure, fill }, graph) {
  const wasted = graph.num_padded - graph.num_raw;
  write(cells[0], shortNumber(graph.num_replays));
  write(cells[1], shortNumber(graph.num_raw));
  write(figure, graph.num_padded ? share(wasted, graph.num_padded) : "");
  fill.style.width = `${graph.num_padded ? (100 * wasted) / graph.num_padded : 0}%`;
  write(cells[3], shortBytes(graph.num_bytes));
  write(cells[4], shortMs(graph.capture_ms));
}

function showReasons({ said }, runner, graphs) {
  const captured = new Set(graphs.map((graph) => graph.bucket));
  const others = runner.buckets.filter((bucket) => !captured.has(bucket));
  const words = Object.entries(runner.reasons).map(([reason, count]) => `${reason} (${shortNumber(count)})`);
  const reasons = words.length ? `Steps: ${words.join("; ")}.` : "No step yet.";
  write(said, runner.mode === "eager" ? reasons : reasons + waitingSizes(others));
}

function waitingSizes(sizes) {
  if (!sizes.length) return "";
  const words = sizes.length > 8 ? `${sizes.length} sizes from ${sizes[0]} to ${sizes.at(-1)}` : sizes.join(", ");
  return ` Not captured yet: ${words}.`;
}

// Polling.

function show(data) {
  const now = data.snapshot;
  const { name, device, dtype, max_model_len: context } = data.model;
  write(at("model"), `${name} · ${device} · ${dtype} · context ${shortNumber(context)}`);
  if (now.stats.num_steps < lastStep) steps = []; // another engine than before
  lastStep = now.stats.num_steps;
  steps = [...steps, ...now.steps].slice(-MAX_STEPS);
  showCounters(counters(data, tokensPerSecond(now.stats)));
  chart.show(steps, device.startsWith("cpu"));
  showGroups(now.groups);
  lanes.show(now.requests, now.groups);
  showRunners(now);
}

function showState(state, text) {
  at("live").dataset.state = state;
  write(at("live"), text);
}

async function poll() {
  timer = 0;
  try {
    const response = await call(`/graphs/data/${lastStep}`, { signal: AbortSignal.timeout(PATIENCE_MS) });
    show(await response.json());
    at("failure").hidden = true;
    showState("live", "live");
    next(POLL_MS);
  } catch (error) {
    const isSlow = error.name === "TimeoutError" || error.name === "AbortError";
    const message = isSlow ? "The engine does not answer." : error.message;
    at("failure").replaceChildren(made("strong", "", "No news. "), document.createTextNode(message));
    at("failure").hidden = false;
    showState("lost", "no answer");
    if (error.status === 401) setPaused(true);
    next(RETRY_MS);
  }
}

function next(ms) {
  if (!isPaused && !document.hidden && !timer) timer = setTimeout(poll, ms);
}

function setPaused(value) {
  isPaused = value;
  at("pause").setAttribute("aria-pressed", String(isPaused));
  write(at("pause"), isPaused ? "Go on" : "Pause");
  if (isPaused) {
    clearTimeout(timer);
    timer = 0;
    showState("wait", "paused");
  } else {
    before = null;
    next(0);
  }
}

at("pause").addEventListener("click", () => setPaused(!isPaused));
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    clearTimeout(timer);
    timer = 0;
    before = null;
  } else {
    next(0);
  }
});
poll();
