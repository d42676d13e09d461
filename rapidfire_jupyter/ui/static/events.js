// @ts-check
/* Tabs of texts: what happened (events and alerts), and the end of a run's log. */

const MOST_LISTED = 300;

/** The tab of events. */
function createEvents(/** @type {View} */ view) {
  const which = h(
    "select",
    { "aria-label": "Which events", onchange: () => update(true) },
    h("option", { value: "all" }, "All events"),
    h("option", { value: "alerts" }, "Alerts and errors"),
    h("option", { value: "ops" }, "Operations"),
    h("option", { value: "selected" }, "Selected runs"),
  );
  const body = h("tbody");
  const empty = h("p", { class: "rf-empty rf-still" });
  const element = h(
    "div",
    { class: "rf-pane" },
    h("div", { class: "rf-tools" }, which),
    h(
      "div",
      { class: "rf-scroll rf-text", tabindex: 0, role: "region", "aria-label": "Events" },
      h(
        "table",
        { class: "rf-list" },
        h(
          "thead",
          null,
          h(
            "tr",
            null,
            ["Time", "Run", "What"].map((text) => h("th", { scope: "col" }, text)),
          ),
        ),
        body,
      ),
      empty,
    ),
  );
  let drawn = "";
  /** @type {Set<string>} */
  const asked = new Set();

  function wanted(/** @type {Entry} */ entry) {
    if (which.value === "alerts") return entry.level !== "info";
    if (which.value === "ops") return Boolean(entry.op);
    return which.value === "all" || (entry.run !== null && view.targets().includes(entry.run));
  }

  /** Buttons of an alert: each asks for its op once. */
  function remedies(/** @type {Entry} */ entry) {
    if (!entry.remedies.length || locked(view.state.head)) return null;
    return h(
      "span",
      { class: "rf-remedies" },
      entry.remedies.map((remedy) => {
        const key = `${entry.seq} ${remedy.label}`;
        const press = h(
          "button",
          {
            type: "button",
            class: "rf-button rf-small",
            title: magicLine(remedy.kind, entry.run, remedy.args),
            "aria-disabled": asked.has(key),
            onclick: () => {
              if (asked.has(key)) return;
              asked.add(key);
              setAttribute(press, "aria-disabled", "true");
              view.link.order(view.id, remedy.kind, entry.run, remedyArgs(remedy));
              view.say(`Asked: ${remedy.label}`);
            },
          },
          remedy.label,
        );
        return press;
      }),
    );
  }

  function update(force = false) {
    if (view.wish.alerts) {
      which.value = "alerts";
      view.wish.alerts = false;
    }
    const found = view.state.entries.filter(wanted).slice(-MOST_LISTED).reverse();
    const now = `${which.value} ${found.length} ${found[0]?.seq} ${found[found.length - 1]?.seq}`;
    if (now === drawn && !force) return;
    drawn = now;
    body.replaceChildren(
      ...found.map((entry) =>
        h(
          "tr",
          { "data-level": entry.level },
          h("td", { class: "rf-number" }, showClock(entry.time)),
          h("td", { class: "rf-number" }, entry.run === null ? "" : entry.run),
          h(
            "td",
            null,
            entry.level !== "info" && h("strong", null, entry.level === "alert" ? "Alert: " : "Error: "),
            entry.outcome === "refused" && h("strong", null, "Refused: "),
            entry.text,
            remedies(entry),
          ),
        ),
      ),
    );
    setText(empty, found.length ? "" : "Nothing of that kind has happened yet.");
    empty.hidden = !empty.textContent;
  }
  return { element, update };
}

/** The arguments of a remedy as an order has them. */
function remedyArgs(/** @type {Remedy} */ remedy) {
  if (remedy.kind === "clone") return { changes: remedy.args.changes, warm: remedy.args.warm };
  return remedy.kind === "boost" ? { weight: remedy.args.weight } : {};
}

/** A choice of one run, which follows the table's focus until it is changed by hand. */
function runChoice(/** @type {View} */ view, /** @type {string} */ label, /** @type {() => void} */ changed) {
  const select = h("select", { "aria-label": label, onchange: () => ((byHand = true), changed()) });
  let byHand = false;
  return {
    select,
    update(fallback = 0) {
      const rows = [...view.state.rows.values()].filter((row) => row.status !== "deleted");
      const wanted =
        byHand && view.state.rows.has(Number(select.value))
          ? select.value
          : String(view.targets()[fallback] ?? rows[fallback]?.id ?? rows[0]?.id ?? "");
      const before = select.value;
      setOptions(
        select,
        rows.map((row) => [String(row.id), runTitle(row)]),
        wanted,
      );
      return select.value !== before;
    },
    run: () => (select.value === "" ? null : Number(select.value)),
  };
}

/** The tab with the end of a run's train.log: what training printed, and its traceback if it failed. */
function createLog(/** @type {View} */ view) {
  const choice = runChoice(view, "Run", () => void load());
  const text = h("pre", { class: "rf-scroll rf-log", tabindex: 0, role: "region", "aria-label": "Log" });
  const element = h(
    "div",
    { class: "rf-pane" },
    h(
      "div",
      { class: "rf-tools" },
      choice.select,
      button("Read again", "undo", () => void load(), { text: "Read again" }),
      h("span", { class: "rf-note" }, "What its training printed, the last 200 lines"),
    ),
    text,
  );

  async function load() {
    const run = choice.run();
    if (run === null) return setText(text, "Runs appear here when run_fit starts.");
    if (!text.textContent) setText(text, "Reading…");
    try {
      const { data } = await view.ask("log", { run, lines: 200 });
      if (run !== choice.run()) return;
      setText(text, data.text || "Nothing was printed yet.");
      text.scrollTop = text.scrollHeight;
    } catch (error) {
      setText(text, /** @type {Error} */ (error).message);
    }
  }
  return { element, update: () => void (choice.update() && load()), show: () => (choice.update(), void load()) };
}
