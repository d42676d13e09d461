// @ts-check
/* The clone form: the parent's hyperparameters to change, checked by the kernel before anything is made. */

const CHECK_MS = 300;

/**
 * Makes the form for a run; it fills itself when the kernel has answered.
 * @param {View} view @param {number} run
 */
function createClone(view, run) {
  const row = view.state.rows.get(run);
  const title = `Clone ${row ? runTitle(row) : `run ${run}`}`;
  const body = h("div", { class: "rf-formbody" }, h("p", { class: "rf-faint" }, "Reading its hyperparameters…"));
  const element = formSection(view, title, body);
  /** @type {ReturnType<typeof cloneBody> | null} */
  let inner = null;
  view.ask("form", { run }).then(
    ({ data }) => {
      if (!element.isConnected) return;
      inner = cloneBody(view, run, data.fields, data.warm);
      body.replaceChildren(inner.element);
      inner.focus();
    },
    (error) => body.replaceChildren(h("p", { class: "rf-error", role: "alert" }, error.message)),
  );
  return { element, update: () => inner?.update(), destroy: () => inner?.destroy() };
}

/** The form itself, once its fields are known. */
function cloneBody(
  /** @type {View} */ view,
  /** @type {number} */ run,
  /** @type {Field[]} */ fields,
  /** @type {string} */ noWarm,
) {
  const byPath = new Map(fields.map((field) => [field.path, field]));
  const name = randomId();
  const controls = fields.map((field, index) => makeField(field, `rf-${name}-${index}`, () => changed()));
  const warm = h("input", {
    type: "radio",
    name,
    checked: !noWarm,
    disabled: noWarm ? true : null,
    onchange: () => changed(),
  });
  const cold = h("input", { type: "radio", name, checked: Boolean(noWarm), onchange: () => changed() });
  const warmNote = h("p", { class: "rf-note" });
  const diff = h("ul", { class: "rf-diff" });
  const errors = h("div", { class: "rf-error", role: "alert" });
  const line = h("code", { class: "rf-line rf-cut" });
  const copy = button(
    "Copy as magic",
    "copy",
    () => void copyText(lines.join("\n")).then((done) => view.say(done ? "copied" : "this page may not copy")),
  );
  const submit = button("Create clone", "clone", () => send(), { text: "Create clone", class: "rf-button rf-primary" });
  const plot = createPlot({
    label: "Learning rate of the parent and of the clones by step",
    hover: (found, at) => [found.title, `step ${showNumber(found.x[at])}`, `learning rate ${showNumber(found.y[at])}`],
    zoomed: () => undefined,
  });
  const preview = h(
    "figure",
    { class: "rf-preview" },
    h("figcaption", null, "Learning rate it will follow"),
    plot.element,
  );
  preview.hidden = true;
  /** @type {string[]} */
  let lines = [];
  /** @type {Record<string, Json>[]} */
  let wanted = [];
  let [timer, turn, good] = [0, 0, false];

  const groups = [...new Set(fields.map((field) => field.group))].map((group) =>
    makeGroup(
      group,
      controls.filter((one) => one.field.group === group),
    ),
  );
  const side = h(
    "div",
    { class: "rf-side" },
    h(
      "fieldset",
      { class: "rf-start" },
      h("legend", null, "Start"),
      h("label", null, warm, "Warm: from the parent's weights, optimizer and place in the data"),
      h("label", null, cold, "Cold: from step 0"),
      warmNote,
    ),
    h("h4", null, "Changes"),
    diff,
    errors,
    preview,
    h("div", { class: "rf-pair" }, line, copy),
    h(
      "div",
      { class: "rf-pair" },
      submit,
      button("Cancel", "", () => view.closeForm(), { text: "Cancel" }),
    ),
  );
  const hint = h(
    "p",
    { class: "rf-note" },
    "Several values make several clones: numbers with commas, texts and lists with | between them.",
  );
  const element = h(
    "form",
    { class: "rf-clone", onsubmit: (/** @type {Event} */ event) => (event.preventDefault(), send()) },
    h("div", { class: "rf-fields" }, hint, groups),
    side,
  );

  /** Values given, by path, of fields that differ from the parent; null if something cannot be read. */
  function given() {
    /** @type {Map<string, Json[]>} */
    const found = new Map();
    let readable = true;
    for (const one of controls) {
      const { values, error } = one.read();
      one.tell(error, !error && !(values.length === 1 && same(values[0], one.field.value)));
      if (error) readable = false;
      else if (one.changed()) found.set(one.field.path, values);
    }
    return readable ? found : null;
  }

  function changed() {
    const found = given();
    turn += 1;
    good = false;
    window.clearTimeout(timer);
    diff.replaceChildren(
      ...(found && found.size
        ? [...found].map(([path, values]) => diffItem(path, values))
        : [h("li", { class: "rf-faint" }, found ? "none: the same hyperparameters again" : NONE)]),
    );
    setText(errors, "");
    setText(warmNote, noWarm ? `Warm is not possible: ${noWarm}` : "");
    update();
    if (!found) return;
    const count = countCombinations(found);
    if (count > MOST_CLONES)
      return setText(errors, `at most ${MOST_CLONES} clones at once, these values make ${count}; give fewer`);
    wanted = combinations(found).map((changes) => onlyChanged(changes, byPath));
    timer = window.setTimeout(() => void check(turn), CHECK_MS);
  }

  function diffItem(/** @type {string} */ path, /** @type {Json[]} */ values) {
    return h(
      "li",
      null,
      h("span", { title: path }, shortName(path)),
      " ",
      h("del", null, fieldText(byPath.get(path)?.value)),
      " → ",
      values.map((value, index) => [index > 0 && " | ", h("ins", null, fieldText(value))]),
    );
  }

  /** Has the kernel check every clone; nothing happens if the form was changed meanwhile. */
  async function check(/** @type {number} */ mine) {
    /** @type {any[]} */
    let answers;
    try {
      answers = (
        await Promise.all(wanted.map((changes) => view.ask("check", { run, changes, warm: warm.checked })))
      ).map((one) => one.data);
    } catch (error) {
      if (mine === turn) setText(errors, /** @type {Error} */ (error).message);
      return;
    }
    if (mine !== turn) return;
    const found = answers.map((one) => one.errors).find((one) => Object.keys(one).length) || {};
    const known = controls.filter((one) => found[one.field.path]);
    for (const one of known) one.tell(found[one.field.path], true);
    const rest = Object.entries(found)
      .filter(([path]) => !byPath.has(path))
      .map(([, text]) => text);
    const cannot = answers.map((one) => one.warm).find(Boolean) || "";
    if (warm.checked && cannot)
      rest.push(cannot.includes("start cold") ? cannot : `these changes cannot start warm: ${cannot}; choose cold`);
    if (!noWarm) setText(warmNote, !warm.checked && cannot ? `Warm would not be possible: ${cannot}` : "");
    setText(errors, rest.join("\n"));
    lines = answers.map((one) => one.line).filter(Boolean);
    good = !known.length && !rest.length;
    update();
    if (good && view.state.head?.can.includes("schedule")) await showSchedule(mine);
    else preview.hidden = true;
  }

  async function showSchedule(/** @type {number} */ mine) {
    const shown = wanted.slice(0, 4);
    const answers = await Promise.all(
      shown.map((changes) => view.ask("schedule", { run, changes, warm: warm.checked })),
    ).catch(() => []);
    if (mine !== turn) return;
    preview.hidden = !answers.length;
    if (!answers.length) return;
    const line = (/** @type {any} */ data, /** @type {string} */ key, /** @type {number} */ index) => {
      const kept = data.steps
        .map((/** @type {number} */ step, /** @type {number} */ i) => [step, toNumber(data[key][i])])
        .filter((/** @type {number[]} */ one) => !Number.isNaN(one[1]));
      const [x, y] = [
        kept.map((/** @type {number[]} */ one) => one[0]),
        kept.map((/** @type {number[]} */ one) => one[1]),
      ];
      return {
        run: index,
        title: index < 0 ? "parent" : `clone ${index + 1}`,
        slot: index,
        dashed: index >= 0 && warm.checked,
        x,
        y,
        raw: null,
        at: x,
        epochs: x,
        label: index < 0 ? "" : String(index + 1),
      };
    };
    const all = [line(answers[0].data, "parent", -1), ...answers.map((one, index) => line(one.data, "clone", index))];
    plot.show(
      all,
      {
        x: "step",
        log: false,
        zoom: null,
        marks: warm.checked ? [answers[0].data.from_step] : [],
        xTitle: "step",
        yTitle: "",
      },
      view.theme,
    );
  }

  function update() {
    const reason = locked(view.state.head) || (view.state.rows.has(run) ? "" : "the run is gone");
    const text = wanted.length > 1 ? `Create ${wanted.length} clones` : "Create clone";
    setText(submit.lastChild, text);
    setAttribute(submit, "aria-disabled", good && !reason ? null : "true");
    submit.title = reason;
    setText(line, good ? `${lines[0] || ""}${lines.length > 1 ? `  (+${lines.length - 1})` : ""}` : "");
    line.title = lines.join("\n");
    copy.hidden = !good || !lines.length;
  }

  function send() {
    if (!good || locked(view.state.head)) return;
    const batch = randomId();
    for (const changes of wanted)
      Object.assign(view.link.order(view.id, "clone", run, { changes, warm: warm.checked }), { batch });
    view.closeForm();
  }

  changed();
  return {
    element,
    update,
    focus: () => element.querySelector("input:not([type=radio])")?.focus(),
    destroy: () => (window.clearTimeout(timer), (turn += 1), plot.destroy()),
  };
}

/** One field with its label, note and error. */
function makeField(/** @type {Field} */ field, /** @type {string} */ id, /** @type {() => void} */ changed) {
  const { control, read, reset } = makeControl(field, id, changed);
  const single = control.matches("input") || control.querySelector("input[type=text]");
  const label = h(
    single ? "label" : "span",
    { class: "rf-label rf-cut", id: `${id}-label`, for: single ? id : null, title: field.path },
    field.label,
  );
  const back = button(`Set ${field.label} back`, "undo", () => (reset(), changed()), {
    class: "rf-button rf-only rf-back",
    hidden: true,
  });
  const note = h("span", { class: "rf-fieldnote rf-cut", id: `${id}-note`, title: field.note }, field.note);
  const element = h("div", { class: "rf-field" }, h("div", { class: "rf-labelrow" }, label, back), control, note);
  let differs = false;
  return {
    ...{ field, element, read },
    changed: () => differs,
    tell(/** @type {string} */ error, /** @type {boolean} */ isChanged) {
      differs = isChanged;
      element.classList.toggle("rf-changed", isChanged);
      element.classList.toggle("rf-wrong", Boolean(error));
      back.hidden = !isChanged && !error;
      setText(note, error || field.note);
      const input = control.matches("input") ? control : control.querySelector("input[type=text]");
      if (input) setAttribute(input, "aria-invalid", error ? "true" : null);
    },
  };
}

/** A group of fields: those given first, those with their default folded. */
function makeGroup(/** @type {string} */ group, /** @type {ReturnType<typeof makeField>[]} */ members) {
  const given = members.filter((one) => one.field.given).map((one) => one.element);
  const others = members.filter((one) => !one.field.given).map((one) => one.element);
  return h(
    "fieldset",
    { class: "rf-group" },
    h("legend", null, group),
    h("div", { class: "rf-fieldgrid" }, given),
    others.length > 0 &&
      h(
        "details",
        null,
        h("summary", null, `${others.length} more, with their defaults`),
        h("div", { class: "rf-fieldgrid" }, others),
      ),
  );
}
