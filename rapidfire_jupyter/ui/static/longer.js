// @ts-check
/* The form to train finished runs longer: how many epochs or steps in all. */

const DEFAULT_EPOCHS = 3; // of transformers

/** What runs are to train in all, the most of them: from their hyperparameters and steps. Pure. */
function totals(/** @type {Row[]} */ rows, /** @type {Record<string, Json>[]} */ configs) {
  const most = (/** @type {number[]} */ numbers) => Math.max(0, ...numbers.filter(Number.isFinite));
  const steps = configs.map((values) => Number(values["training_args.max_steps"] ?? -1));
  const epochs = configs.map((values) => Number(values["training_args.num_train_epochs"] ?? DEFAULT_EPOCHS));
  return {
    num_train_epochs: most(epochs),
    max_steps: most(rows.map((row) => Math.max(row.step, row.total_steps || 0))),
    bySteps: steps.length > 0 && steps.every((count) => count > 0),
  };
}

/** @param {View} view @param {number[]} runs */
function createLonger(view, runs) {
  const what = h(
    "select",
    { "aria-label": "Measure", onchange: () => ((byHand = false), suggest()) },
    h("option", { value: "num_train_epochs" }, "epochs in all"),
    h("option", { value: "max_steps" }, "steps in all"),
  );
  const amount = h("input", {
    ...{ type: "number", step: "any", "aria-label": "How much" },
    oninput: () => (byHand = true),
  });
  const note = h("span", { class: "rf-note" });
  const error = h("p", { class: "rf-error", role: "alert" });
  const rows = runs.map((run) => /** @type {Row} */ (view.state.rows.get(run))).filter(Boolean);
  let [own, byHand] = [totals(rows, []), false];

  /** The measure's total so far, and one more as what to train. */
  function suggest() {
    const had = own[/** @type {"num_train_epochs" | "max_steps"} */ (what.value)];
    amount.min = String(had);
    setText(note, had ? `so far ${showNumber(had)}` : "");
    if (!byHand) amount.value = String(had + 1);
  }

  Promise.all(runs.map((run) => view.ask("config", { run }))).then(
    (answers) => {
      own = totals(
        rows,
        answers.map((one) => one.data.values),
      );
      if (own.bySteps && !byHand) what.value = "max_steps";
      suggest();
    },
    () => suggest(),
  );

  function send(/** @type {Event} */ event) {
    event.preventDefault();
    const value = Number(amount.value);
    const whole = what.value === "max_steps";
    const had = own[/** @type {"num_train_epochs" | "max_steps"} */ (what.value)];
    if (!(value > had) || (whole && !Number.isInteger(value)))
      return setText(
        error,
        `must be a ${whole ? "whole " : ""}number above ${showNumber(had)}, which it has trained; got ${amount.value || "nothing"}`,
      );
    const batch = randomId();
    for (const run of runs) Object.assign(view.link.order(view.id, "resume", run, { [what.value]: value }), { batch });
    view.closeForm();
  }
  const title = runs.length > 1 ? `Train ${runs.length} finished runs longer` : `Train run ${runs[0]} longer`;
  const element = formSection(
    view,
    title,
    h(
      "form",
      { class: "rf-longer", novalidate: true, onsubmit: send },
      amount,
      what,
      note,
      h("button", { type: "submit", class: "rf-button rf-primary" }, "Train longer"),
      error,
    ),
  );
  return { element, update: () => undefined, destroy: () => undefined, focus: () => amount.focus() };
}
