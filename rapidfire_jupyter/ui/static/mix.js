// @ts-check
/* The form to weigh the tasks of a mixture anew, for some runs from their next step on. */

/** Names of the tasks that an experiment mixes; none where it trains on one data set. Pure. */
function tasksOf(/** @type {Head | null} */ head) {
  const names = head?.constants["mixture.tasks"];
  return Array.isArray(names) ? names.map(String) : [];
}

/** Each task's share of a run as it is now, of weights or of weights over time. Pure. */
function sharesOf(/** @type {Head | null} */ head, /** @type {Row} */ row) {
  const weights = row.params["mixture.weights"] ?? head?.constants["mixture.weights"];
  const list = /** @type {any[]} */ (Array.isArray(weights) ? weights : []);
  const last = list[list.length - 1];
  const shares = Array.isArray(last) ? last[1] : list;
  return Object.fromEntries(tasksOf(head).map((name, at) => [name, Number(shares[at] ?? 0)]));
}

/** What is wrong with weights; "" if they can be asked for. Pure. */
function weightsFault(/** @type {Record<string, number>} */ weights) {
  for (const [name, weight] of Object.entries(weights))
    if (!Number.isFinite(weight) || weight < 0) return `the weight of ${name} must be a number from 0 on`;
  return Object.values(weights).some((weight) => weight > 0) ? "" : "one weight must be above 0";
}

/** @param {View} view @param {number[]} runs */
function createMix(view, runs) {
  const row = /** @type {Row} */ (view.state.rows.get(runs[0]));
  const inputs = Object.entries(sharesOf(view.state.head, row)).map(([name, share]) => ({
    name,
    input: h("input", {
      ...{ type: "number", min: "0", step: "any", value: String(share) },
      "aria-label": name,
      oninput: tell,
    }),
    part: h("span", { class: "rf-note" }),
  }));
  const error = h("p", { class: "rf-error", role: "alert" });

  const typed = () =>
    Object.fromEntries(inputs.map(({ name, input }) => [name, input.value.trim() ? Number(input.value) : NaN]));

  /** Each task's share of what is typed. */
  function tell() {
    const weights = typed();
    const total = Object.values(weights).reduce((sum, weight) => sum + weight, 0);
    for (const { name, part } of inputs)
      setText(part, weightsFault(weights) ? "" : `${showNumber((100 * weights[name]) / total)} %`);
  }

  function send(/** @type {Event} */ event) {
    event.preventDefault();
    const weights = typed();
    const fault = weightsFault(weights);
    if (fault) return setText(error, fault);
    const batch = randomId();
    for (const run of runs) {
      const before = sharesOf(view.state.head, /** @type {Row} */ (view.state.rows.get(run)));
      Object.assign(view.link.order(view.id, "mix", run, { weights }, before), { batch });
    }
    view.closeForm();
  }
  const title = runs.length > 1 ? `Mix the tasks of ${runs.length} runs anew` : `Mix the tasks of run ${runs[0]} anew`;
  const element = formSection(
    view,
    title,
    h(
      "form",
      { class: "rf-longer", novalidate: true, onsubmit: send },
      inputs.map(({ name, input, part }) => h("label", null, name, " ", input, " ", part)),
      h("span", { class: "rf-note" }, "from the next step on; only the proportion counts"),
      h("button", { type: "submit", class: "rf-button rf-primary" }, "Mix anew"),
      error,
    ),
  );
  tell();
  return { element, update: () => undefined, destroy: () => undefined, focus: () => inputs[0]?.input.focus() };
}
