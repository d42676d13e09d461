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

const MOST_EFFECTS = 40;

/** Where effects are drawn: from left to right, 0 marked; rows without an interval are points. Pure. */
function planEffects(/** @type {EffectRow[]} */ effects) {
  const ends = effects.flatMap((one) => [one.mean, one.low ?? one.mean, one.high ?? one.mean, 0]);
  const [low, high] = [Math.min(0, ...ends), Math.max(0, ...ends)];
  const span = high - low || 1;
  const at = (/** @type {number} */ value) => (100 * (value - low)) / span;
  return effects.slice(0, MOST_EFFECTS).map((one) => ({
    ...one,
    zero: at(0),
    at: at(one.mean),
    from: at(one.low ?? one.mean),
    to: at(one.high ?? one.mean),
  }));
}

/** A row of the forest: the change, its interval as a line with a dot, the numbers in words. */
function forestRow(/** @type {ReturnType<typeof planEffects>[0]} */ one) {
  const interval =
    one.low === null || one.high === null ? "" : ` (${showNumber(one.low, 3)} to ${showNumber(one.high, 3)})`;
  return h(
    "tr",
    { "data-verdict": one.verdict },
    h("th", { scope: "row" }, `${one.factor}: ${one.before} → ${one.after}`),
    h(
      "td",
      { class: "rf-forest", "aria-hidden": "true" },
      h("i", { class: "rf-zero", style: `left:${one.zero}%` }),
      h("i", { class: "rf-span", style: `left:${one.from}%;width:${one.to - one.from}%` }),
      h("i", { class: "rf-mean", style: `left:${one.at}%` }),
    ),
    h("td", { class: "rf-number" }, `${showNumber(one.mean, 3)}${interval}`),
    h("td", null, one.verdict),
    h("td", { class: "rf-number" }, one.pairs),
  );
}

/** What each hyperparameter did, asked for when it is looked at. */
function createEffects(/** @type {View} */ view) {
  const again = button("Compute effects", "undo", () => void load(), { text: "Compute again" });
  const note = h("p", { class: "rf-note" });
  const body = h("tbody");
  const heads = ["Change", "Interval", "Difference (95 %)", "Verdict", "Pairs"];
  const table = h(
    "table",
    { class: "rf-list", hidden: true },
    h(
      "thead",
      null,
      h(
        "tr",
        null,
        heads.map((text) => h("th", { scope: "col" }, text)),
      ),
    ),
    body,
  );
  const element = h(
    "div",
    { class: "rf-effects" },
    h("div", { class: "rf-tools" }, h("strong", null, "What each hyperparameter did"), again),
    h("div", { class: "rf-scroll", tabindex: 0, role: "region", "aria-label": "Effects" }, table),
    note,
  );
  /** @type {string | null} */
  let asked = null;

  async function load() {
    const metric = (asked = view.wish.metric);
    setText(note, "Computing…");
    try {
      const { data } = await view.ask("analysis", { metric });
      if (metric !== asked) return;
      body.replaceChildren(...planEffects(data.effects).map(forestRow));
      table.hidden = !data.effects.length;
      const where = `${data.metric}, ${plural(data.used.length, "run")} at ${showShare(data.at)} of the schedule`;
      setText(note, [where, ...data.notes].join("; "));
    } catch (error) {
      table.hidden = true;
      setText(note, /** @type {Error} */ (error).message);
    }
  }
  return { element, update: () => void (view.wish.metric !== asked && load()) };
}

/** The tab. */
function createCompare(/** @type {View} */ view) {
  const canvas = h("canvas", { class: "rf-canvas", role: "img" });
  const box = h("div", { class: "rf-plot" }, canvas);
  const effects = createEffects(view);
  const element = h(
    "div",
    { class: "rf-pane" },
    box,
    h(
      "p",
      { class: "rf-note" },
      "A line is a run; the last axis is the last value of the metric chosen under Curves. The table below has the same numbers.",
    ),
    effects.element,
  );
  let drawn = "";
  function update() {
    effects.update();
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
