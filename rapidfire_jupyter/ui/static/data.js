// @ts-check
/* The tab of data: the first batch as a run meets it (what it learns from is marked), and how even the chunks are. */

/** @param {View} view */
function createData(view) {
  const choice = runChoice(view, "Run", () => void peek());
  const batch = h("div", { class: "rf-batch" });
  const balance = h("div");
  const element = h(
    "div",
    { class: "rf-pane" },
    h(
      "div",
      { class: "rf-tools" },
      h("strong", null, "First batch of"),
      choice.select,
      h("span", { class: "rf-note" }, "Marked text is what the loss is computed on"),
    ),
    h("div", { class: "rf-scroll rf-text", tabindex: 0, role: "region", "aria-label": "First batch" }, batch),
    balance,
  );
  let asked = false;

  async function peek() {
    const run = choice.run();
    if (run === null) return;
    batch.replaceChildren(h("p", { class: "rf-faint" }, "Reading…"));
    try {
      const { data } = await view.ask("peek", { run });
      if (run !== choice.run()) return;
      batch.replaceChildren(
        h(
          "ol",
          null,
          data.rows.map((/** @type {any[]} */ row) =>
            h(
              "li",
              null,
              row.map((part) => h(part.learned ? "mark" : "span", null, part.text)),
            ),
          ),
        ),
      );
    } catch (error) {
      batch.replaceChildren(h("p", { class: "rf-error" }, /** @type {Error} */ (error).message));
    }
  }

  async function readBalance() {
    if (asked || !view.state.head?.can.includes("data")) return;
    asked = true;
    try {
      const { data } = await view.ask("data");
      balance.replaceChildren(balanceTable(/** @type {any} */ (data)));
    } catch (error) {
      balance.replaceChildren(h("p", { class: "rf-error" }, /** @type {Error} */ (error).message));
    }
  }
  return {
    element,
    update: () => void (choice.update() && peek()),
    show: () => (choice.update(), void peek(), void readBalance()),
  };
}

/**
 * Rows, words and groups of each chunk, and how far it is from all rows, with what chance alone would make of it.
 * @param {{chunks: Chunk[], rows: number, measured: number, unit: string}} data
 */
function balanceTable(data) {
  const chunks = data.chunks;
  if (!chunks.length)
    return h("p", { class: "rf-faint" }, "Chunks of a stream are shares of steps; they are not measured.");
  const groups = [...new Set(chunks.flatMap((chunk) => Object.keys(chunk.groups)))].slice(0, 12);
  const most = Math.max(1, ...chunks.map((chunk) => chunk.words));
  const bar = (/** @type {number} */ share) => {
    const made = h("div", { class: "rf-bar", "aria-hidden": "true" }, h("i"));
    made.firstChild.style.width = `${Math.min(1, share) * 100}%`;
    return made;
  };
  const apart = (/** @type {Chunk} */ chunk, /** @type {"word" | "length"} */ what) => {
    const over = chunk[`${what}_js`] > chunk[`${what}_limit`];
    const told = `by chance ${showNumber(chunk[`${what}_chance`])}, at most ${showNumber(chunk[`${what}_limit`])}; KL ${showNumber(chunk[`${what}_kl`])}`;
    const text = `${showNumber(chunk[`${what}_js`])}${over ? " uneven" : ""}`;
    return h("td", { class: over ? "rf-number rf-error" : "rf-number", title: told }, text);
  };
  const unit = data.unit === "tokens" ? "Tokens" : "Words";
  const sample =
    data.measured < data.rows ? ` Measured on ${showNumber(data.measured)} of ${showNumber(data.rows)} rows.` : "";
  return h(
    "div",
    { class: "rf-scroll rf-text", tabindex: 0, role: "region", "aria-label": "Balance of the chunks" },
    h(
      "p",
      { class: "rf-note" },
      `How far each chunk is from all rows: Jensen-Shannon divergence in bits, 0 is equal. Uneven is what chance does not make.${sample}`,
    ),
    h(
      "table",
      { class: "rf-list rf-slim" },
      h(
        "thead",
        null,
        h(
          "tr",
          null,
          ["Chunk", "Rows", unit, "", `${unit} apart`, "Lengths apart", ...groups].map((text) =>
            h(text ? "th" : "td", { scope: text ? "col" : null }, text),
          ),
        ),
      ),
      h(
        "tbody",
        null,
        chunks.map((chunk, index) =>
          h(
            "tr",
            null,
            h("td", { class: "rf-number" }, index + 1),
            h("td", { class: "rf-number" }, showNumber(chunk.rows)),
            h("td", { class: "rf-number" }, showNumber(chunk.words)),
            h("td", { style: "width:160px;vertical-align:middle" }, bar(chunk.words / most)),
            apart(chunk, "word"),
            apart(chunk, "length"),
            groups.map((group) => h("td", { class: "rf-number" }, showShare(chunk.groups[group] || 0))),
          ),
        ),
      ),
    ),
  );
}
