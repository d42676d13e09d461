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
      balance.replaceChildren(balanceTable(data.chunks));
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

/** Rows, tokens and groups of each chunk, with bars. */
function balanceTable(/** @type {{rows: number, tokens: number | null, groups: Record<string, number>}[]} */ chunks) {
  const groups = [...new Set(chunks.flatMap((chunk) => Object.keys(chunk.groups || {})))].slice(0, 12);
  const most = Math.max(1, ...chunks.map((chunk) => chunk.tokens || chunk.rows));
  const bar = (/** @type {number} */ share) => {
    const made = h("div", { class: "rf-bar", "aria-hidden": "true" }, h("i"));
    made.firstChild.style.width = `${Math.min(1, share) * 100}%`;
    return made;
  };
  return h(
    "div",
    { class: "rf-scroll rf-text", tabindex: 0, role: "region", "aria-label": "Balance of the chunks" },
    h(
      "table",
      { class: "rf-list rf-slim" },
      h(
        "thead",
        null,
        h(
          "tr",
          null,
          ["Chunk", "Rows", "Tokens", "", ...groups].map((text) =>
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
            h("td", { class: "rf-number" }, showNumber(chunk.tokens)),
            h("td", { style: "width:160px;vertical-align:middle" }, bar((chunk.tokens || chunk.rows) / most)),
            groups.map((group) => h("td", { class: "rf-number" }, showShare(chunk.groups?.[group] || 0))),
          ),
        ),
      ),
    ),
  );
}
