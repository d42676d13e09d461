// @ts-check
/* What the kernel has told: snapshots and deltas applied to plain data. Pure but for changing that data in place. */

const MOST_ENTRIES = 1000;
const MOST_SLICES = 4000;
const MOST_POINTS = 3000; // of one metric of one run; twice what a wide screen can show

/** @returns {State} */
function emptyState() {
  return { seq: -1, head: null, rows: new Map(), curves: new Map(), entries: [], slices: [], version: 0 };
}

/**
 * Applies a snapshot, unless it is older than what is known.
 * @param {State} state @param {Snapshot} snapshot @param {DataView | null} buffer
 */
function applySnapshot(state, snapshot, buffer) {
  const other = state.head && state.head.first_time !== snapshot.head.first_time;
  if (snapshot.seq < state.seq && !other) return false;
  state.seq = snapshot.seq;
  state.head = snapshot.head;
  state.rows = new Map(snapshot.rows.map((row) => [row.id, row]));
  state.curves = new Map();
  addBlocks(state, snapshot.blocks, buffer);
  state.entries = snapshot.entries.slice(-MOST_ENTRIES);
  state.slices = snapshot.slices.slice(-MOST_SLICES);
  state.version += 1;
  return true;
}

/**
 * Applies a delta.
 * @param {State} state @param {Delta} delta @param {DataView | null} buffer
 * @returns {"applied" | "old" | "gap"} "gap": a message before it is missing, and nothing was changed
 */
function applyDelta(state, delta, buffer) {
  if (state.seq < 0 || delta.seq > state.seq + 1) return "gap";
  if (delta.seq <= state.seq) return "old";
  state.seq = delta.seq;
  if (delta.head) state.head = delta.head;
  for (const row of delta.rows) state.rows.set(row.id, row);
  for (const run of delta.gone) {
    state.rows.delete(run);
    state.curves.delete(run);
  }
  for (const run of delta.reset) state.curves.delete(run);
  addBlocks(state, delta.blocks, buffer);
  append(state.entries, delta.entries, MOST_ENTRIES);
  append(state.slices, delta.slices, MOST_SLICES);
  state.version += 1;
  return "applied";
}

/** Adds to a list and drops its oldest over a limit. */
function append(/** @type {any[]} */ list, /** @type {any[]} */ added, /** @type {number} */ most) {
  for (const one of added) list.push(one);
  if (list.length > most * 1.2) list.splice(0, list.length - most);
}

/**
 * Adds rows of curves: see `Block` in wire.py for how the numbers lie.
 * @param {State} state @param {Block[]} blocks @param {DataView | null} buffer
 */
function addBlocks(state, blocks, buffer) {
  if (!buffer) return;
  let at = 0;
  for (const block of blocks) {
    const width = 3 + block.metrics.length;
    let metrics = state.curves.get(block.run);
    if (!metrics) state.curves.set(block.run, (metrics = new Map()));
    const targets = block.metrics.map((metric) => {
      let curve = metrics.get(metric);
      if (!curve) metrics.set(metric, (curve = emptyCurve()));
      return curve;
    });
    for (let row = 0; row < block.n; row += 1) {
      const [step, epoch, time] = [0, 4, 8].map((offset) => buffer.getFloat32(at + offset, true));
      targets.forEach((curve, index) =>
        addPoint(curve, step, epoch, time, buffer.getFloat32(at + 12 + 4 * index, true)),
      );
      at += 4 * width;
    }
  }
}

/** @returns {Curve} */
function emptyCurve() {
  return {
    n: 0,
    step: new Float32Array(64),
    epoch: new Float32Array(64),
    time: new Float32Array(64),
    value: new Float32Array(64),
  };
}

/** Adds one point; a full curve is thinned first, an array too short doubled. */
function addPoint(
  /** @type {Curve} */ curve,
  /** @type {number} */ step,
  /** @type {number} */ epoch,
  /** @type {number} */ time,
  /** @type {number} */ value,
) {
  if (curve.n >= MOST_POINTS) thin(curve);
  if (curve.n === curve.step.length)
    for (const key of CURVE_KEYS) {
      const longer = new Float32Array(curve.n * 2);
      longer.set(curve[key]);
      curve[key] = longer;
    }
  curve.step[curve.n] = step;
  curve.epoch[curve.n] = epoch;
  curve.time[curve.n] = time;
  curve.value[curve.n] = value;
  curve.n += 1;
}

const CURVE_KEYS = /** @type {("step" | "epoch" | "time" | "value")[]} */ (["step", "epoch", "time", "value"]);

/** Halves a curve in place: of each four points the extremes stay (and what is not finite), first and last too. */
function thin(/** @type {Curve} */ curve) {
  let kept = 0;
  const keep = (/** @type {number} */ index) => {
    for (const key of CURVE_KEYS) curve[key][kept] = curve[key][index];
    kept += 1;
  };
  for (let start = 0; start < curve.n; start += 4) {
    const end = Math.min(curve.n, start + 4);
    let [low, high] = [start, start];
    for (let i = start; i < end; i += 1) {
      const value = curve.value[i];
      if (!Number.isFinite(value)) low = i;
      if (value < curve.value[low]) low = i;
      if (!(value <= curve.value[high])) high = i;
    }
    if (start === 0) low = 0;
    if (end === curve.n) high = end - 1;
    keep(Math.min(low, high));
    if (low !== high) keep(Math.max(low, high));
  }
  curve.n = kept;
}

/** The numbers of a snapshot that was saved as JSON: its buffer is base64 there. */
function decodeBuffer(/** @type {string | undefined} */ text) {
  if (!text) return null;
  const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  return new DataView(bytes.buffer);
}
