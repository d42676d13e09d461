// @ts-check
/* The tab of samples: the same prompts answered by several runs, side by side, and a box to ask them something. */

const MOST_SIDE = 6;
const GENERATE_MS = 600_000; // runs answer between slices

/** @param {View} view */
function createSamples(view) {
  const chunk = h("select", { "aria-label": "Chunk", onchange: () => ((byHand = true), void load()) });
  const grid = h("div");
  const question = h("textarea", { rows: 2, "aria-label": "Prompt", placeholder: "Ask the selected runs something…" });
  const send = button("Ask", "", () => void ask(), { text: "Ask", class: "rf-button rf-primary" });
  const box = h(
    "form",
    { class: "rf-ask", onsubmit: (/** @type {Event} */ event) => event.preventDefault() },
    question,
    send,
  );
  const answers = h("div");
  const element = h(
    "div",
    { class: "rf-pane" },
    box,
    answers,
    h("div", { class: "rf-tools" }, h("strong", null, "After chunk"), chunk),
    grid,
  );
  /** @type {Sample[]} */
  let prompts = [];
  let byHand = false; // else the newest chunk that most of the runs shown have reached

  const shown = () =>
    view.targets().length > 1 ? view.targets().slice(0, MOST_SIDE) : view.order().slice(0, MOST_SIDE);

  async function load() {
    if (!view.state.head?.can.includes("samples")) return;
    try {
      const { data } = await view.ask("samples", { chunk: byHand ? Number(chunk.value) : null, runs: shown() });
      setOptions(
        chunk,
        data.chunks.map((/** @type {number} */ one) => [String(one), String(one)]),
        data.chunks.length ? String(data.chunk) : "",
      );
      prompts = data.prompts;
      draw();
    } catch (error) {
      grid.replaceChildren(h("p", { class: "rf-error" }, /** @type {Error} */ (error).message));
    }
  }

  function draw() {
    const runs = shown();
    grid.replaceChildren(
      prompts.length
        ? sampleTable(view, prompts, runs)
        : h("p", { class: "rf-empty rf-still" }, "Samples appear with the first chunk that is evaluated."),
    );
  }

  async function ask() {
    const text = question.value.trim();
    const runs = shown();
    if (!text || !runs.length || send.getAttribute("aria-disabled")) return;
    setAttribute(send, "aria-disabled", "true");
    answers.replaceChildren(h("p", { class: "rf-faint" }, `${plural(runs.length, "run")} will answer between slices…`));
    try {
      const { data } = await view.ask("sample", { runs, prompts: [text] }, GENERATE_MS);
      const predictions = Object.fromEntries(
        Object.entries(data.predictions).map(([run, texts]) => [run, texts[0] ?? ""]),
      );
      answers.replaceChildren(sampleTable(view, [{ prompt: text, reference: "", predictions, scores: {} }], runs));
    } catch (error) {
      answers.replaceChildren(h("p", { class: "rf-error", role: "alert" }, /** @type {Error} */ (error).message));
    } finally {
      setAttribute(send, "aria-disabled", null);
    }
  }

  let drawn = "";
  function update() {
    box.hidden = !view.state.head?.can.includes("sample") || Boolean(locked(view.state.head));
    const now = shown().join();
    if (now !== drawn) {
      draw();
      if (!byHand && drawn) void load();
    }
    drawn = now;
  }
  return { element, update, show: () => (update(), void load()) };
}

/** Prompts down, runs across; the reference beside them. */
function sampleTable(/** @type {View} */ view, /** @type {Sample[]} */ prompts, /** @type {number[]} */ runs) {
  const reference = prompts.some((one) => one.reference);
  const heads = runs.map((run) =>
    h(
      "th",
      { scope: "col" },
      h("i", { class: "rf-key", style: `color:${slotColor(view.theme, view.slots.get(run) ?? -1)}` }),
      runTitle(/** @type {Row} */ (view.state.rows.get(run))),
    ),
  );
  const answer = (/** @type {Sample} */ one, /** @type {number} */ run) => {
    const scores = Object.entries(one.scores[run] || {}).map(([name, value]) =>
      h("span", { class: "rf-score" }, `${name} ${showNumber(value, 3)}`),
    );
    return h("td", null, h("div", { class: "rf-generated" }, one.predictions[run] ?? NONE), scores);
  };
  return h(
    "div",
    { class: "rf-scroll rf-text", tabindex: 0, role: "region", "aria-label": "Samples" },
    h(
      "table",
      { class: "rf-list rf-samples" },
      h(
        "thead",
        null,
        h("tr", null, h("th", { scope: "col" }, "Prompt"), reference && h("th", { scope: "col" }, "Reference"), heads),
      ),
      h(
        "tbody",
        null,
        prompts.map((one) =>
          h(
            "tr",
            null,
            h("td", null, h("div", { class: "rf-generated" }, one.prompt)),
            reference && h("td", null, h("div", { class: "rf-generated" }, one.reference)),
            runs.map((run) => answer(one, run)),
          ),
        ),
      ),
    ),
  );
}
