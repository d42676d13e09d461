// @ts-check
/* The table's columns and the order of its rows. Pure. */

const TIMINGS = /(_runtime|_per_second|_steps_per_second|_samples_per_second)$/;

const GOALS = ["reward", "loss", "train_loss", "rewards/accuracies", "rewards/margins"];

/** Metrics that have a column: the one that is drawn, the goals of training, and what evaluations gave. */
function columnMetrics(/** @type {Head} */ head, /** @type {string} */ drawn) {
  const ranks = (/** @type {string} */ name) => name in head.lower_is_better;
  const more = head.metrics.filter(
    (name) => GOALS.includes(name) || (name.startsWith("eval_") && ranks(name) && !TIMINGS.test(name)),
  );
  return [...new Set([...head.metrics.filter((name) => name === drawn), ...more])];
}

/**
 * The columns between the run's name and its buttons; those come first that are wanted where room is short.
 * @param {State} state @param {string} drawn metric @param {string} font
 * @returns {Column[]}
 */
function columnsOf(state, drawn, font) {
  const head = state.head;
  if (!head) return [];
  const rows = [...state.rows.values()];
  const numeric = (/** @type {string} */ name) =>
    rows.every((row) => row.params[name] === undefined || typeof row.params[name] === "number");
  // A title is never cut, nor is its arrow; long values are.
  const wide = (/** @type {string} */ title, /** @type {string[]} */ texts) =>
    Math.ceil(
      Math.max(
        56,
        textWidth(title, font) + 34,
        Math.min(180, Math.max(...texts.map((text) => textWidth(text, font))) + 20),
      ),
    );
  /** @type {Column[]} */
  const columns = [
    {
      key: "status",
      title: "Status",
      hint: "",
      number: false,
      width: 114,
      sort: (row) => row.status,
      text: (row) => row.status,
    },
    {
      key: "progress",
      title: "Progress",
      hint: "",
      number: false,
      width: 112,
      sort: (row) => row.progress,
      text: (row) => showShare(row.progress),
    },
  ];
  const metric = (/** @type {string} */ name) => {
    const same = head.varying.some((path) => shortName(path) === name);
    const title = same ? `${name} (now)` : name;
    return {
      ...{ key: `m:${name}`, title, hint: `Last ${name}`, number: true, width: wide(title, ["★ −1.23e-5"]) },
      sort: (/** @type {Row} */ row) => toNumber(row.last[name]),
      text: (/** @type {Row} */ row) => (row.last[name] === undefined ? NONE : showNumber(row.last[name])),
    };
  };
  const metrics = columnMetrics(head, drawn);
  columns.push(...metrics.filter((name) => name === drawn).map(metric));
  for (const name of head.varying) {
    const title = shortName(name);
    const text = (/** @type {Row} */ row) => (name in row.params ? showValue(row.params[name]) : NONE);
    const number = numeric(name);
    columns.push({
      key: `p:${name}`,
      title,
      hint: name,
      number,
      width: wide(title, rows.map(text)),
      sort: (row) => (number ? (row.params[name] ?? NaN) : text(row)),
      text,
    });
  }
  columns.push(...metrics.filter((name) => name !== drawn).map(metric));
  columns.push({
    key: "eta",
    title: "ETA",
    hint: "Time left for this run",
    number: true,
    width: wide("ETA", ["23 h 59 min"]),
    sort: (row) => row.eta_s ?? NaN,
    text: (row) => showDuration(row.eta_s),
  });
  columns.push({
    key: "weight",
    title: "Weight",
    hint: "Chunks for each chunk of a run of weight 1",
    number: true,
    width: wide("Weight", []),
    sort: (row) => (mayTrain(row) ? row.weight : NaN),
    text: (row) => (mayTrain(row) ? showNumber(row.weight) : NONE),
  });
  if (rows.some((row) => row.parent !== null))
    columns.push({
      key: "parent",
      title: "Parent",
      hint: "The run it was cloned from",
      number: false,
      width: wide("Parent", []),
      sort: (row) => row.parent ?? NaN,
      text: (row) => (row.parent === null ? NONE : `${row.parent} ${row.warm ? "warm" : "cold"}`),
    });
  return columns;
}

/** Whether a run trains, or can be made to train on as it is. */
function mayTrain(/** @type {Row} */ row) {
  return [...WORKING, "stopped", "failed"].includes(row.status);
}

/**
 * The runs to list, in order.
 * @param {State} state @param {Wish} wish @param {Column[]} columns @param {(row: Row) => boolean} gone deleted for good
 */
function listed(state, wish, columns, gone) {
  const words = wish.filter.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = [...state.rows.values()].filter(
    (row) => !gone(row) && words.every((word) => searchText(row).includes(word)),
  );
  const column = columns.find((one) => one.key === wish.sort.key);
  const value = column ? column.sort : (/** @type {Row} */ row) => row.id;
  const sign = wish.sort.down ? -1 : 1;
  return rows
    .map((row) => ({ row, value: value(row) }))
    .sort((a, b) => compare(a.value, b.value, sign) || a.row.id - b.row.id)
    .map((one) => one.row);
}

/** Orders two values; no value (NaN) is last either way. */
function compare(/** @type {number | string} */ a, /** @type {number | string} */ b, /** @type {number} */ sign) {
  if (typeof a === "string" || typeof b === "string")
    return sign * String(a).localeCompare(String(b), undefined, { numeric: true });
  if (Number.isNaN(a) || Number.isNaN(b)) return Number(Number.isNaN(a)) - Number(Number.isNaN(b));
  return a === b ? 0 : sign * (a < b ? -1 : 1);
}

/** What the filter looks through: number, name, status, and hyperparameters as name=value. */
function searchText(/** @type {Row} */ row) {
  const params = Object.entries(row.params).map(([name, value]) => `${shortName(name)}=${showValue(value)}`);
  return [`run ${row.id}`, row.name, row.status, ...params, row.error].join(" ").toLowerCase();
}
