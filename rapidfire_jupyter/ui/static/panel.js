// @ts-check
/* A view of the panel: puts the parts together, and draws them again when something changed, but seldom. */

const REDRAW_DATA_MS = 1_000;

/** What a new view shows. @returns {Wish} */
function firstWish() {
  return {
    metric: "",
    x: "step",
    smooth: 0,
    log: false,
    hidden: new Set(),
    alone: null,
    selected: new Set(),
    sort: { key: "run", down: false },
    filter: "",
    tab: "curves",
    zoom: null,
    asTable: false,
  };
}

/** Opens a view in an element; gives the function that closes it. */
function openPanel(/** @type {any} */ link, /** @type {HTMLElement} */ el) {
  const root = h("section", { class: "rf-panel", "data-lm-suppress-shortcuts": "true", "aria-label": "Experiment" });
  /** @type {View} */
  const view = {
    ...{ id: randomId(), root, link, state: link.state, wish: firstWish(), slots: new Map(), theme: readTheme(root) },
    ask: (what, args, patienceMs) => link.ask(view.id, what, args, patienceMs),
    say: (text) => notices.say(text),
    ...{
      openClone: (run) => openForm(createClone(view, run)),
      openLonger: (runs) => openForm(createLonger(view, runs)),
      openMix: (runs) => openForm(createMix(view, runs)),
      closeForm,
    },
    openTab: (key) => (closeForm(), tabs.open(key)),
    changed: () => (remember(), draw()),
    light: (run) => tabs.curves().plot.light(run),
    targets,
    order: () => table.ids(),
    picture: () => tabs.curves().plot,
  };
  el.append(root);
  setTheme();
  const head = createHead(view, createExport(view).element);
  const notices = createNotices(view);
  const table = createTable(view);
  const tabs = createTabs(view, () => (controls.hidden = tabs.shown() !== "curves"));
  const { controls } = tabs.curves();
  const tools = h("div", { class: "rf-toolrow" }, tabs.list, controls);
  const top = h("div", { role: "toolbar", class: "rf-top", "aria-label": "Experiment" }, head.row, tools);
  const formBox = h("div", { hidden: true });
  const foot = createFoot(view);
  root.append(top, head.note, head.aloud, tabs.pane, formBox, table.element, notices.element, foot.element);
  const [topStops, footStops] = [roving(top), roving(foot.ops)];
  /** @type {any} */
  let form = null;
  let [timer, drawnAt, stale, inSight, known] = [0, 0, true, true, ""];

  function targets() {
    const chosen = table.ids().filter((run) => view.wish.selected.has(run));
    const focused = table.focused();
    return chosen.length ? chosen : Number.isNaN(focused) ? [] : [focused];
  }

  function openForm(/** @type {any} */ made) {
    form?.destroy();
    form = made;
    formBox.replaceChildren(form.element);
    [formBox.hidden, tabs.pane.hidden] = [false, true];
    (form.focus ? form : form.element.querySelector("button"))?.focus();
    formBox.scrollIntoView?.({ block: "nearest" });
  }

  function closeForm() {
    if (!form) return;
    const inside = formBox.contains(document.activeElement);
    form.destroy();
    form = null;
    formBox.replaceChildren();
    [formBox.hidden, tabs.pane.hidden] = [true, false];
    draw();
    if (inside) table.focusRun(table.focused() || table.ids()[0]);
  }

  /** Draws everything anew. */
  function draw() {
    window.clearTimeout(timer);
    [timer, drawnAt] = [0, performance.now()];
    stale = document.hidden || (!inSight && known !== "");
    if (stale) return;
    setTheme(); // it may have come late: widgets are attached, and themes loaded, after we are called
    const { head: now } = view.state;
    if (now && now.name !== known) recall((known = now.name));
    if (now && !now.metrics.includes(view.wish.metric)) view.wish.metric = now.metrics[0] || "";
    root.classList.toggle("rf-waiting", !now);
    if (now) setAttribute(root, "aria-label", `Experiment ${now.name}`);
    view.slots = highlight(view.state, view.wish, view.slots);
    head.update();
    table.update();
    tabs.update();
    form?.update();
    notices.update();
    foot.update(targets());
    topStops();
    footStops();
  }

  function heard(/** @type {string} */ what) {
    if (what === "tick") {
      if (view.link.orders.length) notices.update();
      return;
    }
    if (what !== "data" || !known) return draw();
    if (!timer) timer = window.setTimeout(draw, Math.max(0, drawnAt + REDRAW_DATA_MS - performance.now()));
  }

  function setTheme() {
    root.dataset.dark = String(isDark(root));
    view.theme = readTheme(root);
  }

  /** Keeps what is shown over a reload of the page. */
  function remember() {
    const { zoom: _zoom, ...wish } = view.wish;
    try {
      sessionStorage.setItem(
        `rapidfire:${known}`,
        JSON.stringify({ ...wish, hidden: [...wish.hidden], selected: [...wish.selected] }),
      );
    } catch {
      // A page without storage forgets.
    }
  }

  function recall(/** @type {string} */ name) {
    try {
      const saved = JSON.parse(sessionStorage.getItem(`rapidfire:${name}`) || "null");
      if (saved)
        Object.assign(view.wish, {
          ...firstWish(),
          ...saved,
          hidden: new Set(saved.hidden),
          selected: new Set(saved.selected),
        });
      foot.filter.value = view.wish.filter;
    } catch {
      // Saved by another version: the view starts afresh.
    }
  }

  root.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const inGrid = table.table.contains(/** @type {Node} */ (event.target));
    const done =
      (event.key === "Escape" && foot.closeHelp()) ||
      (inGrid && gridKey(view, table, event)) ||
      panelKey(view, event, foot.filter) ||
      (event.key === "Escape" && form && (closeForm(), true));
    if (done) event.preventDefault();
    if (done) event.stopPropagation();
  });
  const woken = () => stale && draw();
  document.addEventListener("visibilitychange", woken);
  const sight = new IntersectionObserver((entries) => {
    inSight = entries[entries.length - 1].isIntersecting;
    if (inSight && (stale || !view.theme.text)) draw(); // what is out of sight costs nothing
  });
  sight.observe(root);
  const unwatch = watchTheme(() => {
    draw();
    timer = window.setTimeout(draw, REDRAW_DATA_MS); // the theme's own style sheet is loaded a little later
  });
  const close = link.open(view.id, heard);
  draw();

  return () => {
    close();
    unwatch();
    sight.disconnect();
    document.removeEventListener("visibilitychange", woken);
    window.clearTimeout(timer);
    form?.destroy();
    foot.closeHelp();
    tabs.destroy();
    root.remove();
  };
}

/** The panel's last line: what ops act on, their buttons, filter and help. */
function createFoot(/** @type {View} */ view) {
  const count = h("span", { class: "rf-count" });
  const buttons = Object.entries(RUN_OPS).map(([kind, { label, icon: symbol }]) =>
    button(label, symbol, (event) => press(kind, event), { text: label, "data-op": kind }),
  );
  const ops = h(
    "div",
    { role: "toolbar", class: "rf-footops", "aria-label": "Operations on the selected runs" },
    buttons,
  );
  const filter = h("input", {
    type: "search",
    class: "rf-filter",
    placeholder: "Filter runs  ( / )",
    "aria-label": "Filter runs",
    oninput: () => ((view.wish.filter = filter.value), view.changed()),
  });
  const help = h(
    "div",
    { class: "rf-help", hidden: true, id: `rf-help-${view.id}` },
    h(
      "dl",
      null,
      HELP.map(([keys, text]) => [h("dt", null, keys), h("dd", null, text)]),
    ),
  );
  /** Pressing elsewhere, or Escape wherever the focus is, closes the help. */
  const elsewhere = (/** @type {Event} */ event) => {
    const at = /** @type {Node} */ (event.composedPath()[0]);
    const key = /** @type {KeyboardEvent} */ (event).key;
    if (key ? key === "Escape" : !help.contains(at) && !ask.contains(at)) closeHelp();
  };
  const ask = button("Keyboard help", "", () => (help.hidden ? openHelp() : closeHelp()), {
    text: "?",
    "aria-label": "Keyboard help",
    "aria-expanded": "false",
    "aria-controls": help.id,
  });

  function openHelp() {
    help.hidden = false;
    ask.setAttribute("aria-expanded", "true");
    document.addEventListener("pointerdown", elsewhere, true);
    document.addEventListener("keydown", elsewhere);
  }

  /** Closes the help; false if it was not open. */
  function closeHelp() {
    if (help.hidden) return false;
    help.hidden = true;
    ask.setAttribute("aria-expanded", "false");
    document.removeEventListener("pointerdown", elsewhere, true);
    document.removeEventListener("keydown", elsewhere);
    return true;
  }

  function press(/** @type {string} */ kind, /** @type {MouseEvent} */ event) {
    const runs = view.targets();
    if (!event.altKey) return void act(view, kind, runs);
    const lines = actLines(view, kind, runs);
    void copyText(lines).then((done) => view.say(done ? `copied: ${lines.split("\n")[0]}` : "this page may not copy"));
  }

  function update(/** @type {number[]} */ runs) {
    const selected = [...view.wish.selected].filter((run) => view.state.rows.has(run)).length;
    setText(
      count,
      selected ? `${selected} selected` : runs.length ? `run ${runs[0]}` : plural(view.state.rows.size, "run"),
    );
    const rows = runs.map((run) => /** @type {Row} */ (view.state.rows.get(run))).filter(Boolean);
    for (const one of buttons) {
      one.hidden = !offered(view.state.head, one.dataset.op);
      const reasons = rows.map((row) => refusal(view.state.head, row, one.dataset.op));
      const reason = rows.length
        ? reasons.every(Boolean)
          ? reasons[0]
          : ""
        : locked(view.state.head) || "select a run first";
      setAttribute(one, "aria-disabled", reason ? "true" : null);
      one.title = reason || "Alt copies the %rapidfire line";
    }
  }
  const element = h(
    "div",
    { class: "rf-foot" },
    count,
    ops,
    h("span", { class: "rf-grow rf-spacer" }),
    filter,
    ask,
    help,
  );
  return { element, ops, filter, update, closeHelp };
}

/** One widget model: its link, shared by all its views. anywidget calls this once for each model. */
export default () => {
  /** @type {any} */
  let link = null;
  return {
    /** Listeners made here live as long as the model; those of a view's model would end with that view. */
    initialize(/** @type {{model: Model}} */ { model }) {
      link = createLink(model);
    },
    render(/** @type {{model: Model, el: HTMLElement}} */ { model, el }) {
      link = link || createLink(model);
      return openPanel(link, el);
    },
  };
};
