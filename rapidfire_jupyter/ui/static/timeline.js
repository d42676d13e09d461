// @ts-check
/* The timeline: which run trained when, the ops on it, and what policies decided. */

const LANE_PX = 18;
const SIGNS = /** @type {Record<string, string>} */ ({
  stop: "■",
  resume: "▶",
  boost: "▲",
  mix: "◐",
  clone: "◆",
  delete: "✕",
  undelete: "↺",
});

/**
 * Where things go on a timeline. Pure.
 * @param {State} state @param {number} width
 */
function planTimeline(state, width) {
  const trained = new Set([
    ...state.slices.map((slice) => slice.run),
    ...state.entries.filter((one) => one.op && one.run !== null).map((one) => one.run),
  ]);
  const told = state.entries.filter((one) => (one.op && one.outcome === "applied") || one.kind === "decisions");
  const lanes = [...state.rows.keys()].filter((run) => trained.has(run)).sort((a, b) => a - b);
  const end = Math.max(1, ...state.slices.map((slice) => slice.end), ...told.map((one) => one.time));
  const box = { x: 56, y: 8, w: Math.max(40, width - 56 - 16), h: lanes.length * LANE_PX };
  const start = state.slices.length ? Math.min(...state.slices.map((slice) => slice.start)) : 0;
  const from = start > end * 0.2 ? start : 0; // old slices may have been dropped
  const toX = (/** @type {number} */ time) => box.x + ((time - from) / (end - from || 1)) * box.w;
  const marks = told.filter((one) => one.time >= from);
  return { lanes, box, from, end, toX, marks, height: box.y + box.h + 26, ticks: clockTicks(from, end, box.w / 90) };
}

/** Draws it. */
function drawTimeline(
  /** @type {Pen} */ pen,
  /** @type {ReturnType<typeof planTimeline>} */ plan,
  /** @type {View} */ view,
) {
  const { box, lanes, toX } = plan;
  const { theme } = view;
  const lane = new Map(lanes.map((run, index) => [run, box.y + index * LANE_PX]));
  for (const at of plan.ticks) {
    pen.line(Math.round(toX(at)) + 0.5, box.y, Math.round(toX(at)) + 0.5, box.y + box.h, { color: theme.grid });
    pen.text(showClock(at), toX(at), box.y + box.h + 14, { color: theme.faint, align: "center" });
  }
  for (const [run, y] of lane)
    pen.text(`run ${run}`, box.x - 8, y + LANE_PX / 2, { color: theme.faint, align: "right" });
  for (const slice of view.state.slices) {
    const y = lane.get(slice.run);
    if (y === undefined || slice.end < plan.from) continue;
    const slot = view.slots.get(slice.run) ?? -1;
    pen.box(toX(slice.start), y + 3, Math.max(1, toX(slice.end) - toX(slice.start)), LANE_PX - 6, {
      color: slotColor(theme, slot),
      alpha: slot < 0 ? 0.6 : 1,
    });
  }
  for (const mark of plan.marks) {
    const y = mark.run === null ? undefined : lane.get(mark.run);
    if (y !== undefined) {
      pen.box(toX(mark.time) - 6, y + 2, 12, LANE_PX - 4, { color: theme.back, alpha: 0.85 });
      pen.text(SIGNS[mark.op] || "•", toX(mark.time), y + LANE_PX / 2, {
        color: mark.policy ? theme.accent : theme.text,
        align: "center",
      });
      if (mark.policy)
        pen.line(toX(mark.time) - 5, y + LANE_PX - 1.5, toX(mark.time) + 5, y + LANE_PX - 1.5, { color: theme.accent });
    } else if (mark.run === null)
      pen.line(toX(mark.time), box.y, toX(mark.time), box.y + box.h, {
        color: mark.policy ? theme.accent : theme.text,
        dash: mark.policy ? [1, 3] : [3, 3],
        alpha: mark.policy ? 1 : 0.6,
      });
  }
}

/** The tab. */
function createTimeline(/** @type {View} */ view) {
  const canvas = h("canvas", { class: "rf-canvas", role: "img" });
  const scroller = h(
    "div",
    { class: "rf-lanes rf-scroll", tabindex: 0, role: "region", "aria-label": "Timeline" },
    canvas,
  );
  const legend = h(
    "p",
    { class: "rf-note" },
    "■ stop  ▶ resume  ▲ boost  ◐ mix  ◆ clone  ✕ delete   ┆ all runs   ",
    h("span", { class: "rf-bypolicy" }, "underlined: by a policy"),
  );
  const element = h("div", null, scroller, legend);
  let version = "";

  function update() {
    const width = scroller.clientWidth;
    if (!width) return;
    const now = `${view.state.version} ${width} ${view.theme.dark} ${JSON.stringify([...view.slots])}`;
    if (now === version) return;
    version = now;
    const plan = planTimeline(view.state, width);
    const scale = Math.min(window.devicePixelRatio || 1, 8000 / plan.height);
    [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(plan.height * scale)];
    canvas.style.height = `${plan.height}px`;
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, plan.height);
    drawTimeline(canvasPen(context, view.theme.font), plan, view);
    setAttribute(
      canvas,
      "aria-label",
      `${plural(plan.lanes.length, "run")} trained in ${plural(view.state.slices.length, "slice")} over ${showDuration(plan.end)}, with ${plural(plan.marks.filter((one) => one.op).length, "operation")}, ${plan.marks.filter((one) => one.policy).length} by policies; the Events tab lists them`,
    );
  }

  function hover(/** @type {PointerEvent} */ event) {
    const area = canvas.getBoundingClientRect();
    const plan = planTimeline(view.state, scroller.clientWidth);
    const run = plan.lanes[Math.floor((event.clientY - area.top - plan.box.y) / LANE_PX)];
    const time = plan.from + ((event.clientX - area.left - plan.box.x) / plan.box.w) * (plan.end - plan.from);
    const near = plan.marks.filter((one) => Math.abs(plan.toX(one.time) - plan.toX(time)) < 7);
    const mark = near.find((one) => one.run === run) || near.find((one) => one.run === null);
    const slice = view.state.slices.find((one) => one.run === run && one.start <= time && time <= one.end);
    canvas.title = mark
      ? `${showClock(mark.time)} ${mark.text}`
      : slice
        ? `run ${run}: ${plural(slice.steps, "step")} in ${showNumber(slice.end - slice.start, 3)} s, from ${showClock(slice.start)}`
        : "";
  }
  canvas.addEventListener("pointermove", hover);
  return { element, update };
}
