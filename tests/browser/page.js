// What the browser tests ask of JupyterLab's page; lab_driver.py injects it and calls it by name.
(() => {
  const panel = () => window.jupyterapp.shell.currentWidget;
  const kernel = () => panel().sessionContext.session.kernel;
  const outputs = () => [...document.querySelectorAll('.jp-OutputArea-output')];
  const lab = (window.__lab = { done: null, axeNumber: 0 });

  lab.ready = async () => {
    await window.jupyterapp.restored;
    await panel().context.ready;
    await kernel().info;
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
  lab.running = () => [...document.querySelectorAll('.jp-CodeCell')]
    .map((cell) => cell.innerText).filter((text) => text.includes('[*]')).map((text) => text.slice(0, 200));

  lab.kernelErrors = () => {
    const found = [];
    const cells = panel().content.model.cells;
    for (let i = 0; i < cells.length; i++) {
      for (const output of cells.get(i).toJSON().outputs || []) {
        if (output.output_type === 'error') found.push(`cell ${i}: ${output.ename}: ${output.evalue}`);
        const text = output.name === 'stderr' ? [].concat(output.text).join('') : '';
        if (text.includes('Traceback')) found.push(`cell ${i}: ${text.slice(-300)}`);
      }
    }
    return found;
  };

  lab.codeCells = () => [...panel().content.model.cells].filter((cell) => cell.type === 'code').map((cell) => cell.toJSON());

  const BROKEN = /Error displaying widget|Error creating widget|Error rendering output|Javascript Error|Failed to load model/;
  lab.broken = () => outputs().map((e) => e.innerText || '').filter((text) => BROKEN.test(text)).map((text) => text.slice(0, 300));

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
