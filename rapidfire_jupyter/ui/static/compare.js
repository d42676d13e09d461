// @ts-check
/* The tab that compares: parallel coordinates, one axis for each hyperparameter that differs and one for the metric. */

/**
 * Axes and where each run crosses them, from 0 (below) to 1. Pure.
 * @param {State} state @param {string} metric
 */
function planCompare(state, metric) {
  const rows = [...state.rows.values()].filter(
    (row) => row.status !== "deleted" && Number.isFinite(toNumber(row.last[metric])),
  );
  const names = [...(state.head?.varying || []), metric];
  const axes = names.map((name) => {
    const values = rows.map((row) => (name === metric ? toNumber(row.last[metric]) : row.params[name]));
    const numeric = values.every((value) => typeof value === "number" && Number.isFinite(value));
    if (!numeric) {
      const kinds = [...new Set(values.map(showValue))].sort();
      return {
        name,
        ticks: kinds.map((text, i) => ({ text, at: kinds.length > 1 ? i / (kinds.length - 1) : 0.5 })),
        at: values.map((value) => (kinds.length > 1 ? kinds.indexOf(showValue(value)) / (kinds.length - 1) : 0.5)),
      };
    }
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const log = low > 0 && high / low >= 50;
    const scale = (/** @type {number} */ v) =>
      high === low ? 0.5 : log ? Math.log(v / low) / Math.log(high / low) : (v - low) / (high - low);
    const own = [...new Set(values)].sort((a, b) => a - b);
    const shown = own.length <= 6 ? own : [low, log ? Math.sqrt(low * high) : (low + high) / 2, high];
    return {
      name,
      ticks: shown.map((value) => ({ text: showNumber(value, 3), at: scale(value) })),
      at: values.map(scale),
    };
  });
  return { rows, axes };
}

/** Draws it. */
function drawCompare(
  /** @type {Pen} */ pen,
  /** @type {ReturnType<typeof planCompare>} */ plan,
  /** @type {View} */ view,
  /** @type {number} */ width,
  /** @type {number} */ height,
) {
  const { theme } = view;
  const [left, right, top, bottom] = [24, 72, 28, height - 12];
  const toX = (/** @type {number} */ index) =>
    left + (plan.axes.length > 1 ? (index / (plan.axes.length - 1)) * (width - left - right) : 0);
  const toY = (/** @type {number} */ share) => bottom - share * (bottom - top);
  const order = plan.rows
    .map((row, index) => ({ index, slot: view.slots.get(row.id) ?? -1 }))
    .sort((a, b) => Number(a.slot >= 0) - Number(b.slot >= 0));
  for (const { index, slot } of order) {
    const points = new Float64Array(plan.axes.length * 2);
    plan.axes.forEach((axis, i) => ((points[2 * i] = toX(i)), (points[2 * i + 1] = toY(axis.at[index]))));
    pen.path(points, plan.axes.length, {
      color: slotColor(theme, slot),
      width: slot < 0 ? 1 : 2,
      alpha: slot < 0 ? 0.45 : 0.9,
    });
  }
  plan.axes.forEach((axis, i) => {
    pen.line(toX(i), top, toX(i), bottom, { color: theme.faint });
    pen.text(shortName(axis.name), toX(i), top - 14, { color: theme.text, align: i ? "center" : "left", bold: true });
    for (const tick of axis.ticks) {
      pen.box(toX(i) + 4, toY(tick.at) - 7, Math.min(90, tick.text.length * 6.4) + 4, 14, {
        color: theme.back,
        alpha: 0.8,
      });
      pen.text(tick.text.slice(0, 14), toX(i) + 6, toY(tick.at), { color: theme.faint });
    }
  });
}

/** The tab. */
function createCompare(/** @type {View} */ view) {
  const canvas = h("canvas", { class: "rf-canvas", role: "img" });
  const box = h("div", { class: "rf-plot" }, canvas);
  const element = h(
    "div",
    { class: "rf-pane" },
    box,
    h(
      "p",
      { class: "rf-note" },
      "A line is a run; the last axis is the last value of the metric chosen under Curves. The table below has the same numbers.",
    ),
  );
  let drawn = "";
  function update() {
    const [width, height] = [box.clientWidth, box.clientHeight];
    const now = `${view.state.version} ${width} ${view.wish.metric} ${view.theme.dark} ${JSON.stringify([...view.slots])}`;
    if (!width || now === drawn) return;
    drawn = now;
    const plan = planCompare(view.state, view.wish.metric);
    const scale = window.devicePixelRatio || 1;
    [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.setTransform(scale, 0, 0, scale, 0, 0);
    drawCompare(canvasPen(context, view.theme.font), plan, view, width, height);
    setAttribute(
      canvas,
      "aria-label",
      `Parallel coordinates of ${plural(plan.rows.length, "run")} over ${plan.axes.map((axis) => shortName(axis.name)).join(", ")}`,
    );
  }
  return { element, update };
}
