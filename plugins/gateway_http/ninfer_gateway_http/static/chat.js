// The conversation: what is kept, and one streamed request at a time.

const FIELDS = ["system", "thinking", "temperature", "top_p", "top_k", "max_tokens", "seed", "tools"];
const NUMBERS = ["temperature", "top_p", "top_k", "max_tokens", "seed"];
let running = null;

function keep(store, name, value) {
  try {
    store.setItem(`ninfer.${name}`, value);
  } catch {
    // Storage may be full or forbidden; the page works without it.
  }
}

function kept(store, name) {
  try {
    return store.getItem(`ninfer.${name}`);
  } catch {
    return null;
  }
}

function save() {
  keep(localStorage, "messages", JSON.stringify(messages));
}

function headers() {
  const key = $("key").value.trim();
  const sent = { "content-type": "application/json" };
  if (key) sent.authorization = `Bearer ${key}`;
  return sent;
}

function asMessage({ role, content, reasoning, tool_calls: calls, tool_call_id: id }) {
  const sent = { role, content: content ?? "" };
  if (reasoning) sent.reasoning_content = reasoning;
  if (calls?.length) {
    sent.tool_calls = calls.map((call) => ({ id: call.id, type: "function", function: call.function }));
  }
  if (id) sent.tool_call_id = id;
  return sent;
}

function requestBody(history) {
  const body = {
    messages: history.filter((m) => !m.error || m.content || m.tool_calls).map(asMessage),
    stream: true,
    return_progress: true,
    stream_options: { include_usage: true },
  };
  const system = $("system").value.trim();
  if (system) body.messages.unshift({ role: "system", content: system });
  for (const name of NUMBERS) if ($(name).value !== "") body[name] = Number($(name).value);
  if ($("thinking").value) body.enable_thinking = $("thinking").value === "on";
  if ($("tools").value.trim()) body.tools = JSON.parse($("tools").value);
  return body;
}

async function* events(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + decoder.decode(value, { stream: true })).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (part.startsWith("data: ") && part !== "data: [DONE]") yield JSON.parse(part.slice(6));
    }
  }
}

function take(message, chunk) {
  if (chunk.error) throw new Error(chunk.error.message);
  if (chunk.timings) message.timings = chunk.timings;
  const progress = chunk.prompt_progress;
  if (progress) message.waiting = `reading the prompt, ${progress.processed} of ${progress.total} tokens`;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  if (choice.finish_reason) message.finish = choice.finish_reason;
  const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta;
  if (content || reasoning || calls) {
    const now = performance.now();
    message.began ??= now;
    message.pieces = (message.pieces ?? 0) + 1;
    const seconds = (now - message.began) / 1000;
    if (seconds > 0.3) message.rate = `about ${(message.pieces / seconds).toFixed(0)} tokens/s`;
    if (reasoning) message.thought_ms = now - message.began;
  }
  if (reasoning) message.reasoning = (message.reasoning ?? "") + reasoning;
  if (content) message.content += content;
  for (const piece of calls ?? []) {
    message.tool_calls ??= [];
    const call = message.tool_calls[piece.index] ??= { id: piece.id, function: { name: "", arguments: "" } };
    call.function.name += piece.function.name ?? "";
    call.function.arguments += piece.function.arguments ?? "";
  }
}

async function failure(reply) {
  const text = await reply.text();
  if (reply.status === 401) {
    showSettings(true);
    $("key").focus();
  }
  try {
    return `${reply.status}: ${JSON.parse(text).error.message}`;
  } catch {
    return `${reply.status}: ${text.slice(0, 300)}`;
  }
}

async function ask() {
  const message = { role: "assistant", content: "", live: true };
  running = new AbortController();
  busy(true);
  const history = [...messages];
  messages.push(message);
  draw(message);
  $("log").scrollTop = $("log").scrollHeight;
  try {
    const reply = await fetch("v1/chat/completions", {
      method: "POST",
      headers: headers(),
      body: JSON.stringify(requestBody(history)),
      signal: running.signal,
    });
    if (!reply.ok) throw new Error(await failure(reply));
    for await (const chunk of events(reply.body)) {
      take(message, chunk);
      redraw(message);
    }
    if (!message.finish) throw new Error("the connection ended before the answer did");
  } catch (error) {
    if (error.name === "AbortError") message.stopped = true;
    else message.error = error.message;
  }
  for (const name of ["live", "began", "pieces", "waiting"]) delete message[name];
  if (messages.includes(message)) {
    const follow = atEnd();
    draw(message);
    if (follow) $("log").scrollTop = $("log").scrollHeight;
  }
  running = null;
  busy(false);
  save();
}

function answerCalls(message) {
  if (running) return;
  message.answered = true;
  draw(message);
  for (const call of message.tool_calls) {
    messages.push({ role: "tool", content: call.result ?? "", tool_call_id: call.id });
    draw(messages.at(-1));
  }
  save();
  ask();
}

function busy(on) {
  $("send").hidden = on;
  $("stop").hidden = !on;
}

function showSettings(on) {
  $("settings").hidden = !on;
  $("options").setAttribute("aria-expanded", String(on));
}

function fit() {
  $("text").style.height = "auto";
  $("text").style.height = `${$("text").scrollHeight + 2}px`;
}

function submit(event) {
  event.preventDefault();
  const text = $("text").value.trim();
  if (!text || running) return;
  if (!messages.length) $("log").replaceChildren();
  messages.push({ role: "user", content: text });
  draw(messages.at(-1));
  $("text").value = "";
  fit();
  save();
  ask();
}

async function look() {
  try {
    const reply = await fetch("v1/models", { headers: headers() });
    if (!reply.ok) throw new Error(await failure(reply));
    const [model] = (await reply.json()).data;
    $("model").textContent = `${model.id} · ${model.max_model_len.toLocaleString("en")} tokens`;
    $("state").className = "dot good";
    $("state").title = "the server is ready";
    document.title = `${model.id} · NInfer`;
  } catch (error) {
    $("model").textContent = "";
    $("state").className = "dot bad";
    $("state").title = error.message;
  }
}

function start() {
  for (const name of FIELDS) {
    $(name).value = kept(localStorage, name) ?? "";
    $(name).addEventListener("input", () => keep(localStorage, name, $(name).value));
  }
  // The key stays with this tab alone.
  $("key").value = kept(sessionStorage, "key") ?? "";
  $("key").addEventListener("change", () => { keep(sessionStorage, "key", $("key").value); look(); });
  $("composer").addEventListener("submit", submit);
  $("settings").addEventListener("submit", (event) => event.preventDefault());
  $("text").addEventListener("input", fit);
  $("text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  });
  $("stop").addEventListener("click", () => running?.abort());
  $("options").addEventListener("click", () => showSettings($("settings").hidden));
  $("new").addEventListener("click", () => {
    running?.abort();
    messages = [];
    save();
    drawAll();
    $("text").focus();
  });
  // What was still arriving when the page was left is kept as far as it had come.
  addEventListener("pagehide", () => {
    for (const message of messages) if (message.live) { delete message.live; message.stopped = true; }
    save();
  });
  try {
    messages = JSON.parse(kept(localStorage, "messages")) ?? [];
    drawAll();
  } catch {
    // Of another version of this page.
    messages = [];
    drawAll();
  }
  look();
  $("text").focus();
}

start();
