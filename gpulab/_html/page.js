// Draws the figures of the page with the copy of plotly.js beside it, one after the other, and again when the page's width changes.
// Nothing is fetched. Without scripts each figure's words stand in its place.
(() => {
  // What is wider than the page scrolls, and what scrolls must be reachable by keyboard.
  const reachable = () => {
    for (const node of document.querySelectorAll(".gpulab-result, .rendered, .text table, pre, .gpulab-scope")) {
      if (node.scrollWidth > node.clientWidth + 1) { node.tabIndex = 0; node.setAttribute("role", "group"); node.setAttribute("aria-label", "Scrolls sideways"); }
      else if (node.getAttribute("aria-label") === "Scrolls sideways") for (const name of ["tabindex", "role", "aria-label"]) node.removeAttribute(name);
    }
  };
  reachable();
  addEventListener("resize", reachable);
  const figures = [...document.querySelectorAll("figure.plot")];
  const draw = (figure) => {
    const place = figure.querySelector(".plot-here");
    const { data, layout } = JSON.parse(figure.querySelector("script").textContent);
    delete layout.width;
    return Plotly.newPlot(place, data, { ...layout, autosize: true }, { displayModeBar: false, responsive: true }).then(() => {
      figure.dataset.drawn = "yes";
    });
  };
  const all = async () => {
    for (const figure of figures) {
      try { await draw(figure); } catch (error) { figure.querySelector(".plot-here").textContent = figure.querySelector(".plot-here").getAttribute("aria-label"); }
    }
    document.documentElement.dataset.drawn = "yes";
  };
  if (!figures.length || !window.Plotly) { document.documentElement.dataset.drawn = "yes"; return; }
  all();
})();
