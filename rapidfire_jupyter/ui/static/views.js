// @ts-check
/* The upper half of the panel: its tabs, and the first of them, the curves with their controls. */

const TABS =
  /** @type {{key: string, title: string, make: (view: View) => any, when: (state: State) => boolean}[]} */ ([
    { key: "curves", title: "Curves", make: (view) => createCurves(view), when: () => true },
    {
      key: "timeline",
      title: "Timeline",
      make: (view) => createTimeline(view),
      when: (state) => state.slices.length > 0,
    },
    {
      key: "samples",
      title: "Samples",
      make: (view) => createSamples(view),
      when: (state) => can(state, "samples") || can(state, "sample"),
    },
    {
      key: "policies",
      title: "Policies",
      make: (view) => createPolicies(view),
      when: (state) => can(state, "policies") && state.rows.size > 0,
    },
    { key: "events", title: "Events", make: (view) => createEvents(view), when: (state) => state.entries.length > 0 },
    { key: "log", title: "Log", make: (view) => createLog(view), when: (state) => state.rows.size > 0 },
    { key: "data", title: "Data", make: (view) => createData(view), when: (state) => state.rows.size > 0 },
    { key: "config", title: "Config", make: (view) => createConfig(view), when: (state) => state.rows.size > 0 },
    { key: "compare", title: "Compare", make: (view) => createCompare(view), when: (state) => can(state, "analysis") },
    { key: "explore", title: "Plotly", make: (view) => createExplore(view), when: (state) => state.curves.size > 0 },
  ]);

function can(/** @type {State} */ state, /** @type {string} */ what) {
  return Boolean(state.head?.can.includes(what));
}

/** The tab list and the pane of the tab that is open. Tabs are made when they are first opened. */
function createTabs(/** @type {View} */ view, /** @type {() => void} */ opened) {
  const list = h("div", { role: "tablist", class: "rf-tabs", "aria-label": "Views" });
  const pane = h("div", { role: "tabpanel", id: `rf-pane-${view.id}`, class: "rf-tabpane" });
  /** @type {Map<string, any>} */
  const made = new Map();
  const buttons = new Map(
    TABS.map(({ key, title }) => [
      key,
      h(
        "button",
        {
          type: "button",
          role: "tab",
          id: `rf-tab-${key}-${view.id}`,
          "aria-controls": pane.id,
          hidden: key !== "curves",
          onclick: () => open(key),
        },
        title,
      ),
    ]),
  );
  list.append(...buttons.values());
  let shown = "";

  function open(/** @type {string} */ key) {
    view.wish.tab = key;
    update();
    view.changed();
  }

  function update() {
    for (const tab of TABS) buttons.get(tab.key).hidden = !tab.when(view.state) && tab.key !== shown;
    const tab = TABS.find((one) => one.key === view.wish.tab && one.when(view.state)) || TABS[0];
    let content = made.get(tab.key);
    if (!content) made.set(tab.key, (content = tab.make(view)));
    if (shown !== tab.key) {
      shown = tab.key;
      pane.replaceChildren(content.element);
      for (const [name, one] of buttons) setAttribute(one, "aria-selected", String(name === shown));
      pane.setAttribute("aria-labelledby", buttons.get(shown).id);
      opened();
      content.show?.();
    }
    content.update();
  }

  const destroy = () => made.forEach((content) => content.destroy?.());
  return {
    list,
    pane,
    update,
    destroy,
    open,
    shown: () => shown,
    curves: () => made.get("curves") || (made.set("curves", createCurves(view)), made.get("curves")),
  };
}

/** The curves; their controls stand in the panel's toolbar. */
function createCurves(/** @type {View} */ view) {
  const { wish } = view;
  const metric = h("select", {
    "aria-label": "Metric",
    class: "rf-metric",
    onchange: () => set({ metric: metric.value, zoom: null }),
  });
  const axis = h(
    "select",
    { "aria-label": "Horizontal axis", onchange: () => set({ x: axis.value, zoom: null }) },
    Object.entries(X_TITLES).map(([value, text]) => h("option", { value }, text)),
  );
  const smoothing = h("input", {
    type: "range",
    min: 0,
    max: 0.95,
    step: 0.05,
    "aria-label": "Smoothing",
    oninput: () => set({ smooth: Number(smoothing.value) }),
  });
  const log = h("input", { type: "checkbox", onchange: () => set({ log: log.checked, zoom: null }) });
  const asTable = button("Numbers behind the chart", "", () => set({ asTable: !wish.asTable }), { text: "Numbers" });
  const reset = button("Reset zoom", "", () => set({ zoom: null }), { text: "Reset zoom", hidden: true });
  const controls = h(
    "div",
    { class: "rf-controls" },
    reset,
    metric,
    h("label", null, "by ", axis),
    h("label", { title: "Smoothing" }, "smooth ", smoothing),
    h("label", null, log, "log"),
    asTable,
  );
  const plot = createPlot({ label: "Curves", hover, zoomed: (zoom) => set({ zoom }), hovered: (run) => markRow(run) });
  const numbers = h("div", {
    class: "rf-scroll rf-text",
    hidden: true,
    tabindex: 0,
    role: "region",
    "aria-label": "Numbers behind the chart",
  });
  const element = h("div", { class: "rf-curves" }, plot.element, numbers);
  let told = "";

  function set(/** @type {Partial<Wish>} */ changes) {
    Object.assign(wish, changes);
    view.changed();
  }

  function hover(/** @type {Line} */ line, /** @type {number} */ at) {
    const row = view.state.rows.get(line.run);
    const raw = line.raw ? ` (smoothed; logged ${showNumber(line.raw[at])})` : "";
    const params = Object.entries(row?.params || {}).map(([name, value]) => `${shortName(name)} ${showValue(value)}`);
    return [
      line.title,
      `${wish.metric} ${showNumber(line.y[at])}${raw}`,
      `step ${showNumber(line.at[at])} · epoch ${showNumber(line.epochs[at], 3)}`,
      ...params,
    ];
  }

  function markRow(/** @type {number | null} */ run) {
    for (const row of view.root.querySelectorAll("tr.rf-lit")) row.classList.remove("rf-lit");
    if (run !== null) view.root.querySelector(`tr[data-run="${run}"]`)?.classList.add("rf-lit");
  }

  function update() {
    const { head } = view.state;
    const names = head?.metrics || [];
    setOptions(
      metric,
      (names.length ? names : [""]).map((name) => [name, name || "no metric yet"]),
      wish.metric,
    );
    [axis.value, smoothing.value, log.checked] = [wish.x, String(wish.smooth), wish.log];
    reset.hidden = !wish.zoom;
    setAttribute(asTable, "aria-pressed", String(wish.asTable));
    [plot.element.hidden, numbers.hidden] = [wish.asTable, !wish.asTable];
    const lines = linesOf(view.state, wish, view.slots);
    const message = lines.length
      ? ""
      : !head
        ? "Waiting for the kernel…"
        : names.length && view.state.curves.size
          ? `No curve of ${wish.metric} to show: its runs are hidden or have not logged it.`
          : "Curves appear with the first logged step.";
    plot.show(
      lines,
      {
        x: wish.x,
        log: wish.log,
        zoom: wish.zoom,
        marks: chunkMarks(view.state, wish, lines),
        xTitle: X_TITLES[wish.x],
        yTitle: "",
      },
      view.theme,
      message,
    );
    const label = `Curves of ${wish.metric || "no metric yet"} by ${X_TITLES[wish.x]}: ${plural(lines.length, "run")}. The button Numbers shows them as a table.`;
    if (label !== told) plot.base.setAttribute("aria-label", (told = label));
    if (wish.asTable) fillNumbers(lines);
  }

  function fillNumbers(/** @type {Line[]} */ lines) {
    const rows = curveTable(view.state, lines);
    const cell = (/** @type {number} */ value) => h("td", { class: "rf-number" }, showNumber(value));
    numbers.replaceChildren(
      h(
        "table",
        { class: "rf-list" },
        h("caption", null, `${wish.metric} by ${X_TITLES[wish.x]}`),
        h(
          "thead",
          null,
          h(
            "tr",
            null,
            ["Run", "Points", "First", "Least", "Greatest", "Last", "At step"].map((text) =>
              h("th", { scope: "col" }, text),
            ),
          ),
        ),
        h(
          "tbody",
          null,
          rows.map((row) =>
            h(
              "tr",
              null,
              h("th", { scope: "row" }, row.run),
              [row.points, row.first, row.least, row.most, row.last, row.step].map(cell),
            ),
          ),
        ),
      ),
    );
  }

  return { element, controls, plot, update, destroy: () => plot.destroy() };
}
