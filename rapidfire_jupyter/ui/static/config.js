// @ts-check
/* The tab of configs: every hyperparameter of a run, and what differs from another's. */

/**
 * Rows of the comparison. Pure.
 * @param {Record<string, Json>} one @param {Record<string, Json> | null} other
 * @returns {{path: string, left: string, right: string, differs: boolean}[]}
 */
function diffRows(one, other) {
  const paths = [...new Set([...Object.keys(one), ...Object.keys(other || {})])].sort();
  return paths.map((path) => {
    const left = path in one ? showValue(one[path]) : NONE;
    const right = other ? (path in other ? showValue(other[path]) : NONE) : "";
    return { path, left, right, differs: other !== null && !same(one[path], other[path]) };
  });
}

/** @param {View} view */
function createConfig(view) {
  const left = runChoice(view, "Run", () => void load());
  const right = runChoice(view, "Compared with", () => void load());
  const only = h("input", { type: "checkbox", checked: true, onchange: () => draw() });
  const body = h("tbody");
  const heads = [
    h("th", { scope: "col" }, "Hyperparameter"),
    h("th", { scope: "col" }, ""),
    h("th", { scope: "col" }, ""),
  ];
  const empty = h("p", { class: "rf-empty rf-still" });
  const element = h(
    "div",
    { class: "rf-pane" },
    h(
      "div",
      { class: "rf-tools" },
      left.select,
      h("span", { class: "rf-note" }, "compared with"),
      right.select,
      h("label", null, only, "Only what differs"),
    ),
    h(
      "div",
      { class: "rf-scroll rf-text", tabindex: 0, role: "region", "aria-label": "Config" },
      h("table", { class: "rf-list rf-config" }, h("thead", null, h("tr", null, heads)), body),
      empty,
    ),
  );
  /** @type {Map<number, Record<string, Json>>} */
  const known = new Map();
  let error = "";

  async function load() {
    error = "";
    const runs = [left.run(), right.run()].filter((run) => run !== null);
    try {
      for (const run of runs) if (!known.has(run)) known.set(run, (await view.ask("config", { run })).data.values);
    } catch (problem) {
      error = /** @type {Error} */ (problem).message;
    }
    draw();
  }

  function draw() {
    const [a, b] = [left.run(), right.run()];
    const one = a === null ? null : known.get(a);
    const other = b === null || b === a ? null : known.get(b) || null;
    setText(heads[1], a === null ? "" : `run ${a}`);
    setText(heads[2], other ? `run ${b}` : "");
    const rows = one ? diffRows(one, other).filter((row) => row.differs || !only.checked || !other) : [];
    body.replaceChildren(
      ...rows.map((row) =>
        h(
          "tr",
          { class: row.differs ? "rf-differs" : null },
          h("th", { scope: "row" }, row.path),
          h("td", null, row.left),
          h("td", null, row.right),
        ),
      ),
    );
    setText(empty, error || (rows.length ? "" : one ? "No hyperparameter differs." : "Reading…"));
    empty.hidden = !empty.textContent;
  }

  function update() {
    const [one, two] = [left.update(0), right.update(1)];
    if (one || two) void load();
  }
  return { element, update, show: () => (known.clear(), left.update(0), right.update(1), void load()) };
}
