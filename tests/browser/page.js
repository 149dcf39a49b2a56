// What the browser tests ask of JupyterLab's page; lab_driver.py injects it and calls it by name.
(() => {
  const panel = () => window.jupyterapp.shell.currentWidget;
  const kernel = () => panel().sessionContext.session.kernel;
  const outputs = () => [...document.querySelectorAll('.jp-OutputArea-output')];
  const lab = (window.__lab = { done: null, axeNumber: 0 });

  lab.ready = async () => {
    await window.jupyterapp.restored;
    await panel().context.ready;
    // The first answer was lost once: ask again instead of waiting for ever.
    for (let answered = false; !answered; ) {
      const later = new Promise((resolve) => setTimeout(resolve, 10000, false));
      const asked = kernel().requestKernelInfo().then(() => true);
      answered = await Promise.race([kernel().info.then(() => true), asked, later]);
    }
    window.jupyterapp.shell.collapseLeft();
    window.jupyterapp.shell.collapseRight();
  };

  lab.open = async (name) => {
    lab.done = null;
    const opened = await window.jupyterapp.commands.execute('docmanager:open', { path: name, factory: 'Notebook' });
    await opened.context.ready;
    window.jupyterapp.shell.activateById(opened.id);
    await opened.sessionContext.ready;
  };

  // Without the question whether to save.
  lab.close = async () => {
    const closing = panel();
    await closing.sessionContext.shutdown();
    closing.dispose();
  };

  lab.runAll = () => {
    lab.done = null;
    const finished = (how) => () => { lab.done = how; };
    window.jupyterapp.commands.execute('notebook:run-all-cells').then(finished('yes'), finished('failed'));
  };

  lab.idle = () => kernel().status === 'idle';
  lab.drawn = () => !outputs().some((e) => /^Loading widget/m.test(e.innerText || ''))
    && [...document.querySelectorAll('.js-plotly-plot')].every((plot) => plot.querySelector('.main-svg'));

  lab.codeCells = () => [...panel().content.model.cells].filter((cell) => cell.type === 'code').map((cell) => cell.toJSON());

  const BROKEN = /Error displaying widget|Error creating widget|Error rendering output|Javascript Error|Failed to load model/;
  lab.broken = () => {
    const found = outputs().map((e) => e.innerText || '').filter((text) => BROKEN.test(text)).map((text) => text.slice(0, 300));
    for (const [number, cell] of lab.codeCells().entries()) {
      for (const output of cell.outputs) {
        if (output.output_type === 'error') found.push(`code cell ${number}: ${output.ename}: ${output.evalue}`);
        const text = output.name === 'stderr' ? [].concat(output.text).join('') : '';
        if (text.includes('Traceback')) found.push(`code cell ${number}: ${text.slice(-300)}`);
      }
    }
    return found;
  };

  // Texts in plots whose contrast against the page is under 4.5, which axe leaves undecided.
  lab.pale = () => {
    const rgb = (s) => (s.match(/[\d.]+/g) || []).map(Number);
    const linear = (v) => ((v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    const page = rgb(getComputedStyle(document.querySelector('.jp-Notebook')).backgroundColor);
    const contrast = (text) => {
      const [r, g, b, a = 1] = rgb(getComputedStyle(text).fill);
      const ink = [r, g, b].map((v, k) => v * a + page[k] * (1 - a));
      const [high, low] = [light(ink), light(page)].sort((p, q) => q - p);
      return (high + 0.05) / (low + 0.05);
    };
    const texts = [...document.querySelectorAll('.js-plotly-plot text')].filter((t) => t.textContent.trim());
    return texts.filter((t) => contrast(t) < 4.5).map((t) => `pale: ${t.textContent}`);
  };

  // Visible parts of widgets whose text is cut, or that stick out of the cell's output.
  lab.cutOff = () => {
    const parts = [...document.querySelectorAll('.jupyter-widgets *')].filter((e) => e.checkVisibility());
    const seen = parts.filter((e) => !e.closest('svg, pre, select, input, [aria-hidden=true]'));
    const shown = seen.filter((e) => e.clientWidth > 20 && getComputedStyle(e).clipPath === 'none');
    const hides = (e) => e.scrollWidth > e.clientWidth + 4 && /hidden|clip/.test(getComputedStyle(e).overflowX);
    const right = (e) => e.getBoundingClientRect().right;
    const out = (e) => e.closest('.jp-OutputArea-output') && right(e) > right(e.closest('.jp-OutputArea-output')) + 1;
    return shown.filter((e) => hides(e) || out(e)).map((e) => `cut: ${e.outerHTML.slice(0, 160)}`);
  };

  lab.execute = async (code) => {
    let printed = '';
    let error = '';
    const future = kernel().requestExecute({ code, store_history: false });
    future.onIOPub = ({ header, content }) => {
      if (header.msg_type === 'stream') printed += content.text;
      if (header.msg_type === 'error') error = `${content.ename}: ${content.evalue}`;
    };
    await future.done;
    return { printed, error };
  };

  // JupyterLab's body has height 0, so axe takes everything for hidden and passes every contrast check: it gets a height first.
  lab.axe = async (within, only) => {
    document.documentElement.style.height = document.body.style.height = '100%';
    const hasContent = (e) => e.innerText.trim() || e.querySelector('svg,canvas,input,button,select');
    const areas = [...document.querySelectorAll(within)].filter(hasContent);
    if (!areas.length) return { areas: 0, violations: [] };
    for (const area of areas) area.dataset.axe = area.dataset.axe || String(++lab.axeNumber);
    const include = areas.map((area) => [`[data-axe="${area.dataset.axe}"]`]);
    const options = { resultTypes: ['violations'], ...(only.length ? { runOnly: only } : {}) };
    const result = await window.axe.run({ include }, options);
    const why = (node) => ((node.any[0] || node.all[0] || node.none[0] || {}).message || '');
    const violations = result.violations
      .filter((rule) => ['serious', 'critical'].includes(rule.impact))
      .flatMap((rule) => rule.nodes.map((node) => `${rule.id}: ${node.html.slice(0, 160)} (${why(node)})`));
    return { areas: areas.length, violations };
  };
})();
