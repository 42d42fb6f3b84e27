// The chat page: one conversation, kept in this tab, streamed from /v1/chat/completions.

import { Failure, at, call, events, made, shortMs, shortNumber, write } from "/pages/server.js";

const CONVERSATION = "playhead.conversation";
const PARAMETERS = "playhead.parameters";
const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];
const STARTS = ["Tell me a story of the sea", "What is a sliding window?", "Write a letter to a friend"];
const NEAR_END_PX = 80;

let conversation = read(CONVERSATION, []);
let running = null; // the AbortController of the answer under way
let model = null;

function read(name, otherwise) {
  try {
    return JSON.parse(sessionStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function keep(name, value) {
  try {
    sessionStorage.setItem(name, JSON.stringify(value));
  } catch {
    // A full store: the conversation goes on and a reload forgets it.
  }
}

// Parameters.

function parameters() {
  const chosen = {};
  for (const name of NUMBERS) {
    const text = at(name).value.trim();
    if (text !== "") chosen[name] = Number(text);
  }
  return chosen;
}

function keepParameters() {
  const kept = { system: at("system").value };
  for (const name of NUMBERS) kept[name] = at(name).value;
  keep(PARAMETERS, kept);
}

function showParameters() {
  for (const [name, value] of Object.entries(read(PARAMETERS, {}))) {
    if (name === "system" || NUMBERS.includes(name)) at(name).value = value;
  }
  at("settings").open = matchMedia("(min-width: 55.01rem)").matches;
}

// Turns on the page.

function isAtEnd() {
  const turns = at("turns");
  return turns.scrollHeight - turns.scrollTop - turns.clientHeight < NEAR_END_PX;
}

function scrollToEnd() {
  const turns = at("turns");
  turns.scrollTop = turns.scrollHeight;
}

/** A turn of the conversation on the page. `text` grows while the answer comes. */
function addTurn(role, content) {
  at("hello").hidden = true;
  const turn = made("article", `turn ${role}`);
  turn.append(made("p", "who", role === "user" ? "You" : model ?? "Model"));
  const text = made("p", "text");
  text.append(document.createTextNode(content.trimStart()));
  turn.append(text);
  at("turns").append(turn);
  return { turn, text: text.firstChild };
}

function showFacts(turn, facts) {
  const line = made("div", "facts");
  for (const fact of factWords(facts)) line.append(made("span", "", fact));
  turn.querySelector(".facts")?.remove();
  turn.append(line);
  return line;
}

function factWords(facts) {
  const words = [`${facts.isExact ? "" : "about "}${shortNumber(facts.numTokens)} tokens`];
  if (facts.perSecond) words.push(`${shortNumber(facts.perSecond)} tokens/s`);
  if (facts.firstMs !== null) words.push(`first token ${shortMs(facts.firstMs)}`);
  if (facts.numPrompt) words.push(`prompt ${shortNumber(facts.numPrompt)}, ${shortNumber(facts.numCached)} cached`);
  if (facts.ending && facts.ending !== "stop") words.push(ENDINGS[facts.ending] ?? facts.ending);
  return words;
}

const ENDINGS = { length: "ended at max tokens", stopped: "stopped by you", error: "ended by an error" };

function addActions(line, answer) {
  const does = made("span", "does");
  const copy = made("button", "small", "Copy");
  copy.type = "button";
  copy.addEventListener("click", async () => {
    await navigator.clipboard?.writeText(answer.content);
    say("Copied.");
  });
  const again = made("button", "small again", "Try again");
  again.type = "button";
  again.addEventListener("click", tryAgain);
  does.append(copy, again);
  line.append(does);
}

function showOnlyLastAgain() {
  const buttons = [...at("turns").querySelectorAll(".again")];
  buttons.forEach((button, index) => {
    button.hidden = running !== null || index !== buttons.length - 1;
  });
}

function showFailure(error) {
  const box = made("div", "failure");
  box.setAttribute("role", "alert");
  box.append(made("strong", "", "No answer. "), document.createTextNode(error.message));
  at("turns").append(box);
  scrollToEnd();
}

function clearFailures() {
  for (const box of at("turns").querySelectorAll(".failure")) box.remove();
}

function say(text) {
  write(at("status"), text);
}

function showRunning(isRunning) {
  at("send").hidden = isRunning;
  at("stop").hidden = !isRunning;
  at("clear").disabled = isRunning;
  showOnlyLastAgain();
}

// One answer.

/** The answer to the conversation so far, streamed onto the page. */
async function answer() {
  const { turn, text } = addTurn("assistant", "");
  turn.setAttribute("aria-busy", "true");
  running = new AbortController();
  showRunning(true);
  say("The model answers.");
  let taken = new Taken(turn, text);
  let failure = null;
  try {
    if (model === null) {
      await findModel();
      taken = new Taken(turn, text);
    }
    const response = await call("/v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(requestBody()),
      signal: running.signal,
    });
    for await (const event of events(response)) taken.take(event);
    if (taken.ending === null) throw new Failure("The answer broke off.");
  } catch (error) {
    if (error.name === "AbortError") taken.ending = "stopped";
    else failure = error instanceof Failure ? error : new Failure("The answer broke off.");
  }
  running = null;
  turn.removeAttribute("aria-busy");
  taken.show();
  finish(turn, taken, failure);
}

function finish(turn, taken, failure) {
  if (failure && !taken.content) {
    turn.remove();
    giveBack();
  } else {
    if (failure) taken.ending = "error";
    const kept = { role: "assistant", content: taken.content, facts: taken.facts() };
    conversation.push(kept);
    addActions(showFacts(turn, kept.facts), kept);
  }
  if (failure) showFailure(failure);
  keep(CONVERSATION, conversation);
  showRunning(false);
  say(failure ? "" : taken.ending === "stopped" ? "Stopped." : "The answer is complete.");
}

/** A message without an answer goes back to where it was written. */
function giveBack() {
  const { content } = conversation.pop();
  [...at("turns").querySelectorAll(".turn.user")].at(-1)?.remove();
  if (!at("message").value) at("message").value = content;
  fitMessage();
}

function requestBody() {
  const messages = conversation.map(({ role, content }) => ({ role, content }));
  const system = at("system").value.trim();
  if (system) messages.unshift({ role: "system", content: system });
  return { model, messages, stream: true, stream_options: { include_usage: true }, ...parameters() };
}

/** What has come of an answer, and how fast. Text goes onto the page once a frame, however many events came. */
class Taken {
  constructor(turn, text) {
    this.turn = turn;
    this.text = text;
    this.content = "";
    this.reasoning = "";
    this.ending = null;
    this.usage = null;
    this.numEvents = 0;
    this.sentMs = performance.now();
    this.firstMs = null;
    this.lastMs = null;
    this.isDue = false;
  }

  take(event) {
    if (event.error) throw new Failure(event.error.message ?? "The server ended the answer.");
    if (event.usage) this.usage = event.usage;
    const choice = event.choices?.[0];
    if (!choice) return;
    if (choice.finish_reason) this.ending = choice.finish_reason;
    const text = choice.delta?.content ?? "";
    const thought = choice.delta?.reasoning_content ?? "";
    if (!text && !thought) return;
    this.lastMs = performance.now();
    this.firstMs ??= this.lastMs;
    this.numEvents += 1;
    this.content += text;
    this.reasoning += thought;
    if (!this.isDue) {
      this.isDue = true;
      requestAnimationFrame(() => this.show());
    }
  }

  show() {
    this.isDue = false;
    const follows = isAtEnd();
    if (this.reasoning) this.showReasoning();
    const visible = this.content.trimStart(); // some models begin with a space
    if (visible.length > this.text.length) this.text.appendData(visible.slice(this.text.length));
    if (running && this.firstMs !== null) showFacts(this.turn, this.facts());
    if (follows) scrollToEnd();
  }

  showReasoning() {
    let box = this.turn.querySelector("details");
    if (!box) {
      box = made("details");
      box.append(made("summary", "", "Reasoning"), made("p"));
      this.turn.querySelector(".text").before(box);
    }
    write(box.querySelector("p"), this.reasoning);
  }

  facts() {
    const numTokens = this.usage?.completion_tokens ?? this.numEvents;
    // From the first token on. Where many tokens come in few events the first event has many of them, so all time counts.
    const isTokenByToken = this.numEvents > numTokens / 2;
    const seconds = this.firstMs === null ? 0 : (this.lastMs - (isTokenByToken ? this.firstMs : this.sentMs)) / 1000;
    return {
      numTokens,
      isExact: this.usage !== null,
      perSecond: seconds > 0 && numTokens > 1 ? (numTokens - 1) / seconds : 0,
      firstMs: this.firstMs === null ? null : this.firstMs - this.sentMs,
      numPrompt: this.usage?.prompt_tokens ?? 0,
      numCached: this.usage?.prompt_tokens_details?.cached_tokens ?? 0,
      ending: this.ending,
    };
  }
}

// What a person does.

function send() {
  const message = at("message");
  const content = message.value.trim();
  if (!content || running) return;
  if (!at("parameters").reportValidity()) {
    at("settings").open = true;
    return;
  }
  clearFailures();
  message.value = "";
  fitMessage();
  conversation.push({ role: "user", content });
  keep(CONVERSATION, conversation);
  addTurn("user", content);
  scrollToEnd();
  answer();
}

function tryAgain() {
  if (running) return;
  clearFailures();
  while (conversation.length && conversation.at(-1).role === "assistant") {
    conversation.pop();
    [...at("turns").querySelectorAll(".turn.assistant")].at(-1)?.remove();
  }
  answer();
}

function clearConversation() {
  conversation = [];
  keep(CONVERSATION, conversation);
  for (const turn of at("turns").querySelectorAll(".turn, .failure")) turn.remove();
  at("hello").hidden = false;
  say("A new conversation.");
  at("message").focus();
}

function fitMessage() {
  const message = at("message");
  message.rows = Math.min(8, message.value.split("\n").length);
}

at("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
at("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
at("message").addEventListener("input", fitMessage);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running && !at("key-dialog").open) running.abort();
});
at("stop").addEventListener("click", () => {
  running?.abort();
  at("message").focus();
});
at("clear").addEventListener("click", clearConversation);
at("parameters").addEventListener("input", keepParameters);
at("parameters").addEventListener("submit", (event) => event.preventDefault());

// The page as it begins.

for (const start of STARTS) {
  const button = made("button", "", start);
  button.type = "button";
  button.addEventListener("click", () => {
    at("message").value = start;
    send();
  });
  at("starts").append(button);
}
showParameters();
for (const { role, content, facts } of conversation) {
  const { turn } = addTurn(role, content);
  if (facts) addActions(showFacts(turn, facts), { content });
}
showOnlyLastAgain();
scrollToEnd();

async function findModel() {
  const models = await (await call("/v1/models")).json();
  model = models.data[0].id;
  write(at("model"), model);
  for (const who of at("turns").querySelectorAll(".assistant .who")) write(who, model);
}

try {
  await findModel();
} catch (error) {
  showFailure(error);
}
