// @ts-check
/* The tab that shows the chosen metric with plotly, to look closely: its library is asked from the kernel when the tab is first opened. */

const REDRAW_MS = 5_000;

/** Gets plotly, once for the page. */
function loadPlotly(/** @type {View} */ view) {
  const page = /** @type {any} */ (globalThis);
  if (!page.__rapidfirePlotly) {
    page.__rapidfirePlotly = view.ask("library", { name: "plotly" }).then(({ buffer }) => {
      if (!buffer) throw new Error("the kernel sent no library");
      const module = { exports: {} };
      // A loader on the page (`define`) must not see it, and no global is left behind.
      new Function("module", "exports", "define", new TextDecoder().decode(buffer))(module, module.exports, undefined);
      return module.exports;
    });
    page.__rapidfirePlotly.catch(() => delete page.__rapidfirePlotly);
  }
  return page.__rapidfirePlotly;
}

/** Plotly escapes nothing in its texts: tags of its small markup are broken up. */
function plainText(/** @type {string} */ text) {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

/** Traces of lines: those highlighted in colour, all others joined by gaps into one grey trace. Pure. */
function tracesOf(/** @type {Line[]} */ lines, /** @type {Theme} */ theme) {
  const grey = { x: /** @type {(number | null)[]} */ ([]), y: /** @type {(number | null)[]} */ ([]) };
  for (const line of lines.filter((one) => one.slot < 0)) {
    grey.x.push(...Array.from(line.x), null);
    grey.y.push(...Array.from(line.y), null);
  }
  const plain = { type: "scatter", mode: "lines", connectgaps: false };
  const rest = grey.x.length ? [{ ...plain, ...grey, name: "others", line: { color: theme.grey, width: 1 }, opacity: 0.5, hoverinfo: "skip" }] : [];
  const colored = lines.filter((one) => one.slot >= 0).map((line) => ({ ...plain, x: Array.from(line.x), y: Array.from(line.y), name: plainText(line.title), line: { color: slotColor(theme, line.slot), width: 2, dash: line.dashed ? "dash" : "solid" } }));
  return [...rest, ...colored];
}

/** The tab. */
function createExplore(/** @type {View} */ view) {
  const plot = h("div", { class: "rf-plot rf-tall" });
  const note = h("p", { class: "rf-note" }, "Loading plotly from the kernel…");
  const element = h("div", { class: "rf-pane" }, note, plot);
  /** @type {any} */
  let plotly = null;
  let [drawn, at, gone] = ["", 0, false];

  async function show() {
    try {
      plotly = await loadPlotly(view);
      if (gone) return;
      setText(note, "The same curves in plotly; they are drawn again every few seconds. Metric and axis are chosen under Curves.");
      update(true);
    } catch (error) {
      setText(note, `Plotly is not there: ${/** @type {Error} */ (error).message}`);
    }
  }

  function update(force = false) {
    if (!plotly || gone || !plot.clientWidth) return;
    const { wish, theme } = view;
    const now = `${view.state.version} ${wish.metric} ${wish.x} ${wish.smooth} ${wish.log} ${theme.dark} ${[...wish.hidden]} ${wish.alone}`;
    if (now === drawn || (!force && performance.now() - at < REDRAW_MS)) return;
    [drawn, at] = [now, performance.now()];
    const lines = linesOf(view.state, wish, view.slots);
    const axis = { gridcolor: theme.grid, zerolinecolor: theme.grid, color: theme.faint };
    const layout = {
      ...{ uirevision: `${wish.metric} ${wish.x} ${wish.log}`, hovermode: "closest", showlegend: true, margin: { l: 56, r: 16, t: 16, b: 40 } },
      ...{ paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: theme.text, size: 11, family: theme.font } },
      xaxis: { ...axis, title: { text: X_TITLES[wish.x] } },
      yaxis: { ...axis, title: { text: plainText(wish.metric) }, type: wish.log ? "log" : "linear" },
    };
    plotly.react(plot, tracesOf(lines, theme), layout, { displaylogo: false, responsive: true });
  }

  return { element, update, show, destroy: () => ((gone = true), plotly?.purge(plot)) };
}
