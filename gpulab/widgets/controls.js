// The controls of an instrument: native elements, so that keyboard and screen reader work as everywhere else.
// State comes from the kernel (traits, one way); what the reader does goes there as messages, the newest one only.
// A choice goes there with its text: the list may be another one by the time that the kernel reads it, and its third option another thing.

/** One kind of control: `fill` follows the spec, `show` follows the value, `onInput` is told what the reader did. */
const KINDS = {
  choice(id, onInput) {
    const select = element("select", { id });
    let texts = [];
    select.addEventListener("change", () => onInput(picked(texts, select.selectedIndex)));
    return {
      nodes: [select],
      focusable: select,
      fill(item) {
        if (JSON.stringify(texts) === JSON.stringify(item.options)) return;
        texts = item.options;
        select.replaceChildren(...texts.map((text) => element("option", {}, text)));
      },
      show(raw) { select.selectedIndex = raw; },
    };
  },

  slider(id, onInput) {
    const range = element("input", { id, type: "range", min: 0, step: 1 });
    // An output is a live region of its own: a screen reader would tell each value twice, here and as the slider's own text.
    const shown = element("output", { for: id, class: "gpulab-shown", "aria-live": "off" });
    let texts = [];
    const name = () => { setText(shown, texts[range.value] ?? ""); range.setAttribute("aria-valuetext", texts[range.value] ?? ""); };
    range.addEventListener("input", () => { name(); onInput(picked(texts, Number(range.value))); });
    return {
      nodes: [element("span", { class: "gpulab-slide" }, range, shown)],
      focusable: range,
      fill(item) { texts = item.options; range.max = texts.length - 1; shown.style.minWidth = Math.max(...texts.map((t) => t.length)) + "ch"; name(); },
      show(raw) { range.value = raw; name(); },
    };
  },

  number(id, onInput) {
    const input = element("input", { id, type: "number", autocomplete: "off" });
    let suggestions = [];
    let typing = false; // from the first key until Enter or the way out: what others change meanwhile must not overwrite it
    let missed = null; // what they changed it to; shown where the reader leaves what was there before, which is no change of his
    const typed = () => { typing = false; missed = null; };
    input.addEventListener("input", () => { typing = true; });
    input.addEventListener("blur", () => { if (missed !== null) input.value = missed; typed(); });
    input.addEventListener("change", () => { typed(); onInput(input.value); });
    input.addEventListener("keydown", (event) => {
      const up = event.key === "ArrowUp";
      if (!suggestions.length || !(up || event.key === "ArrowDown")) return;
      event.preventDefault();
      const now = Number(input.value);
      const next = up ? suggestions.find((s) => s > now) : suggestions.findLast((s) => s < now);
      if (next !== undefined) { typed(); input.value = next; onInput(input.value); }
    });
    return {
      nodes: [input],
      focusable: input,
      fill(item) {
        suggestions = [...item.suggestions].sort((a, b) => a - b);
        input.step = item.integer ? 1 : "any";
        for (const bound of ["min", "max"]) item[bound] === null ? input.removeAttribute(bound) : input.setAttribute(bound, item[bound]);
      },
      show(raw) {
        if (typing) { missed = raw; return; }
        input.value = raw;
        input.style.minWidth = `${String(raw).length + 5}ch`; // with its arrows
      },
    };
  },

  switch(id, onInput) {
    const box = element("input", { id, type: "checkbox" });
    box.addEventListener("change", () => onInput(box.checked));
    return { nodes: [box], focusable: box, inline: true, fill() {}, show(raw) { box.checked = raw; } };
  },

  radio: (id, onInput) => boxes(id, "radio", (chosen) => onInput(chosen[0])),
  several: (id, onInput) => boxes(id, "checkbox", onInput),
};

/** An option as the kernel takes it. */
function picked(texts, index) {
  return { index, text: texts[index] };
}

function boxes(id, type, onInput) {
  const group = element("div", { class: "gpulab-boxes" });
  let texts = [];
  const inputs = () => [...group.querySelectorAll("input")];
  return {
    nodes: [group],
    focusable: group,
    group: true,
    fill(item) {
      if (JSON.stringify(texts) === JSON.stringify(item.options)) return;
      texts = item.options;
      group.replaceChildren(...texts.map((text) => {
        const input = element("input", { type, name: id });
        input.addEventListener("change", () => onInput(inputs().flatMap((box, k) => (box.checked ? [picked(texts, k)] : []))));
        return element("label", {}, input, " " + text);
      }));
    },
    show(raw) { inputs().forEach((box, k) => { box.checked = Array.isArray(raw) ? raw.includes(k) : raw === k; }); },
  };
}

/** Sends to the kernel: one message in flight for each control, and then only the newest value, however fast the slider moves. */
function outbox(kernel, view, onWaiting) {
  let seq = 0;
  const waiting = new Set(); // the numbers that are not answered yet
  const busy = new Map(); // name -> {seq, raw, next}
  const send = (what) => { waiting.add(++seq); onWaiting(true); kernel.send({ ...what, view, seq }); return seq; };
  const post = (name, raw) => { busy.set(name, { seq: send({ do: "set", name, raw }), raw, next: undefined }); };
  return {
    set(name, raw) {
      const under = busy.get(name);
      if (under) under.next = { raw };
      else post(name, raw);
    },
    run(action) {
      // The work is done with what is on the screen. The kernel has threads for messages, so one may overtake another: what it may not have yet
      // goes with this one too.
      for (const [name, under] of busy) if (under.next) post(name, under.next.raw);
      return send({ do: "run", action, values: [...busy].map(([name, under]) => [name, under.raw, under.seq]) });
    },
    stop() { send({ do: "stop" }); },
    acknowledged(number) {
      waiting.delete(number);
      for (const [name, under] of busy) {
        if (under.seq !== number) continue;
        busy.delete(name);
        if (under.next) post(name, under.next.raw);
      }
      onWaiting(waiting.size > 0);
    },
    isBusy: (name) => busy.has(name),
  };
}

function render({ model, el }) {
  const uid = unique("gpulab");
  let gone = false; // the kernel is not there any more
  const kernel = line(model, el, lose);
  const out = outbox(kernel, uid, (waits) => { root.dataset.busy = waits && !gone; });
  const fields = new Map();
  let asked = null; // a button was pressed and the kernel has not answered yet

  const help = element("div", { class: "gpulab-help", "aria-hidden": "true" });
  const grid = element("div", { class: "gpulab-controls" });
  const buttons = element("div", { class: "gpulab-buttons" });
  const bar = element("progress", { max: 1, "aria-label": "Progress" });
  const text = element("span", { class: "gpulab-progress-text" });
  const said = element("span", { class: "gpulab-hidden", role: "status" });
  const error = element("div", { class: "gpulab-error", role: "alert" });
  const lost = element("div", { class: "gpulab-error", id: `${uid}-lost`, hidden: true }, GONE); // no alert: a restart would speak it for every panel
  const heading = element("div", { class: "gpulab-heading" });
  const title = element("div", { class: "gpulab-title", id: `${uid}-title` });
  const summary = element("div", { class: "gpulab-summary" });
  const stop = element("button", { type: "button", class: "gpulab-stop" }, "Stop");
  const running = element("div", { class: "gpulab-running" }, buttons, bar, text, said);
  heading.append(title, summary);
  const root = element("div", { class: "gpulab", role: "group", "aria-labelledby": `${uid}-title` }, heading, grid, help, running, error, lost);
  el.append(root);
  keepKeys(root);

  const showHelp = (words) => setText(help, words || "Point at a control, or move to it with Tab: this line says what it does.");
  const state = () => (gone ? "idle" : asked && model.get("state") === "idle" ? "asked" : model.get("state"));

  function makeField(item) {
    const id = `${uid}-${item.name}`;
    const control = KINDS[item.kind](id, (raw) => out.set(item.name, raw));
    const label = element(control.group ? "span" : "label", control.group ? { id: `${id}-label` } : { for: id });
    const words = element("span", { class: "gpulab-hidden", id: `${id}-help` });
    const box = element("div", { class: `gpulab-field gpulab-${item.kind}` });
    box.append(...(control.inline ? [...control.nodes, label] : [label, ...control.nodes]), words);
    if (control.group) {
      control.focusable.setAttribute("role", item.kind === "radio" ? "radiogroup" : "group");
      control.focusable.setAttribute("aria-labelledby", `${id}-label`);
    }
    control.focusable.setAttribute("aria-describedby", `${id}-help`);
    const helpOn = () => showHelp(fields.get(item.name)?.item.help);
    const helpOff = () => showHelp("");
    for (const [kind, react] of [["focusin", helpOn], ["mouseenter", helpOn], ["focusout", helpOff], ["mouseleave", helpOff]]) box.addEventListener(kind, react);
    return { box, label, words, control, item };
  }

  function drawFields() {
    const spec = model.get("spec");
    for (const [name, field] of fields) if (!spec.some((s) => s.name === name && s.kind === field.item.kind)) { field.box.remove(); fields.delete(name); }
    for (const item of spec) {
      if (!fields.has(item.name)) { const field = makeField(item); fields.set(item.name, field); grid.append(field.box); }
      const field = fields.get(item.name);
      field.item = item;
      field.box.hidden = item.hidden;
      setText(field.label, item.unit ? `${item.label} (${item.unit})` : item.label);
      setText(field.words, item.help);
      field.control.fill(item);
    }
    grid.hidden = spec.length === 0;
    help.hidden = !spec.some((item) => item.help);
    drawValues();
  }

  function drawValues() {
    const values = model.get("values");
    const refused = model.get("error_control");
    for (const [name, field] of fields) {
      if (name in values && name !== refused && !out.isBusy(name)) field.control.show(values[name]);
      if (name === refused) field.control.focusable.setAttribute("aria-invalid", "true");
      else field.control.focusable.removeAttribute("aria-invalid");
    }
  }

  function drawButtons() {
    buttons.replaceChildren(...model.get("actions").map((action) => {
      const button = element("button", { type: "button", class: "gpulab-run", "data-action": action.name, title: action.help || null }, action.label);
      button.addEventListener("click", () => {
        if (button.getAttribute("aria-disabled") === "true") return;
        asked = { seq: out.run(action.name), label: action.label };
        drawState();
      });
      return button;
    }), stop);
    running.hidden = model.get("actions").length === 0;
    drawFirst();
    drawState();
  }

  // The button that the eye should find.
  function drawFirst() {
    for (const button of buttons.querySelectorAll(".gpulab-run")) button.classList.toggle("gpulab-first", button.dataset.action === model.get("first"));
  }

  stop.addEventListener("click", () => {
    if (stop.getAttribute("aria-disabled") === "true") return;
    stop.setAttribute("aria-disabled", "true"); // seen at once; the kernel's word follows
    setText(text, "Stopping after the call in flight");
    out.stop();
  });

  function drawState() {
    const now = state();
    const idle = now === "idle";
    for (const button of buttons.querySelectorAll(".gpulab-run")) button.setAttribute("aria-disabled", String(!idle || gone));
    const hadFocus = stop.getRootNode().activeElement === stop;
    stop.hidden = now === "idle" || now === "asked";
    if (stop.hidden && hadFocus) buttons.querySelector(".gpulab-run")?.focus();
    stop.setAttribute("aria-disabled", String(now === "stopping"));
    bar.hidden = idle;
    bar.value = model.get("fraction");
    setText(text, gone ? "" : now === "asked" ? `${asked.label}: asking the kernel` : model.get("progress"));
    if (now !== "running") setText(said, text.textContent);
    root.setAttribute("aria-busy", String(!idle));
    root.dataset.ended = model.get("ended");
  }

  function drawError() {
    setText(error, model.get("error"));
    error.hidden = !model.get("error");
    drawValues();
  }

  // Nothing on the screen may wait for an answer, or look as if it could give one.
  function lose() {
    gone = true;
    root.dataset.busy = false;
    lost.hidden = false;
    for (const button of buttons.querySelectorAll(".gpulab-run")) button.setAttribute("aria-describedby", lost.id);
    for (const { box } of fields.values()) for (const input of box.querySelectorAll("select, input")) input.disabled = true;
    drawState();
  }

  function drawHeading() {
    setText(title, model.get("title"));
    setText(summary, model.get("summary"));
    summary.hidden = !model.get("summary");
  }

  const onMessage = (message) => {
    if (message.view !== uid) return;
    out.acknowledged(message.ack);
    if (asked && message.ack === asked.seq) { asked = null; drawState(); }
    drawValues();
  };
  const listeners = {
    "change:spec": drawFields, "change:values": drawValues, "change:actions": drawButtons, "change:first": drawFirst, "change:error": drawError, "change:error_control": drawError,
    "change:title": drawHeading, "change:summary": drawHeading, "msg:custom": onMessage, ...kernel.reactions,
  };
  for (const name of ["state", "fraction", "progress", "ended"]) listeners[`change:${name}`] = drawState;
  const end = listen(model, listeners);

  showHelp("");
  drawHeading();
  drawFields();
  drawButtons();
  drawError();
  kernel.look();
  return end;
}

export default { render };
