// @ts-check
/* A chart of lines, planned (where everything goes) and drawn (through a pen). Pure. */

const EDGE = { left: 56, right: 40, top: 12, bottom: 34 };

/**
 * Round numbers that cut a stretch of an axis into about `count` parts.
 * @param {number} low @param {number} high @param {number} count
 * @returns {number[]}
 */
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  if (!(rough > 0) || !Number.isFinite(rough)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const unit = [1, 2, 5, 10].find((one) => one * power >= rough * 0.999) || 10;
  const step = unit * power;
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9 && found.length < 50; i += 1)
    found.push(i * step || 0);
  return found.length < 2 && count < 16 ? ticks(low, high, 2 * count) : found;
}

/** Ticks of an axis of seconds: whole parts of minutes and hours. */
function clockTicks(/** @type {number} */ low, /** @type {number} */ high, /** @type {number} */ count) {
  const rough = (high - low) / Math.max(1, count);
  const step =
    [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400].find((one) => one >= rough) ||
    86400 * Math.ceil(rough / 86400);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high && found.length < 50; at += step) found.push(at);
  return found;
}

/** Powers of ten, with 2 and 5 between them where there is room; of values given as logarithms. */
function logTicks(/** @type {number} */ low, /** @type {number} */ high, /** @type {number} */ count) {
  const factors = high - low < count / 2 ? [1, 2, 5] : [1];
  const stride = Math.max(1, Math.ceil((high - low) / count));
  const found = [];
  for (let power = Math.floor(low); power <= high; power += stride)
    for (const factor of factors) {
      const at = power + Math.log10(factor);
      if (at >= low && at <= high) found.push(at);
    }
  return found.length > 1 ? found : ticks(low, high, count);
}

/**
 * Plans a chart: its scales, ticks and lines in pixels.
 * @param {Line[]} lines
 * @param {{x: string, log: boolean, zoom: Zoom | null, marks: number[], xTitle: string, yTitle: string}} wish
 * @param {number} width @param {number} height in CSS pixels
 */
function planChart(lines, wish, width, height) {
  const box = {
    x: EDGE.left,
    y: EDGE.top,
    w: Math.max(20, width - EDGE.left - EDGE.right),
    h: Math.max(20, height - EDGE.top - EDGE.bottom),
  };
  const up = wish.log ? (/** @type {number} */ v) => (v > 0 ? Math.log10(v) : NaN) : (/** @type {number} */ v) => v;
  const xs = wish.zoom
    ? wish.zoom.x
    : padded(
        extent(lines, (line) => line.x),
        0,
      );
  const within = (/** @type {Line} */ line, /** @type {number} */ i) => line.x[i] >= xs[0] && line.x[i] <= xs[1];
  const ys =
    wish.zoom?.y ||
    padded(
      extent(lines, (line) => line.y, up, within),
      0.05,
    );
  const toX = (/** @type {number} */ v) => box.x + ((v - xs[0]) / (xs[1] - xs[0])) * box.w;
  const toY = (/** @type {number} */ v) => box.y + box.h - ((up(v) - ys[0]) / (ys[1] - ys[0])) * box.h;
  const xTicks = (wish.x === "time" ? clockTicks : ticks)(xs[0], xs[1], box.w / 90);
  const yTicks = (wish.log ? logTicks : ticks)(ys[0], ys[1], box.h / 45);
  return {
    ...{ box, xs, ys, lines, width, height, toX, toY, wish },
    fromX: (/** @type {number} */ px) => xs[0] + ((px - box.x) / box.w) * (xs[1] - xs[0]),
    fromY: (/** @type {number} */ px) => ys[0] + ((box.y + box.h - px) / box.h) * (ys[1] - ys[0]),
    xTicks: xTicks.map((at) => ({ px: toX(at), text: wish.x === "time" ? showClock(at) : tickText(at, xTicks) })),
    yTicks: yTicks.map((at, index) => ({
      px: box.y + box.h - ((at - ys[0]) / (ys[1] - ys[0])) * box.h,
      text: wish.log ? logTexts(yTicks)[index] : tickText(at, yTicks),
    })),
    marks: wish.marks.filter((at) => at > xs[0] && at < xs[1]).map(toX),
  };
}

/** Tick labels share their decimals: 0.5, 1.0, 1.5. */
function tickText(/** @type {number} */ at, /** @type {number[]} */ all) {
  if (all.length < 2) return String(Number(at.toPrecision(6))).replace("-", "−");
  const step = all[1] - all[0];
  const size = Math.max(...all.map(Math.abs));
  if (size >= 1e6) return showNumber(at, 3);
  if (size > 0 && size < 1e-2) return at ? String(Number(at.toPrecision(3)).toExponential()).replace("+", "") : "0";
  return at.toFixed(Math.min(8, Math.max(0, -Math.floor(Math.log10(step) + 1e-9)))).replace("-", "−");
}

/** Labels of values given as logarithms, in as many digits as tell them apart: 0.01, 0.001, 1e-4. */
function logTexts(/** @type {number[]} */ all) {
  const texts = (/** @type {number} */ digits) =>
    all.map((at) => {
      const value = Number((10 ** at).toPrecision(digits));
      return value >= 1e-3 && value < 1e6 ? String(value) : value.toExponential().replace("+", "");
    });
  for (let digits = 2; digits < 12; digits += 1) {
    const found = texts(digits);
    if (new Set(found).size === all.length) return found;
  }
  return texts(12);
}

/** Least and greatest of what lines hold, finite values only; 0 to 1 if there is nothing. */
function extent(
  /** @type {Line[]} */ lines,
  /** @type {(line: Line) => ArrayLike<number>} */ pick,
  up = (/** @type {number} */ v) => v,
  within = (/** @type {Line} */ _line, /** @type {number} */ _i) => true,
) {
  let [low, high] = [Infinity, -Infinity];
  for (const line of lines) {
    const values = pick(line);
    for (let i = 0; i < values.length; i += 1) {
      const value = up(values[i]);
      if (!Number.isFinite(value) || !within(line, i)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low <= high ? /** @type {[number, number]} */ ([low, high]) : /** @type {[number, number]} */ ([0, 1]);
}

/** @returns {[number, number]} */
function padded(/** @type {[number, number]} */ [low, high], /** @type {number} */ share) {
  const room = high > low ? (high - low) * share : Math.abs(low) * 0.1 || 0.5;
  return high > low ? [low - room, high + room] : [low - room, high + room];
}

/**
 * A line in pixels, thinned to what they can show: of each column the first, least, greatest and last.
 * @param {ArrayLike<number>} x @param {ArrayLike<number>} y @param {(v: number) => number} toX @param {(v: number) => number} toY
 * @returns {{points: Float64Array, count: number}} with NaN between parts that do not join
 */
function toPixels(x, y, toX, toY) {
  const points = new Float64Array(2 * Math.min(x.length * 2 + 2, 40_000));
  let [count, column, low, high, last, open] = [0, NaN, 0, 0, 0, false];
  const put = (/** @type {number} */ px, /** @type {number} */ py) => {
    if (2 * count + 2 > points.length) return;
    points[2 * count] = px;
    points[2 * count + 1] = py;
    count += 1;
  };
  const flush = () => {
    if (!open) return;
    if (low !== last) put(column, low);
    if (high !== last && high !== low) put(column, high);
    put(column, last);
    open = false;
  };
  for (let i = 0; i < x.length; i += 1) {
    const py = toY(y[i]);
    if (!Number.isFinite(py)) {
      flush();
      put(0, NaN);
      column = NaN;
      continue;
    }
    const px = toX(x[i]);
    if (Math.abs(px - column) < 0.5) {
      if (!open) [low, high, open] = [py, py, true];
      low = Math.min(low, py);
      high = Math.max(high, py);
      last = py;
      continue;
    }
    flush();
    put(px, py);
    column = px;
  }
  flush();
  return { points, count };
}

/** @typedef {ReturnType<typeof planChart>} Plan */

/** Draws a planned chart. */
function drawChart(/** @type {Pen} */ pen, /** @type {Plan} */ plan, /** @type {Theme} */ theme) {
  const { box } = plan;
  if (!plan.lines.length) return;
  for (const tick of plan.yTicks) {
    pen.line(box.x, Math.round(tick.px) + 0.5, box.x + box.w, Math.round(tick.px) + 0.5, { color: theme.grid });
    pen.text(tick.text, box.x - 8, tick.px, { color: theme.faint, align: "right" });
  }
  for (const px of plan.marks)
    pen.line(Math.round(px) + 0.5, box.y, Math.round(px) + 0.5, box.y + box.h, { color: theme.grid, dash: [2, 3] });
  pen.line(box.x, box.y + box.h + 0.5, box.x + box.w, box.y + box.h + 0.5, { color: theme.faint, alpha: 0.6 });
  for (const tick of plan.xTicks)
    pen.text(tick.text, tick.px, box.y + box.h + 12, { color: theme.faint, align: "center" });
  pen.text(plan.wish.xTitle, box.x + box.w, box.y + box.h + 26, { color: theme.faint, align: "right" });
  pen.text(plan.wish.yTitle, 4, 6, { color: theme.faint });
  pen.clip(box.x, box.y - 4, box.w + 4, box.h + 8, () => {
    for (const line of plan.lines) {
      const color = slotColor(theme, line.slot);
      const strong = line.slot >= 0;
      if (line.raw && strong) drawLine(pen, plan, line, line.raw, { color, width: 1, alpha: 0.25 });
      drawLine(pen, plan, line, line.y, {
        color,
        width: strong ? 1.75 : 1,
        alpha: strong ? 1 : 0.45,
        dash: line.dashed ? [5, 3] : undefined,
      });
      drawBroken(pen, plan, line, color);
    }
  });
  drawLabels(pen, plan, theme);
}

function drawLine(
  /** @type {Pen} */ pen,
  /** @type {Plan} */ plan,
  /** @type {Line} */ line,
  /** @type {ArrayLike<number>} */ y,
  /** @type {Ink} */ ink,
) {
  const { points, count } = toPixels(line.x, y, plan.toX, plan.toY);
  pen.path(points, count, ink);
}

/** Values that were logged and are no numbers: crosses at the upper edge. */
function drawBroken(
  /** @type {Pen} */ pen,
  /** @type {Plan} */ plan,
  /** @type {Line} */ line,
  /** @type {string} */ color,
) {
  let left = 200;
  for (let i = 0; i < line.y.length && left > 0; i += 1) {
    if (Number.isFinite(line.y[i])) continue;
    const [px, py] = [plan.toX(line.x[i]), plan.box.y + 4];
    if (!Number.isFinite(px)) continue;
    left -= 1;
    pen.line(px - 3, py - 3, px + 3, py + 3, { color, width: 1.5 });
    pen.line(px - 3, py + 3, px + 3, py - 3, { color, width: 1.5 });
  }
}

/** Run numbers at the ends of coloured lines, moved apart where they would overlap. */
function drawLabels(/** @type {Pen} */ pen, /** @type {Plan} */ plan, /** @type {Theme} */ theme) {
  const labels = [];
  for (const line of plan.lines) {
    if (line.slot < 0) continue;
    let last = Math.min(line.x.length - 1, lastUpTo(line.x, plan.xs[1]));
    while (last >= 0 && !Number.isFinite(plan.toY(line.y[last]))) last -= 1;
    if (last < 0 || line.x[last] < plan.xs[0]) continue;
    const py = plan.toY(line.y[last]);
    if (py >= plan.box.y - 6 && py <= plan.box.y + plan.box.h + 6)
      labels.push({ text: line.label, px: plan.toX(line.x[last]) + 6, py, color: slotColor(theme, line.slot) });
  }
  labels.sort((a, b) => a.py - b.py);
  for (let i = 1; i < labels.length; i += 1)
    for (let j = 0; j < i; j += 1)
      if (Math.abs(labels[i].px - labels[j].px) < 18 && labels[i].py - labels[j].py < 12)
        labels[i].py = labels[j].py + 12;
  let floor = plan.box.y + plan.box.h + 4;
  for (const one of [...labels].reverse()) {
    one.py = Math.min(one.py, floor);
    if (labels.some((other) => other !== one && Math.abs(other.px - one.px) < 18)) floor = one.py - 12;
  }
  for (const one of labels) pen.text(one.text, one.px, one.py, { color: one.color, bold: true });
}
