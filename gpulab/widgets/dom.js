// Put before each of our widgets' scripts: the few helpers that all of them use.

// anywidget (0.9 to 0.11) gives a model two seconds to load its script. Where the page is busy for longer (plotly is being loaded, on a slow
// machine), the panel is drawn all the same, but is deaf to its kernel for ever. There is no setting for it, so the page gets more patience.
if (!AbortSignal.timeout.patient) {
  const limit = AbortSignal.timeout.bind(AbortSignal);
  AbortSignal.timeout = Object.assign((milliseconds) => limit(milliseconds === 2000 ? 60000 : milliseconds), { patient: true });
}

/** A name that no other instrument on the page has: each widget loads its own copy of this script, so a counter would not do. */
function unique(prefix) {
  return `${prefix}-${Math.random().toString(36).slice(2, 10)}`;
}

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** JupyterLab takes arrow keys, Enter and letters for its own shortcuts; keep plain keys here, let Escape and Ctrl/Cmd pass. */
function keepKeys(node) {
  node.dataset.gpulabKeys = "kept";
  node.addEventListener("keydown", (event) => {
    if (isPlainKey(event)) event.stopPropagation();
  });
}

function isPlainKey(event) {
  return !(event.ctrlKey || event.metaKey || event.key === "Escape");
}

// Notebook 7 takes its shortcuts from the document before a key reaches the node that it is meant for: D twice would delete the cell. It leaves
// the keys of an element with this attribute alone. One listener serves all instruments of the page.
if (!window.gpulabListensToKeys) {
  window.gpulabListensToKeys = true;
  window.addEventListener("keydown", (event) => {
    if (event.target.closest?.("[data-gpulab-keys]")) event.target.toggleAttribute("data-lm-suppress-shortcuts", isPlainKey(event));
  }, true);
}

/** Listen to a model's traits and messages; returns the function that ends it. */
function listen(model, reactions) {
  for (const [name, react] of Object.entries(reactions)) model.on(name, react);
  return () => { for (const [name, react] of Object.entries(reactions)) model.off(name, react); };
}

/**
 * Make a panel hear its kernel again. Of the page's first panel the script itself may come later than anywidget waits, before the page has
 * more patience: each message of the kernel then waits for a promise that was broken. Such a panel listens by itself, and asks for its state.
 */
async function hear(model) {
  try {
    const whole = await model.widget_manager.get_model(model.get("own_id"));
    const deaf = await whole._handle_comm_msg({ content: { data: {} } }).then(() => false, () => true);
    if (!deaf) return;
    const heard = Object.getPrototypeOf(Object.getPrototypeOf(whole))._handle_comm_msg; // ipywidgets' own, which waits for nothing
    whole._handle_comm_msg = heard; // so that a second view finds it mended
    whole.comm.on_msg((message) => heard.call(whole, message));
    whole.comm.send({ method: "request_state" }, {});
  } catch { /* without a kernel there is nothing to hear */ }
}

const GONE = "The kernel that made this is gone: it was restarted or shut down, or the notebook was reopened. Run the cells up to this one again.";

/** The connection to the kernel. `lost` is called once, when it is known that the kernel will not answer any more; later messages are dropped. */
function line(model, el, lost) {
  let live = true;
  const end = () => { if (live) { live = false; lost(); } };
  hear(model);
  return {
    // anywidget shows no comm. A restart is this event of the model, which ipywidgets fires for nothing else once there is a view.
    reactions: { comm_live_update: end },
    // A view of a model that never had a kernel, or has lost it before, bears this class of ipywidgets from the start.
    look() { if (el.classList.contains("jupyter-widgets-disconnected")) end(); },
    send(message) {
      if (!live) return;
      try { model.send(message); } catch { end(); } // the kernel was shut down
    },
  };
}
