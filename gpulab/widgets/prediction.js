// A question that is answered before the measurement shows: a number with its unit, or one of several choices.

function render({ model, el }) {
  const uid = unique("gpulab-predict");
  const { id, question: words, unit, choices, example } = model.get("asked");
  const eyebrow = element("div", { class: "gpulab-eyebrow" }, `Predict ${id}`);
  const question = element("div", { class: "gpulab-question", id: `${uid}-question` }, words);
  const form = element("form", { class: "gpulab-answer", novalidate: true });
  const save = element("button", { type: "submit", class: "gpulab-first" }, "Save");
  const error = element("div", { class: "gpulab-error", role: "alert", id: `${uid}-error` });
  const status = element("div", { class: "gpulab-kept", role: "status", tabindex: -1 });
  const lost = element("div", { class: "gpulab-error", id: `${uid}-lost`, hidden: true }, GONE);
  const root = element("div", { class: "gpulab gpulab-predict", role: "group", "aria-labelledby": `${uid}-question` }, eyebrow, question, form, error, lost, status);
  let answer;

  if (choices.length) {
    const boxes = choices.map((text, k) => element("label", {}, element("input", { type: "radio", name: uid, value: k }), " " + text));
    const group = element("div", { class: "gpulab-choices", role: "radiogroup", "aria-labelledby": `${uid}-question` }, ...boxes);
    group.addEventListener("change", () => setText(status, `Chosen: ${answer()}. Press Save to keep it.`));
    form.append(group, save);
    answer = () => { const chosen = group.querySelector("input:checked"); return chosen ? choices[chosen.value] : ""; };
  } else {
    const input = element("input", { type: "text", inputmode: "decimal", autocomplete: "off", id: `${uid}-input`, placeholder: `such as ${example}`, "aria-describedby": `${uid}-error` });
    input.addEventListener("input", () => { error.hidden = true; setText(status, "Press Enter or Save to keep it."); });
    form.append(element("label", { for: `${uid}-input` }, unit ? `Your prediction (${unit})` : "Your prediction"), input, save);
    answer = () => input.value.trim();
  }
  el.append(root);
  keepKeys(root);

  let gone = false;
  const kernel = line(model, el, () => {
    gone = true;
    for (const input of form.querySelectorAll("input, button")) input.disabled = true;
    draw();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    setText(status, "Saving");
    kernel.send({ do: "answer", value: answer() });
  });

  function draw() {
    const shown = model.get("revealed");
    if (shown && form.contains(document.activeElement)) status.focus();
    form.hidden = shown;
    lost.hidden = !gone || shown;
    setText(save, model.get("answered") ? "Save another" : "Save");
    save.classList.toggle("gpulab-first", !model.get("answered"));
    setText(status, model.get("status"));
    setText(error, model.get("error"));
    error.hidden = !model.get("error");
  }

  draw();
  const reactions = { "msg:custom": draw, ...kernel.reactions };
  for (const name of ["status", "error", "answered", "revealed"]) reactions[`change:${name}`] = draw;
  kernel.look();
  return listen(model, reactions);
}

export default { render };
