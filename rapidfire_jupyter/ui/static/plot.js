// @ts-check
/* A chart on the page: two canvases (curves, and what is under the pointer), hover, zoom by dragging.

   Why not plotly for the live curves: with 48 runs that log ten rows a second, an open panel spends 1 to 3 % of its
   time in long tasks with this chart, and 10 to 16 % with plotly's basic bundle at one redraw a second (tests/ui/stress.py,
   two slow cores). Besides, this one needs no library, so a saved notebook shows curves without a kernel. */

const NEAR_PX = 40;

/**
 * @param {{hover: (line: Line, at: number) => string[], zoomed: (zoom: Zoom | null) => void, hovered?: (run: number | null) => void, label: string}} how
 */
function createPlot(how) {
  const base = h("canvas", { class: "rf-canvas", role: "img", "aria-label": how.label });
  const over = h("canvas", { class: "rf-canvas rf-over", "aria-hidden": "true" });
  const tip = h("div", { class: "rf-tip", hidden: true });
  const empty = h("div", { class: "rf-empty", hidden: true });
  const element = h("div", { class: "rf-plot" }, base, over, tip, empty);
  /** @type {Line[]} */
  let lines = [];
  /** @type {any} */
  let wish = { x: "step", log: false, zoom: null, marks: [], xTitle: "", yTitle: "" };
  /** @type {Plan | null} */
  let plan = null;
  /** @type {Theme | null} */
  let theme = null;
  let [visible, dirty, frame, drawn] = [true, false, 0, 0];
  /** @type {{x: number, y: number} | null} */
  let start = null;
  /** @type {number | null} */
  let lit = null;

  /** Shows these lines; the picture follows in the next frame, or when the chart comes into sight. */
  function show(
    /** @type {Line[]} */ newLines,
    /** @type {any} */ newWish,
    /** @type {Theme} */ newTheme,
    message = "",
  ) {
    [lines, wish, theme, dirty] = [newLines, newWish, newTheme, true];
    setText(empty, message);
    empty.hidden = !message;
    schedule();
  }

  function schedule() {
    if (!frame && dirty && visible) frame = requestAnimationFrame(paint);
  }

  function paint() {
    frame = 0;
    const [width, height] = [element.clientWidth, element.clientHeight];
    if (!width || !height || !theme) return;
    dirty = false;
    plan = planChart(lines, wish, width, height);
    drawChart(pen(base, width, height), plan, theme);
    drawLit();
    drawn += 1;
  }

  /** A pen for an emptied canvas of this size, sharp on any screen. */
  function pen(/** @type {HTMLCanvasElement} */ canvas, /** @type {number} */ width, /** @type {number} */ height) {
    const scale = window.devicePixelRatio || 1;
    const [w, hgt] = [Math.round(width * scale), Math.round(height * scale)];
    if (canvas.width !== w || canvas.height !== hgt) [canvas.width, canvas.height] = [w, hgt];
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    return canvasPen(context, theme?.font || "sans-serif");
  }

  function drawLit(
    /** @type {{line: Line, at: number} | null} */ found = null,
    /** @type {number[] | null} */ box = null,
  ) {
    if (!plan || !theme) return;
    const { box: area } = plan;
    const ink = pen(over, plan.width, plan.height);
    const line = plan.lines.find((one) => one.run === lit);
    if (line) {
      const color = line.slot < 0 ? theme.text : slotColor(theme, line.slot);
      ink.clip(area.x, area.y - 4, area.w + 4, area.h + 8, () =>
        drawLine(ink, /** @type {Plan} */ (plan), line, line.y, {
          color,
          width: 3,
          dash: line.dashed ? [6, 3] : undefined,
        }),
      );
    }
    if (found) {
      const [px, py] = [plan.toX(found.line.x[found.at]), plan.toY(found.line.y[found.at])];
      ink.box(px - 3, py - 3, 6, 6, { color: theme.text });
    }
    if (box)
      ink.box(
        Math.min(box[0], box[2]),
        Math.min(box[1], box[3]),
        Math.abs(box[2] - box[0]),
        Math.abs(box[3] - box[1]),
        { color: theme.text, alpha: 0.12 },
      );
  }

  /** The point nearest to the pointer. */
  function nearest(/** @type {number} */ px, /** @type {number} */ py) {
    if (!plan) return null;
    /** @type {{line: Line, at: number} | null} */
    let best = null;
    let least = NEAR_PX ** 2;
    for (const line of plan.lines) {
      const at = lastUpTo(line.x, plan.fromX(px));
      for (let i = Math.max(0, at - 1); i <= Math.min(line.x.length - 1, at + 1); i += 1) {
        const away = (plan.toX(line.x[i]) - px) ** 2 + (plan.toY(line.y[i]) - py) ** 2 - (line.slot >= 0 ? 16 : 0);
        if (away < least) [least, best] = [away, { line, at: i }];
      }
    }
    return best;
  }

  function place(/** @type {MouseEvent} */ event) {
    const area = element.getBoundingClientRect();
    return { x: event.clientX - area.left, y: event.clientY - area.top };
  }

  function move(/** @type {PointerEvent} */ event) {
    if (!plan) return;
    const at = place(event);
    if (start) {
      const flat = Math.abs(at.y - start.y) < 12;
      drawLit(null, [start.x, flat ? plan.box.y : start.y, at.x, flat ? plan.box.y + plan.box.h : at.y]);
      tip.hidden = true;
      return;
    }
    const found = nearest(at.x, at.y);
    if (lit !== (found ? found.line.run : null)) {
      lit = found ? found.line.run : null;
      how.hovered?.(lit);
    }
    drawLit(found);
    tip.hidden = !found;
    if (!found) return;
    const [title, ...rest] = how.hover(found.line, found.at);
    tip.replaceChildren(h("strong", null, title), ...rest.map((text) => h("div", null, text)));
    const [x, y] = [plan.toX(found.line.x[found.at]), plan.toY(found.line.y[found.at])];
    tip.style.left = `${x > plan.width / 2 ? x - tip.offsetWidth - 12 : x + 12}px`;
    tip.style.top = `${Math.max(4, Math.min(plan.height - tip.offsetHeight - 4, y - tip.offsetHeight / 2))}px`;
  }

  function down(/** @type {PointerEvent} */ event) {
    if (event.button !== 0 || !plan) return;
    start = place(event);
    element.setPointerCapture(event.pointerId);
  }

  function up(/** @type {PointerEvent} */ event) {
    if (!start || !plan) return;
    const [from, to] = [start, place(event)];
    start = null;
    drawLit();
    if (Math.abs(to.x - from.x) < 6) return;
    const [x, y] = [[from.x, to.x].sort((a, b) => a - b), [from.y, to.y].sort((a, b) => b - a)];
    const flat = Math.abs(to.y - from.y) < 12;
    how.zoomed({ x: [plan.fromX(x[0]), plan.fromX(x[1])], y: flat ? null : [plan.fromY(y[0]), plan.fromY(y[1])] });
  }

  function leave() {
    tip.hidden = true;
    if (lit !== null) how.hovered?.(null);
    lit = null;
    drawLit();
  }

  /** Marks a run's line, as hovering it does. */
  function light(/** @type {number | null} */ run) {
    if (lit === run) return;
    lit = run;
    drawLit();
  }

  element.addEventListener("pointermove", move);
  element.addEventListener("pointerdown", down);
  element.addEventListener("pointerup", up);
  element.addEventListener("pointercancel", () => (start = null));
  element.addEventListener("pointerleave", leave);
  element.addEventListener("dblclick", () => how.zoomed(null));
  const resized = new ResizeObserver(() => ((dirty = true), schedule()));
  resized.observe(element);
  const seen = new IntersectionObserver((entries) => {
    visible = entries[entries.length - 1].isIntersecting;
    schedule();
  });
  seen.observe(element);

  /** The picture as an SVG document, in the size given or as shown. */
  function svg(width = element.clientWidth || 800, height = element.clientHeight || 300) {
    const ink = svgPen(width, height, /** @type {Theme} */ (theme));
    drawChart(ink, planChart(lines, wish, width, height), /** @type {Theme} */ (theme));
    return ink.done();
  }

  /** The picture as PNG, twice as fine as shown. */
  function png(width = element.clientWidth || 800, height = element.clientHeight || 300) {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [width * 2, height * 2];
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.scale(2, 2);
    const ink = canvasPen(context, theme?.font || "sans-serif");
    ink.box(0, 0, width, height, { color: theme?.back || "#fff" });
    drawChart(ink, planChart(lines, wish, width, height), /** @type {Theme} */ (theme));
    return new Promise((/** @type {(blob: Blob) => void} */ resolve, reject) =>
      canvas.toBlob(
        (blob) => (blob ? resolve(blob) : reject(new Error("this browser cannot make the picture; export SVG"))),
        "image/png",
      ),
    );
  }

  function destroy() {
    cancelAnimationFrame(frame);
    resized.disconnect();
    seen.disconnect();
    for (const canvas of [base, over]) canvas.width = canvas.height = 0;
  }

  return { element, base, show, light, svg, png, destroy, drawn: () => drawn };
}
