// @ts-check
/* The tab that draws the curves with plotly, live, to look closely with its tools. Its library is asked from the kernel when the
   tab is first opened; the tab Curves draws by itself, so that there is a picture at once, and one without a kernel. */

const REDRAW_MS = 950; // the panel draws at most once a second, and only what is in sight

const MOST_SHOWN = 800;

/** Gets plotly, once for the page. */
function loadPlotly(/** @type {View} */ view) {
  const page = /** @type {any} */ (globalThis);
  if (!page.__rapidfirePlotly) {
    page.__rapidfirePlotly = view.ask("library", { name: "plotly" }).then(({ buffer }) => {
      if (!buffer) throw new Error("the kernel sent no library");
      const module = { exports: {} };
      // A loader on the page (`define`) must not see it, and no global is left behind.
      const [had, before] = ["Plotly" in page, page.Plotly];
      new Function("module", "exports", "define", new TextDecoder().decode(buffer))(module, module.exports, undefined);
      if (had) page.Plotly = before;
      else delete page.Plotly;
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
function tracesOf(
  /** @type {Line[]} */ lines,
  /** @type {Theme} */ theme,
  /** @type {(run: number) => string} */ about,
) {
  const grey = { x: /** @type {(number | null)[]} */ ([]), y: /** @type {(number | null)[]} */ ([]) };
  for (const line of lines.filter((one) => one.slot < 0)) {
    const { points, count } = thinned(line);
    grey.x.push(...points.slice(0, count), null);
    grey.y.push(...points.slice(count), null);
  }
  const plain = { type: "scatter", mode: "lines", connectgaps: false };
  const rest = grey.x.length
    ? [{ ...plain, ...grey, name: "others", line: { color: theme.grey, width: 1 }, opacity: 0.5, hoverinfo: "skip" }]
    : [];
  const colored = lines
    .filter((one) => one.slot >= 0)
    .map((line) => {
      const { points, count } = thinned(line);
      return {
        ...plain,
        x: points.slice(0, count),
        y: points.slice(count),
        name: plainText(line.title),
        text: plainText(about(line.run)),
        hovertemplate: "%{y:.4g}<br>%{text}",
        line: { color: slotColor(theme, line.slot), width: 2, dash: line.dashed ? "dash" : "solid" },
      };
    });
  return [...rest, ...colored];
}

/** Lines whose x is a time, in minutes: plotly has no axis of hours, minutes and seconds. Pure. */
function inMinutes(/** @type {Line[]} */ lines, /** @type {string} */ x) {
  return x === "time" ? lines.map((line) => ({ ...line, x: Float64Array.from(line.x, (at) => at / 60) })) : lines;
}

/** A line's points, as many as a wide screen can show: all x, then all y. */
function thinned(/** @type {Line} */ line) {
  const stride = Math.max(1, Math.ceil(line.x.length / MOST_SHOWN));
  const kept = Array.from(line.x, (_x, i) => i).filter((i) => i % stride === 0 || i === line.x.length - 1);
  return { points: [...kept.map((i) => line.x[i]), ...kept.map((i) => line.y[i])], count: kept.length };
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
      setText(note, "The same curves, drawn with plotly. Metric, axis and smoothing are chosen under Curves.");
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
    const lines = inMinutes(linesOf(view.state, wish, view.slots), wish.x);
    const axis = { gridcolor: theme.grid, zerolinecolor: theme.grid, color: theme.faint };
    const layout = {
      ...{
        uirevision: `${wish.metric} ${wish.x} ${wish.log}`,
        hovermode: "closest",
        showlegend: true,
        margin: { l: 56, r: 16, t: 16, b: 40 },
      },
      ...{
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        font: { color: theme.text, size: 11, family: theme.font },
      },
      xaxis: { ...axis, title: { text: wish.x === "time" ? `${X_TITLES.time} (min)` : X_TITLES[wish.x] } },
      shapes: chunkMarks(view.state, wish, lines)
        .filter((at) => at <= extent(lines, (line) => line.x)[1])
        .map((at) => ({
          type: "line",
          x0: at,
          x1: at,
          y0: 0,
          y1: 1,
          yref: "paper",
          line: { color: theme.grid, width: 1, dash: "dot" },
        })),
      yaxis: { ...axis, title: { text: plainText(wish.metric) }, type: wish.log ? "log" : "linear" },
    };
    const about = (/** @type {number} */ run) =>
      Object.entries(view.state.rows.get(run)?.params || {})
        .map(([name, value]) => `${shortName(name)} ${showValue(value)}`)
        .join(", ");
    plotly.react(plot, tracesOf(lines, theme, about), layout, { displaylogo: false, responsive: true });
  }

  return { element, update, show, destroy: () => ((gone = true), plotly?.purge(plot)) };
}
