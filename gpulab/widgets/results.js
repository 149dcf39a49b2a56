// What an instrument shows under its picture: caption, table, evidence, notes and the code that gives the same result.

function badge(name) {
  return element("span", { class: `gpulab-badge gpulab-badge-${name.toLowerCase()}` }, name);
}

function cell(tag, content, attributes = {}) {
  const long = content?.length > 20 ? "gpulab-long" : null;
  return element(tag, { ...attributes, class: long }, content && content.badge ? badge(content.badge) : content);
}

async function copy(code, button) {
  let done = true;
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    // Without a secure context there is no clipboard: select the text, so that Ctrl+C takes it.
    const range = document.createRange();
    range.selectNodeContents(code);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    done = false;
  }
  button.textContent = done ? "Copied" : "Selected: press Ctrl+C";
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}

function render({ model, el }) {
  const uid = unique("gpulab-results");
  const message = element("p", { class: "gpulab-message", role: "status" });
  const caption = element("p", { class: "gpulab-hidden" }); // the picture in words; the table shows the same to all
  const wrap = element("div", { class: "gpulab-table" });
  const status = element("ul", { class: "gpulab-status", "aria-label": "Evidence and notes" });
  const code = element("code");
  const button = element("button", { type: "button", class: "gpulab-copy" }, "Copy");
  const lines = element("pre", {}, code);
  const details = element("details", { class: "gpulab-code" }, element("summary", {}, "Show the code"), element("div", {}, lines, button));
  const root = element("div", { class: "gpulab gpulab-results" }, message, caption, wrap, status, details);
  el.append(root);
  keepKeys(root);
  button.addEventListener("click", () => copy(code, button));

  // What is wider than the page scrolls, and what scrolls must be reachable by keyboard.
  const watch = new ResizeObserver(() => {
    for (const [node, words] of [[wrap, model.get("label")], [lines, "Code"]]) {
      if (node.scrollWidth > node.clientWidth + 1) { node.tabIndex = 0; node.setAttribute("role", "region"); node.setAttribute("aria-label", words); }
      else for (const name of ["tabindex", "role", "aria-label"]) node.removeAttribute(name);
    }
  });
  watch.observe(wrap);
  watch.observe(lines);

  const shown = () => model.get("shown");
  let drawn = ""; // the table as it stands: drawn anew, it would lose its place where it scrolls

  function drawTable() {
    const { headers, rows } = shown();
    const now = JSON.stringify([headers, rows, model.get("label")]);
    if (now === drawn) return;
    drawn = now;
    wrap.hidden = rows.length === 0;
    if (wrap.hidden) return wrap.replaceChildren();
    const table = element("table", { id: uid }, element("caption", { class: "gpulab-hidden" }, model.get("label")));
    if (headers.some((h) => h)) table.append(element("thead", {}, element("tr", {}, ...headers.map((h) => (h ? element("th", { scope: "col" }, h) : element("td"))))));
    table.append(element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((c, k) => (k === 0 ? cell("th", c, { scope: "row" }) : cell("td", c)))))));
    wrap.replaceChildren(table);
  }

  /** One line of evidence. Of a long one (a model's assumptions and sources) the rest unfolds, and stays unfolded. */
  function evidenceLine({ badge: name, text, rest }, before) {
    if (!rest) return element("li", {}, badge(name), " ", text);
    const details = before?.querySelector("details") ?? element("details", {}, element("summary"), element("div"));
    const [summary, unfolds] = details.children;
    summary.replaceChildren(badge(name), " ", text);
    setText(unfolds, rest);
    return details.parentElement ?? element("li", {}, details);
  }

  const note = (n) => element("li", { class: "gpulab-note" }, element("span", { class: "gpulab-note-code" }, n.code), " ", n.sentence);
  const fold = element("li", {}, element("details", { class: "gpulab-more" }, element("summary"), element("ul")));

  function drawStatus() {
    const before = [...status.children].filter((line) => line !== fold);
    const evidence = shown().evidence.map((e, k) => evidenceLine(e, before[k]));
    const more = shown().more.map(note), [summary, list] = fold.firstChild.children;
    setText(summary, `${more.length} more note${more.length === 1 ? "" : "s"}`);
    list.replaceChildren(...more);
    const lines = [...evidence, ...shown().notes.map(note), ...(more.length ? [fold] : [])];
    // A line that was there is left in place: taken out and put back, it would lose the focus.
    for (const old of [...status.children]) if (!lines.includes(old)) old.remove();
    for (const [k, line] of lines.entries()) if (status.children[k] !== line) status.insertBefore(line, status.children[k] ?? null);
    status.hidden = status.children.length === 0;
  }

  function drawTexts() {
    for (const [node, name] of [[message, "message"], [caption, "caption"], [code, "code"]]) {
      setText(node, shown()[name]);
    }
    message.hidden = !shown().message;
    caption.hidden = !shown().caption;
    details.hidden = !shown().code;
    const busy = model.get("busy") && !gone;
    root.setAttribute("aria-busy", String(busy));
    root.classList.toggle("gpulab-old", busy);
  }

  let gone = false; // no kernel will say that the work is over
  const kernel = line(model, el, () => { gone = true; drawTexts(); });
  const draw = () => { drawTable(); drawStatus(); drawTexts(); };
  const listeners = { ...kernel.reactions, "change:shown": draw, "change:label": drawTable, "change:busy": drawTexts };
  const end = listen(model, listeners);
  draw();
  kernel.look();
  return () => { watch.disconnect(); end(); };
}

export default { render };
