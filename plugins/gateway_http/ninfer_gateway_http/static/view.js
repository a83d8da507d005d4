// How messages are shown. `messages` is the conversation, oldest first.

const $ = (id) => document.getElementById(id);
let messages = [];

function footer(message) {
  const times = message.timings;
  const parts = [];
  if (message.stopped) parts.push("stopped");
  else if (message.finish && message.finish !== "stop") parts.push(message.finish);
  if (times) {
    parts.push(`${times.predicted_n} tokens`);
    if (times.predicted_per_second) parts.push(`${times.predicted_per_second.toFixed(1)} tokens/s`);
    parts.push(`first after ${Math.round(times.queue_ms + times.prepare_ms + times.prompt_ms)} ms`);
    parts.push(`prompt ${times.prompt_n + times.cache_n}, ${times.cache_n} cached`);
  } else if (message.rate) {
    parts.push(message.rate);
  }
  const foot = element("div", "foot", ...parts.map((part) => element("span", "", part)));
  if (message.content && !message.live) foot.append(copyButton(() => message.content));
  return foot;
}

function thought(message, open) {
  const going = message.live && !message.content && !message.tool_calls;
  const took = message.thought_ms ? ` for ${(message.thought_ms / 1000).toFixed(1)} s` : "";
  const title = element("summary", "", going ? "Thinking …" : `Thought${took}`);
  const details = element("details", "", title, element("div", "", message.reasoning.trim()));
  details.open = open ?? going;
  return details;
}

function callCard(message, call) {
  let shown = call.function.arguments;
  try {
    shown = JSON.stringify(JSON.parse(shown), null, 2);
  } catch {
    // Still arriving, or not JSON: shown as it is.
  }
  const card = codeBlock(`calls ${call.function.name}`, shown);
  card.classList.add("call");
  if (message.live || message.answered) return card;
  const field = element("textarea");
  field.value = call.result ?? "";
  field.rows = 2;
  field.addEventListener("input", () => { call.result = field.value; save(); });
  card.append(element("label", "", "Result ", field));
  return card;
}

function draw(message) {
  const old = message.node;
  let node;
  if (message.role === "user") {
    node = element("div", "user", element("div", "", message.content));
  } else if (message.role === "tool") {
    node = element("div", "assistant", codeBlock("result", message.content));
  } else {
    node = element("div", "assistant");
    const details = old?.querySelector("details");
    const chosen = details && details.dataset.chosen ? details.open : null;
    if (message.reasoning) {
      node.append(thought(message, chosen));
      const made = node.querySelector("details");
      if (chosen !== null) made.dataset.chosen = "1";
      made.firstChild.addEventListener("click", () => { made.dataset.chosen = "1"; });
    }
    if (message.content) {
      const text = element("div", "text");
      text.append(markdown(message.content));
      node.append(text);
    }
    for (const call of message.tool_calls ?? []) node.append(callCard(message, call));
    if (message.error) node.append(element("div", "error", message.error));
    if (message.tool_calls?.length && !message.live && !message.answered) {
      const button = element("button", "", "Send results");
      button.type = "button";
      button.addEventListener("click", () => answerCalls(message));
      node.append(element("p", "", button));
    }
    if (message.live && !message.content && !message.reasoning) {
      node.append(element("div", "wait", message.waiting ?? "…"));
    }
    node.append(footer(message));
  }
  if (old?.isConnected) old.replaceWith(node);
  else $("log").append(node);
  Object.defineProperty(message, "node", { value: node, writable: true, configurable: true });
}

function drawAll() {
  $("log").replaceChildren();
  if (!messages.length) $("log").append(element("p", "empty", "Say something to the model."));
  for (const message of messages) draw(message);
  $("log").scrollTop = $("log").scrollHeight;
}

function atEnd() {
  const log = $("log");
  return log.scrollHeight - log.scrollTop - log.clientHeight < 60;
}

// Redraw at most once a frame, and follow the end only where the reader is there already.
let wanted = null;
function redraw(message) {
  if (wanted) return;
  wanted = requestAnimationFrame(() => {
    wanted = null;
    if (!messages.includes(message)) return;
    const follow = atEnd();
    draw(message);
    if (follow) $("log").scrollTop = $("log").scrollHeight;
  });
}
