// The SIMT microscope: the step of a warp with its buttons, its lanes, the source with its counts, and what each access touches.
// State comes from the kernel (traits, one way); what the reader does goes there as messages, the newest step only.

const SVG = "http://www.w3.org/2000/svg";
const LANE = 24, WIDTH = 32 * LANE, PLAY_MS = 700;

function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function picture(height, words) {
  return svg("svg", { viewBox: `-2 -2 ${WIDTH + 4} ${height + 4}`, role: "img", "aria-label": words, class: "gpulab-lanes" });
}

function box(x, y, width, height, kind, words, text) {
  const group = svg("g", { class: `gpulab-box gpulab-box-${kind}` }, svg("title", {}, words), svg("rect", { x, y, width, height }));
  if (text !== undefined) group.append(svg("text", { x: x + width / 2, y: y + height / 2 }, text));
  return group;
}

const laneBox = (lane, state, title) => box(lane * LANE + 1, 0, LANE - 2, 20, state, `lane ${lane}: ${title}`, state === "none" ? "" : lane);
const link = (lane, x, y) => svg("path", { class: "gpulab-link", d: `M${lane * LANE + LANE / 2},20 C${lane * LANE + LANE / 2},${y - 20} ${x},${40 - 20 + 12} ${x},${y}` });
const laneWords = (lanes) => (lanes.length === 0 ? "no lane" : lanes.length === 1 ? `lane ${lanes[0]}` : `${lanes.length} lanes, such as ${lanes[0]} and ${lanes[1]}`);

/** Sectors side by side; neighbors in memory touch, others stand apart. A cell is one element, filled where a lane touches it. */
function drawSectors(part, words) {
  const { columns, lanes } = part;
  const top = 62, height = 18;
  const node = picture(top + height + 16, words);
  const near = 2, far = columns.length > 8 ? 6 : 18;
  const gaps = columns.reduce((sum, column, k) => sum + (k === 0 ? 0 : column.gap ? far : near), 0);
  const width = (WIDTH - gaps) / Math.max(columns.length, 4);
  let x = (WIDTH - gaps - width * columns.length) / 2;
  const links = svg("g"), boxes = svg("g");
  const every = Math.ceil((Math.max(...columns.map((column) => column.label.length)) * 6 + 8) / (width + near));
  columns.forEach((column, k) => {
    if (k > 0) x += column.gap ? far : near;
    const cell = width / column.cells.length;
    column.cells.forEach(({ label, lanes: who }, c) => {
      const kind = who.length ? "touched" : cell < 8 ? "bare" : "idle";
      boxes.append(box(x + c * cell, top, cell, height, kind, `element ${label}: ${laneWords(who)}`));
      for (const lane of who) links.append(link(lane, x + (c + 0.5) * cell, top));
    });
    boxes.append(svg("rect", { class: "gpulab-frame", x, y: top, width, height }));
    if (k % every === 0) boxes.append(svg("text", { class: "gpulab-mark", x: x + width / 2, y: top + height + 11 }, column.label));
    x += width;
  });
  node.append(links, ...lanes.map((on, lane) => laneBox(lane, on ? "on" : "off", on ? "takes part" : "does not take part")), boxes);
  return node;
}

/** The 32 banks with the words that each must deliver, one below the other: the tallest is the number of wavefronts. */
function drawBanks(part, words) {
  const { columns, lanes } = part;
  const most = Math.max(...columns.map((column) => column.cells.length));
  const top = 56, head = 16, cell = Math.max(4, Math.min(14, 130 / most));
  const node = picture(top + head + most * cell + 16, words);
  const links = svg("g"), boxes = svg("g");
  columns.forEach((column, bank) => {
    const x = bank * LANE + 1, count = column.cells.length;
    boxes.append(box(x, top, LANE - 2, head, count ? "bank" : "idle", `bank ${bank}: ${count} word${count === 1 ? "" : "s"}`, bank));
    column.cells.forEach(({ label, lanes: who }, row) => {
      boxes.append(box(x, top + head + row * cell, LANE - 2, cell, count > 1 ? "conflict" : "touched", `bank ${bank}, ${label}: ${laneWords(who)}`));
      for (const lane of who) links.append(link(lane, x + LANE / 2 - 1, top));
    });
    if (count > 1) boxes.append(svg("text", { class: "gpulab-times", x: x + LANE / 2 - 1, y: top + head + count * cell + 11 }, `×${count}`));
  });
  node.append(links, ...lanes.map((on, lane) => laneBox(lane, on ? "on" : "off", on ? "takes part" : "does not take part")), boxes);
  return node;
}

const LEGENDS = {
  sectors: "Device memory: the 32 lanes on top, and below them the 32-byte sectors that they access. Requested elements are filled; empty ones are moved without being used. The number is a sector's first element.",
  banks: "Shared memory: the 32 lanes on top, below them the 32 banks, and below each bank the words that it must deliver one after the other. Lanes that read the same word share it.",
};

/** A line of code that keeps its indentation when it is broken: what does not fit goes on further in. */
function hanging(text) {
  const indent = text.length - text.trimStart().length + 4;
  const code = element("code", {}, text);
  code.style.paddingLeft = `${indent}ch`;
  code.style.textIndent = `-${indent}ch`;
  return code;
}

function render({ model, el }) {
  const uid = unique("gpulab-scope");
  const legend = (kind) => element("p", { class: "gpulab-legend" }, LEGENDS[kind]);
  const button = (text) => element("button", { type: "button" }, text);
  const previous = button("Previous"), next = button("Next"), play = button("Play");
  const slider = element("input", { type: "range", id: `${uid}-step`, min: 1, step: 1 });
  const label = element("label", { for: `${uid}-step` }, "Step");
  // An output is a live region of its own: beside the words it would speak at every step, and during Play without end.
  const count = element("output", { for: `${uid}-step`, class: "gpulab-shown", "aria-live": "off" });
  const transport = element("div", { class: "gpulab-transport", role: "group", "aria-label": "Steps of the warp" }, previous, next, play, label, slider, count);
  const words = element("p", { class: "gpulab-words", role: "status" });
  const strip = element("div", { class: "gpulab-strip" });
  const wrap = element("div", { class: "gpulab-source" });
  const accesses = element("div", { class: "gpulab-accesses" });
  const root = element("div", { class: "gpulab gpulab-scope", role: "group", "aria-label": "Step of a warp, and the source with its counts" }, transport, words, strip, wrap, accesses);
  el.append(root);
  keepKeys(root);
  for (const [name, color] of Object.entries(model.get("colors"))) root.style.setProperty(`--scope-${name}`, color);

  // One request in flight; then only the newest requested step is sent, however fast the slider moves.
  let seq = 0, busy = 0, wish = null, playing = null;
  let gone = false; // the kernel is not there any more; the controls above say so
  const kernel = line(model, el, () => {
    gone = true;
    busy = 0;
    wish = null;
    root.dataset.busy = false;
    pause();
    drawPosition();
    for (const number of wrap.querySelectorAll("button.gpulab-line")) number.disabled = true;
  });
  const position = () => model.get("position");
  const steps = () => position().steps ?? 0;
  const now = () => wish ?? (busy ? Number(slider.value) : position().step ?? 0);
  const post = (message) => { busy = ++seq; root.dataset.busy = true; kernel.send({ ...message, view: uid, seq }); };
  function go(step) {
    const there = Math.max(1, Math.min(steps(), step));
    slider.value = there;
    name();
    if (busy) wish = there;
    else post({ do: "set", name: "step", raw: there });
  }
  function name() {
    const text = steps() ? `${slider.value} of ${steps()}` : "none";
    setText(count, text);
    slider.setAttribute("aria-valuetext", `step ${text}`);
  }

  const able = (node, on) => node.setAttribute("aria-disabled", String(!on));
  slider.addEventListener("input", () => go(Number(slider.value)));
  previous.addEventListener("click", () => { if (previous.getAttribute("aria-disabled") !== "true") go(now() - 1); });
  next.addEventListener("click", () => { if (next.getAttribute("aria-disabled") !== "true") go(now() + 1); });
  play.addEventListener("click", () => (playing ? pause() : begin()));

  function begin() {
    if (gone || !steps()) return;
    if (now() >= steps()) go(1);
    words.setAttribute("aria-live", "off"); // a screen reader would be talked over
    setText(play, "Pause");
    playing = setInterval(() => {
      if (busy) return;
      if (now() >= steps()) pause();
      else go(now() + 1);
    }, PLAY_MS);
  }
  function pause() {
    clearInterval(playing);
    playing = null;
    words.removeAttribute("aria-live");
    setText(play, "Play");
  }

  // The source.

  let executed = "";
  function drawSource() {
    const rows = model.get("source"), lines = position().lines ?? [];
    executed = JSON.stringify(lines);
    wrap.hidden = rows.length === 0;
    if (wrap.hidden) return wrap.replaceChildren();
    const columns = model.get("columns");
    const head = element("thead", {}, element("tr", {}, ...columns.map((text) => element("th", { scope: "col" }, text))));
    const body = element("tbody");
    for (const { line, text, cells, findings } of rows) {
      let number = element("span", {}, String(line));
      if (lines.includes(line)) {
        number = element("button", { type: "button", class: "gpulab-line", title: "Go to the warp's next step at this line", "aria-label": `Line ${line}: go to the warp's next step there` }, String(line));
        number.addEventListener("click", () => { wish = null; post({ do: "line", line }); });
      }
      body.append(element("tr", { "data-line": line }, element("th", { scope: "row" }, number), element("td", {}, hanging(text)),
        ...cells.map((cell) => element("td", { class: cell.look ? "gpulab-look" : null }, cell.text))));
      for (const finding of findings) {
        body.append(element("tr", { class: "gpulab-finding" }, element("td"), element("td", { colspan: columns.length - 1 }, element("span", { class: "gpulab-badge" }, finding.kind), " ", finding.words)));
      }
    }
    wrap.replaceChildren(element("table", {}, element("caption", { class: "gpulab-hidden" }, model.get("label")), head, body));
    drawLine();
  }

  function drawLine() {
    for (const row of wrap.querySelectorAll("tr[data-line]")) {
      const here = Number(row.dataset.line) === position().line;
      if (!here) { row.removeAttribute("aria-current"); continue; }
      row.setAttribute("aria-current", "step");
      let last = row; // its findings belong to it
      while (last.nextElementSibling?.classList.contains("gpulab-finding")) last = last.nextElementSibling;
      const above = wrap.querySelector("thead").offsetHeight;
      const first = row.offsetTop - above, end = last.offsetTop + last.offsetHeight - wrap.clientHeight;
      if (first < wrap.scrollTop) wrap.scrollTop = first;
      else if (end > wrap.scrollTop) wrap.scrollTop = Math.min(end, first);
    }
  }

  // The step.

  let drawn = null; // an acknowledged step comes twice: as the new position and as the answer
  function drawPosition() {
    const at = position();
    slider.max = Math.max(at.steps ?? 1, 1);
    if (!busy && wish === null) slider.value = at.step ?? 1;
    name();
    able(previous, !gone && (at.step ?? 0) > 1);
    able(next, !gone && (at.step ?? 0) < (at.steps ?? 0));
    able(play, !gone && Boolean(at.steps));
    slider.disabled = gone || !at.steps;
    root.hidden = !at.steps && !model.get("source").length;
    if (at === drawn) return;
    drawn = at;
    setText(words, at.words ?? "");
    strip.hidden = !at.lanes?.length;
    if (!strip.hidden) {
      const lanes = picture(20, at.words);
      lanes.append(...at.lanes.map(({ state, title }, lane) => laneBox(lane, state, title + { on: ", active", off: ", idle", none: "" }[state])));
      strip.replaceChildren(lanes);
    }
    accesses.replaceChildren(...(at.accesses ?? []).map((access) => {
      const draw = access.kind === "sectors" ? drawSectors : drawBanks;
      const title = element("p", { class: "gpulab-access-title" }, element("strong", {}, access.title), ": ", element("span", { class: access.good ? null : "gpulab-look" }, access.words));
      const parts = access.parts.flatMap((part) => [...(part.title ? [element("p", { class: "gpulab-legend" }, part.title)] : []), draw(part, `${access.title}: ${access.words}`)]);
      return element("div", { class: "gpulab-access" }, title, ...parts);
    }), ...Object.keys(LEGENDS).filter((kind) => at.accesses?.some((access) => access.kind === kind)).map(legend));
    if (JSON.stringify(at.lines ?? []) !== executed) drawSource();
    else drawLine();
    if (playing && !at.steps) pause();
  }

  // What scrolls must be reachable by keyboard.
  const watch = new ResizeObserver(() => {
    drawLine();
    if (wrap.scrollHeight > wrap.clientHeight + 1 || wrap.scrollWidth > wrap.clientWidth + 1) {
      wrap.tabIndex = 0; wrap.setAttribute("role", "region"); wrap.setAttribute("aria-label", model.get("label"));
    } else for (const attribute of ["tabindex", "role", "aria-label"]) wrap.removeAttribute(attribute);
  });
  watch.observe(wrap);

  const onMessage = (message) => {
    if (message.view !== uid || message.ack !== busy) return;
    busy = 0;
    root.dataset.busy = false;
    if (wish !== null) { const step = wish; wish = null; go(step); } else drawPosition();
  };
  const end = listen(model, { "change:source": drawSource, "change:position": drawPosition, "msg:custom": onMessage, ...kernel.reactions });
  drawSource();
  drawPosition();
  kernel.look();
  return () => { pause(); watch.disconnect(); end(); };
}

export default { render };
