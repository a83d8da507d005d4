// A little of Markdown as DOM nodes. Text only ever becomes a text node, so nothing that a model
// or a person writes is read as HTML. Every pattern is bounded: no text takes quadratic time.

function element(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

function copyButton(read) {
  const button = element("button", "small", "Copy");
  button.type = "button";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(read());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Cannot copy";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return button;
}

function codeBlock(title, text) {
  const code = element("code", "", text);
  const bar = element("div", "", element("span", "", title), copyButton(() => code.textContent));
  return element("div", "block", bar, element("pre", "", code));
}

const LINK = /\[([^\]\n]{1,300})\]\((https?:\/\/[^\s()<>]{1,2000})\)/y;
const ADDRESS = /https?:\/\/[^\s<>"'`()[\]]{1,2000}/y;

function at(pattern, text, index) {
  pattern.lastIndex = index;
  return pattern.exec(text);
}

function link(address, text) {
  const anchor = element("a", "", text);
  anchor.href = address;
  anchor.target = "_blank";
  anchor.rel = "noopener noreferrer";
  return anchor;
}

// The piece of markup that begins at `index`: its node and where it ends; null for plain text.
function piece(text, index) {
  const sign = text[index];
  if (sign === "`") {
    let length = 1;
    while (text[index + length] === "`") length += 1;
    const end = text.indexOf("`".repeat(length), index + length);
    if (end < 0) return { node: text.slice(index, index + length), end: index + length };
    return { node: element("code", "", text.slice(index + length, end)), end: end + length };
  }
  if (sign === "*") {
    const mark = text.startsWith("**", index) ? "**" : "*";
    const begin = index + mark.length;
    const end = text.indexOf(mark, begin);
    if (end <= begin || /\s/.test(text[begin]) || /\s/.test(text[end - 1])) return null;
    const node = element(mark === "**" ? "strong" : "em", "", text.slice(begin, end));
    return { node, end: end + mark.length };
  }
  if (sign === "[") {
    const found = at(LINK, text, index);
    return found && { node: link(found[2], found[1]), end: index + found[0].length };
  }
  const found = sign === "h" && at(ADDRESS, text, index);
  return found ? { node: link(found[0], found[0]), end: index + found[0].length } : null;
}

function inline(text, parent) {
  let plain = 0;
  for (let index = 0; index < text.length;) {
    const found = "`*[h".includes(text[index]) ? piece(text, index) : null;
    if (!found) {
      index += 1;
      continue;
    }
    parent.append(text.slice(plain, index), found.node);
    plain = index = found.end;
  }
  parent.append(text.slice(plain));
  return parent;
}

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([\w+#.-]{0,40})/;
const HEADING = /^#{1,6}[ \t]+(.*)$/;
const ITEM = /^[ \t]{0,12}(?:[-*+]|(\d{1,9})[.)])[ \t]+(.*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;

function markdown(text) {
  const lines = text.split("\n");
  const out = document.createDocumentFragment();
  for (let index = 0; index < lines.length;) {
    const fence = FENCE.exec(lines[index]);
    const heading = HEADING.exec(lines[index]);
    if (fence) {
      let end = index + 1;
      while (end < lines.length && lines[end].trim() !== fence[1]) end += 1;
      out.append(codeBlock(fence[2] || "text", lines.slice(index + 1, end).join("\n")));
      index = end + 1;
    } else if (heading) {
      out.append(inline(heading[1], element("h4")));
      index += 1;
    } else if (ITEM.test(lines[index])) {
      index = list(lines, index, out);
    } else if (QUOTE.test(lines[index])) {
      const quoted = [];
      for (; index < lines.length && QUOTE.test(lines[index]); index += 1) {
        quoted.push(QUOTE.exec(lines[index])[1]);
      }
      out.append(inline(quoted.join("\n"), element("blockquote")));
    } else {
      index = paragraph(lines, index, out);
    }
  }
  return out;
}

function list(lines, index, out) {
  const first = ITEM.exec(lines[index])[1];
  const items = element(first === undefined ? "ul" : "ol");
  if (first !== undefined) items.start = Number(first);
  for (; index < lines.length; index += 1) {
    const item = ITEM.exec(lines[index]);
    if (!item || (item[1] === undefined) !== (first === undefined)) break;
    items.append(inline(item[2], element("li")));
  }
  out.append(items);
  return index;
}

function paragraph(lines, index, out) {
  const begin = index;
  const other = (line) => FENCE.test(line) || HEADING.test(line) || ITEM.test(line)
    || QUOTE.test(line) || line.trim() === "";
  while (index < lines.length && !other(lines[index])) index += 1;
  if (index === begin) return index + 1;
  out.append(inline(lines.slice(begin, index).join("\n"), element("p")));
  return index;
}
