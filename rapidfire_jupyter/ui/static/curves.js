// @ts-check
/* From what is known of runs to the lines of a chart. Pure. */

const MOST_COLORED = 8;
const X_TITLES = { step: "step", rows: "rows seen", epoch: "epoch", time: "wall time" };

/**
 * Gives the runs that are drawn in colour, with the colour's place in the palette.
 *
 * All runs if they are few; else those selected, else the best of the metric. A run keeps its colour
 * as long as it is highlighted: `before` is what this function gave last.
 * @param {State} state @param {Wish} wish @param {Map<number, number>} before
 * @returns {Map<number, number>}
 */
function highlight(state, wish, before) {
  const alive = [...state.rows.values()].filter((row) => row.status !== "deleted").map((row) => row.id);
  let chosen = alive;
  if (alive.length > MOST_COLORED) {
    chosen = alive.filter((run) => wish.selected.has(run)).slice(0, MOST_COLORED);
    if (!chosen.length) chosen = bestRuns(state, alive, wish.metric, before);
  }
  const slots = new Map();
  const taken = new Set();
  const claim = (/** @type {number} */ run, /** @type {number | undefined} */ slot) => {
    if (slot === undefined || taken.has(slot) || slots.has(run)) return;
    slots.set(run, slot);
    taken.add(slot);
  };
  for (const run of chosen) claim(run, before.get(run));
  for (const run of chosen) claim(run, (run - 1 + MOST_COLORED * 1000) % MOST_COLORED);
  for (const run of chosen) for (let slot = 0; slot < MOST_COLORED && !slots.has(run); slot += 1) claim(run, slot);
  return slots;
}

/** The best runs of a metric; those highlighted before are kept unless one of them fell far behind. */
function bestRuns(
  /** @type {State} */ state,
  /** @type {number[]} */ alive,
  /** @type {string} */ metric,
  /** @type {Map<number, number>} */ before,
) {
  const sign = state.head?.lower_is_better[metric] === false ? -1 : 1;
  const rank = (/** @type {number} */ run) => {
    const value = sign * toNumber(state.rows.get(run)?.last[metric]);
    return Number.isNaN(value) ? Infinity : value;
  };
  const order = alive
    .map((run) => ({ run, value: rank(run) }))
    .sort((a, b) => a.value - b.value || a.run - b.run)
    .map((one) => one.run);
  const near = new Set(order.slice(0, MOST_COLORED * 2));
  const kept = order.filter((run) => before.has(run) && near.has(run));
  const added = order.filter((run) => !kept.includes(run)).slice(0, Math.max(0, MOST_COLORED - kept.length));
  return [...kept, ...added].slice(0, MOST_COLORED);
}

/**
 * The lines of a metric, those highlighted last (on top).
 * @param {State} state @param {Wish} wish @param {Map<number, number>} slots
 * @returns {Line[]}
 */
function linesOf(state, wish, slots) {
  /** @type {Map<number, Line | null>} */
  const made = new Map();
  for (const row of state.rows.values()) lineOf(state, wish, slots, row.id, made);
  const shown = [...made.values()].filter((line) => line && isShown(state, wish, line.run));
  return /** @type {Line[]} */ (shown).sort((a, b) => Number(a.slot >= 0) - Number(b.slot >= 0));
}

/** Whether a run's curve is to be seen. */
function isShown(/** @type {State} */ state, /** @type {Wish} */ wish, /** @type {number} */ run) {
  if (state.rows.get(run)?.status === "deleted") return false;
  return wish.alone === null ? !wish.hidden.has(run) : wish.alone === run;
}

/** One run's line; a warm clone's begins with the point of its parent where it was made. */
function lineOf(
  /** @type {State} */ state,
  /** @type {Wish} */ wish,
  /** @type {Map<number, number>} */ slots,
  /** @type {number} */ run,
  /** @type {Map<number, Line | null>} */ made,
) {
  const known = made.get(run);
  if (known !== undefined) return known;
  made.set(run, null);
  const row = state.rows.get(run);
  const curve = state.curves.get(run)?.get(wish.metric);
  const parent = row?.warm && row.parent !== null ? lineOf(state, wish, slots, row.parent, made) : null;
  if (!row || !curve || !curve.n) return null;
  const first = parent ? lastUpTo(parent.at, row.clone_step ?? 0) : -1;
  const extra = parent && first >= 0 ? 1 : 0;
  const count = curve.n + extra;
  const [x, raw, at, epochs] = [
    new Float64Array(count),
    new Float64Array(count),
    new Float64Array(count),
    new Float64Array(count),
  ];
  if (parent && extra) {
    [x[0], at[0], epochs[0]] = [parent.x[first], parent.at[first], parent.epochs[first]];
    raw[0] = (parent.raw || parent.y)[first];
  }
  const perEpoch = state.head?.rows_per_epoch || 1;
  const source = wish.x === "rows" ? curve.epoch : curve[wish.x];
  for (let i = 0; i < curve.n; i += 1) {
    x[i + extra] = wish.x === "rows" ? source[i] * perEpoch : source[i];
    raw[i + extra] = curve.value[i];
    at[i + extra] = curve.step[i];
    epochs[i + extra] = curve.epoch[i];
  }
  const y = wish.smooth > 0 ? smooth(raw, wish.smooth, parent && extra ? parent.y[first] : null) : raw;
  /** @type {Line} */
  const line = {
    run,
    title: runTitle(row),
    slot: slots.get(run) ?? -1,
    dashed: row.warm,
    x,
    y,
    raw: wish.smooth > 0 ? raw : null,
    at,
    epochs,
    label: String(run),
  };
  made.set(run, line);
  return line;
}

/** Index of the last of ascending numbers that is not above a limit; -1 if all are. */
function lastUpTo(/** @type {ArrayLike<number>} */ numbers, /** @type {number} */ limit) {
  let [low, high] = [0, numbers.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] <= limit) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/**
 * Exponential moving average, without the pull to zero at its start; what is not finite stays as it is.
 * @param {ArrayLike<number>} values @param {number} weight of the past, below 1
 * @param {number | null} start value to go on from (a parent's), null for none
 */
function smooth(values, weight, start) {
  const out = new Float64Array(values.length);
  let [sum, mass] = start === null || !Number.isFinite(start) ? [0, 0] : [start, 1];
  for (let i = 0; i < values.length; i += 1) {
    const value = values[i];
    if (!Number.isFinite(value)) {
      out[i] = value;
      continue;
    }
    if (i > 0 || mass === 0) {
      sum = weight * sum + (1 - weight) * value;
      mass = weight * mass + (1 - weight);
    }
    out[i] = sum / mass;
  }
  return out;
}

/**
 * Where chunks end on the x axis; none where runs would not agree (wall time).
 * @param {State} state @param {Wish} wish @param {Line[]} lines
 */
function chunkMarks(state, wish, lines) {
  const line = lines.length ? lines[lines.length - 1] : null;
  const ends = line ? state.rows.get(line.run)?.chunk_ends || [] : [];
  if (!line || wish.x === "time" || ends.length > 200) return [];
  if (wish.x === "step") return ends;
  const last = line.at.length - 1;
  const perStep = line.at[last] > 0 ? line.epochs[last] / line.at[last] : 0;
  const perEpoch = wish.x === "rows" ? state.head?.rows_per_epoch || 1 : 1;
  return perStep > 0 ? ends.map((end) => end * perStep * perEpoch) : [];
}

/** The numbers behind the chart: one row per run, for those who do not see the picture. */
function curveTable(/** @type {State} */ state, /** @type {Line[]} */ lines) {
  return [...lines]
    .sort((a, b) => a.run - b.run)
    .map((line) => {
      const values = Array.from(line.raw || line.y);
      const finite = values.filter(Number.isFinite);
      const last = values.length - 1;
      return {
        run: runTitle(/** @type {Row} */ (state.rows.get(line.run))),
        points: values.length,
        first: values[0],
        least: finite.length ? Math.min(...finite) : NaN,
        most: finite.length ? Math.max(...finite) : NaN,
        last: values[last],
        step: line.at[last],
      };
    });
}
