// @ts-check
/* The tab of policies: each is off, only tells, or acts; what it did, and what it would do now. */

const MODES = /** @type {[string, string][]} */ ([
  ["off", "Off"],
  ["dry-run", "Only tell"],
  ["on", "On"],
]);

/** @param {View} view */
function createPolicies(view) {
  const list = h("div", { class: "rf-policies" });
  const element = h(
    "div",
    { class: "rf-pane" },
    h(
      "p",
      { class: "rf-note" },
      "Policies are asked at chunk ends. What they do are ordinary operations: resume a run that one stopped, and none stops it again.",
    ),
    h("div", { class: "rf-scroll rf-text", tabindex: 0, role: "region", "aria-label": "Policies" }, list),
  );
  /** @type {Map<string, ReturnType<typeof policyRow>>} */
  const rows = new Map();
  let [known, reading] = ["", false];

  async function load() {
    if (reading) return;
    reading = true;
    try {
      const { data } = await view.ask("policies");
      for (const policy of /** @type {Policy[]} */ (data.policies)) {
        let row = rows.get(policy.key);
        if (!row) {
          rows.set(policy.key, (row = policyRow(view, policy.key)));
        }
        row.show(policy);
      }
      list.replaceChildren(...[...rows.values()].map((row) => row.element));
    } catch (error) {
      list.replaceChildren(h("p", { class: "rf-error" }, /** @type {Error} */ (error).message));
    } finally {
      reading = false;
    }
  }

  /** What was decided or switched is asked for again. */
  function update() {
    const news = view.state.entries.filter((one) => one.op || one.kind === "decisions" || one.kind === "overseen");
    const now = `${news[news.length - 1]?.seq} ${view.state.head?.first_time}`;
    if (now !== known) void load();
    known = now;
    for (const row of rows.values()) row.lock(locked(view.state.head));
  }
  return { element, update };
}

/** One policy: its switch, settings, and what it did. */
function policyRow(/** @type {View} */ view, /** @type {string} */ key) {
  const name = key.replaceAll("_", " ");
  const mode = h(
    "select",
    { "aria-label": `Policy ${name}`, onchange: () => switchTo(mode.value) },
    MODES.map(([value, text]) => h("option", { value }, text)),
  );
  const about = h("span", { class: "rf-note rf-grow" });
  const settings = h("div", { class: "rf-settings" });
  const apply = button("Apply", "", () => switchTo(mode.value), {
    text: "Apply",
    class: "rf-button rf-small",
    hidden: true,
  });
  const fault = h("p", { class: "rf-error", role: "alert", hidden: true });
  const would = button("Would do now", "", () => void preview(), { text: "Would do now", class: "rf-button rf-small" });
  const answer = h("ul", { class: "rf-told", hidden: true });
  const done = h("span", { class: "rf-done" });
  const told = h("ul", { class: "rf-told" });
  const history = h("details", { hidden: true }, h("summary", null, "Decisions"), told);
  const element = h(
    "div",
    { class: "rf-policy", "data-policy": key },
    h("div", { class: "rf-tools" }, h("strong", null, name), mode, about, done, would),
    h("details", null, h("summary", null, "Settings"), settings, apply),
    fault,
    answer,
    history,
  );
  /** @type {Policy | null} */
  let now = null;
  /** @type {Map<string, any>} */
  const inputs = new Map();
  let drawn = "";

  /** Settings that were typed, by name; null if one cannot be read. */
  function typed() {
    /** @type {Record<string, Json>} */
    const found = {};
    for (const one of now?.settings || []) {
      const input = inputs.get(one.name);
      if (!input || input.value === fieldText(one.value)) continue;
      const field = /** @type {any} */ ({ ...one, choices: null, least: null, most: null });
      const [value, error] = readOne(field, input.value.trim());
      if (error) {
        complain(`${one.name} ${error}`);
        return null;
      }
      found[one.name] = value;
    }
    return found;
  }

  function complain(/** @type {string} */ text) {
    setText(fault, text);
    fault.hidden = !text;
  }

  function switchTo(/** @type {string} */ wanted) {
    if (!now || locked(view.state.head)) return;
    complain("");
    const changed = typed();
    if (!changed) return void (mode.value = now.mode);
    const old = now.settings.filter((one) => one.name in changed).map((one) => [one.name, one.value]);
    const before = { mode: now.mode, settings: Object.fromEntries(old) };
    view.link.order(view.id, "policy", null, { name: key, mode: wanted, settings: changed }, before);
  }

  async function preview() {
    setAttribute(would, "aria-disabled", "true");
    try {
      const { data } = await view.ask("policies", { would: key });
      const lines = data.missing ? [data.missing] : data.would.length ? data.would : ["Nothing now."];
      answer.replaceChildren(...lines.map((/** @type {string} */ line) => h("li", null, line)));
    } catch (error) {
      answer.replaceChildren(h("li", { class: "rf-error" }, /** @type {Error} */ (error).message));
    }
    answer.hidden = false;
    setAttribute(would, "aria-disabled", null);
  }

  function show(/** @type {Policy} */ policy) {
    now = policy;
    mode.value = policy.mode;
    setAttribute(element, "data-mode", policy.mode);
    setText(about, policy.about);
    setText(done, policy.done);
    history.hidden = !policy.told.length;
    told.replaceChildren(
      ...[...policy.told].reverse().map(([time, text]) => h("li", null, `${showClock(time)} ${text}`)),
    );
    const wanted = JSON.stringify(policy.settings);
    if (wanted === drawn) return;
    drawn = wanted;
    inputs.clear();
    settings.replaceChildren(
      ...policy.settings.map((one) => {
        const input = h("input", {
          type: "text",
          value: fieldText(one.value),
          title: one.about,
          size: 8,
          disabled: one.kind === "fixed",
          oninput: () => (apply.hidden = false),
        });
        if (one.kind !== "fixed") inputs.set(one.name, input);
        return h("label", { title: one.about }, one.name, input);
      }),
    );
    settings.parentElement.hidden = !policy.settings.length;
    apply.hidden = true;
  }

  return {
    element,
    show,
    lock: (/** @type {string} */ why) => {
      mode.disabled = Boolean(why);
      mode.title = why;
    },
  };
}
