// @ts-check
/* The table of runs: a grid that is one tab stop. Cells are kept and only what changed in them is set. */

/** Makes the grid of a view. */
function createTable(/** @type {View} */ view) {
  const body = h("tbody");
  const header = h("tr");
  const table = h(
    "table",
    { role: "grid", class: "rf-grid", "aria-label": "Runs", "aria-multiselectable": "true" },
    h("thead", null, header),
    body,
  );
  const constants = h("div", { class: "rf-constants rf-cut" });
  const empty = h("div", { class: "rf-empty rf-still" });
  const scroller = h("div", { class: "rf-scroll" }, table);
  const element = h("div", { class: "rf-table" }, constants, scroller, empty);
  /** @type {Map<number, RowParts>} */
  const parts = new Map();
  /** @type {Column[]} */
  let columns = [];
  /** @type {Row[]} */
  let rows = [];
  let [shape, nameWidth, all] = ["", 88, /** @type {HTMLInputElement | null} */ (null)];

  /** A run is gone when its delete can no longer be undone. */
  function gone(/** @type {Row} */ row) {
    if (row.status !== "deleted") return false;
    const sent = view.link.orders.find(
      (/** @type {Sent} */ one) =>
        one.kind === "delete" &&
        one.run === row.id &&
        one.status === "applied" &&
        performance.now() - one.settled < UNDO_MS,
    );
    return !sent && Date.now() / 1000 - (view.state.head?.first_time || 0) - row.deleted_at > UNDO_MS / 1000;
  }

  function update() {
    const { head } = view.state;
    columns = columnsOf(view.state, view.wish.metric, view.theme.font);
    nameWidth = Math.min(
      element.clientWidth > 1200 ? 320 : element.clientWidth > 900 ? 250 : element.clientWidth > 600 ? 190 : 150,
      Math.max(
        88,
        ...[...view.state.rows.values()].map((row) => 6.4 * tableTitle(row, head?.varying || []).length + 20),
      ),
    );
    const wanted = nameWidth + JSON.stringify(columns.map((column) => [column.key, column.title, column.width]));
    if (wanted !== shape) build(wanted);
    rows = listed(view.state, view.wish, columns, gone);
    setText(constants, head ? constantsText(head) : "");
    constants.title = constants.textContent || "";
    constants.hidden = !constants.textContent;
    const known = new Set(rows.map((row) => row.id));
    for (const [run, part] of parts)
      if (!known.has(run)) {
        if (part.tr.contains(document.activeElement)) focusNear(run);
        part.tr.remove();
        parts.delete(run);
      }
    rows.forEach((row, index) => {
      const part = parts.get(row.id) || makeRow(row.id);
      fillRow(view, part, row, columns);
      if (body.children[index] !== part.tr) placeRow(part.tr, index);
    });
    table.setAttribute("aria-rowcount", String(rows.length + 1));
    setText(
      empty,
      !head
        ? "Waiting for the kernel…"
        : rows.length
          ? ""
          : view.state.rows.size
            ? "No run matches the filter."
            : "Runs appear here when run_fit starts.",
    );
    empty.hidden = !empty.textContent;
    scroller.hidden = !rows.length;
    if (all) {
      const count = rows.filter((row) => view.wish.selected.has(row.id)).length;
      all.checked = count > 0 && count === rows.length;
      all.indeterminate = count > 0 && count < rows.length;
    }
    keepStop();
  }

  /** Moves a row; the focus inside it is not lost. */
  function placeRow(/** @type {HTMLElement} */ tr, /** @type {number} */ index) {
    const focused = tr.contains(document.activeElement) ? /** @type {HTMLElement} */ (document.activeElement) : null;
    body.insertBefore(tr, body.children[index] || null);
    focused?.focus({ preventScroll: true });
  }

  function build(/** @type {string} */ wanted) {
    shape = wanted;
    parts.clear();
    body.replaceChildren();
    all = h("input", {
      type: "checkbox",
      tabindex: -1,
      "aria-label": "Select all runs",
      onchange: () => selectAll(/** @type {any} */ (all).checked),
    });
    header.replaceChildren(
      h("th", { scope: "col", class: "rf-pin rf-check" }, all),
      h("th", { scope: "col", class: "rf-pin rf-eye" }, h("span", { class: "rf-offscreen" }, "Curve")),
      sortHeader("run", "Run", "", false, "rf-pin rf-run"),
      ...columns.map((column) => sortHeader(column.key, column.title, column.hint, column.number, "")),
      h("th", { scope: "col", class: "rf-ops" }, h("span", { class: "rf-offscreen" }, "Operations")),
      h("td"), // takes the width that is left on wide pages
    );
    const widths = [32, 28, nameWidth, ...columns.map((column) => column.width), 160];
    table.querySelector("colgroup")?.remove();
    const cols = widths.map((width) => h("col", { style: `width:${width}px` }));
    cols[cols.length - 1].className = "rf-ops";
    table.prepend(h("colgroup", null, ...cols, h("col")));
    table.style.setProperty("--rf-columns", `${widths.reduce((sum, width) => sum + width, -160)}px`);
    table.setAttribute("aria-colcount", String(widths.length + 1));
  }

  function sortHeader(
    /** @type {string} */ key,
    /** @type {string} */ title,
    /** @type {string} */ hint,
    /** @type {boolean} */ number,
    /** @type {string} */ more,
  ) {
    const sorted = view.wish.sort.key === key;
    const press = h(
      "button",
      { type: "button", tabindex: -1, class: "rf-sort", title: hint || null, onclick: () => sortBy(key) },
      h("span", { class: "rf-cut" }, title),
    );
    return h(
      "th",
      {
        scope: "col",
        class: `${number ? "rf-number " : ""}${more}`,
        "data-key": key,
        "aria-sort": sorted ? (view.wish.sort.down ? "descending" : "ascending") : "none",
      },
      press,
    );
  }

  function sortBy(/** @type {string} */ key) {
    const { sort } = view.wish;
    view.wish.sort = { key, down: sort.key === key ? !sort.down : false };
    for (const th of header.querySelectorAll("[data-key]"))
      th.setAttribute(
        "aria-sort",
        th.dataset.key === key ? (view.wish.sort.down ? "descending" : "ascending") : "none",
      );
    view.changed();
  }

  function makeRow(/** @type {number} */ run) {
    const check = h("input", {
      type: "checkbox",
      tabindex: -1,
      "aria-label": `Select run ${run}`,
      onclick: (/** @type {MouseEvent} */ event) => select(run, event.shiftKey),
    });
    const eye = h(
      "button",
      {
        type: "button",
        tabindex: -1,
        class: "rf-swatch",
        onclick: (/** @type {MouseEvent} */ event) => showHide(run, event.altKey),
      },
      h("i"),
    );
    const name = h("td", { tabindex: -1, class: "rf-pin rf-run" }, h("span", { class: "rf-cut" }));
    const cells = columns.map((column) => makeCell(column));
    const offers = Object.keys(RUN_OPS).filter((kind) => offered(view.state.head, kind));
    const ops = offers.map((kind) => {
      const { label, icon: symbol } = RUN_OPS[/** @type {keyof typeof RUN_OPS} */ (kind)];
      return button(`${label} run ${run}`, symbol, (event) => press(kind, run, event), {
        tabindex: -1,
        "data-op": kind,
      });
    });
    const tr = h(
      "tr",
      {
        "data-run": run,
        onpointerenter: () => view.light(run),
        onpointerleave: () => view.light(null),
        onclick: (/** @type {MouseEvent} */ event) => clicked(run, event),
      },
      h("td", { class: "rf-pin rf-check" }, check),
      h("td", { class: "rf-pin rf-eye" }, eye),
      name,
      ...cells,
      h("td", { class: "rf-ops" }, h("span", null, ...ops)),
      h("td"),
    );
    const made = { tr, check, eye, name, cells, ops };
    parts.set(run, made);
    return made;
  }

  function press(/** @type {string} */ kind, /** @type {number} */ run, /** @type {MouseEvent} */ event) {
    const wanted = kind === "delete" && view.state.rows.get(run)?.status === "deleted" ? "undelete" : kind;
    if (event.altKey)
      void copyText(actLines(view, wanted, [run])).then((done) =>
        view.say(done ? `copied: ${actLines(view, wanted, [run])}` : "this page may not copy"),
      );
    else act(view, wanted, [run]);
  }

  function clicked(/** @type {number} */ run, /** @type {MouseEvent} */ event) {
    const target = /** @type {HTMLElement} */ (event.target);
    if (target.closest("button, input")) return;
    if (event.shiftKey || event.ctrlKey || event.metaKey) {
      view.wish.selected.has(run) ? view.wish.selected.delete(run) : view.wish.selected.add(run);
      select(run, event.shiftKey, view.wish.selected.has(run));
    }
  }

  let anchor = 0;
  /** Selects or deselects a run; with Shift all from the one before to it. */
  function select(/** @type {number} */ run, /** @type {boolean} */ range, on = !view.wish.selected.has(run)) {
    const ids = rows.map((row) => row.id);
    const [from, to] = [ids.indexOf(range ? anchor : run), ids.indexOf(run)].sort((a, b) => a - b);
    for (const id of from < 0 ? [run] : ids.slice(from, to + 1))
      on ? view.wish.selected.add(id) : view.wish.selected.delete(id);
    anchor = run;
    view.changed();
  }

  function selectAll(/** @type {boolean} */ on) {
    for (const row of rows) on ? view.wish.selected.add(row.id) : view.wish.selected.delete(row.id);
    view.changed();
  }

  function showHide(/** @type {number} */ run, /** @type {boolean} */ alone) {
    const { wish } = view;
    if (alone) wish.alone = wish.alone === run ? null : run;
    else if (wish.alone !== null) wish.alone = null;
    else wish.hidden.has(run) ? wish.hidden.delete(run) : wish.hidden.add(run);
    view.changed();
  }

  /** The elements of a row that can have the focus, in order. */
  function stops(/** @type {Element} */ tr) {
    const all = /** @type {HTMLElement[]} */ ([...tr.querySelectorAll("input, button, td[tabindex]")]);
    return all.filter((one) => one.offsetParent !== null); // on narrow pages rows have no buttons
  }

  /** Exactly one element of the grid is a tab stop. */
  function keepStop(/** @type {HTMLElement | null} */ wanted = null) {
    const now = table.querySelector('[tabindex="0"]');
    if (!wanted && now) return;
    now?.setAttribute("tabindex", "-1");
    (wanted || body.querySelector(".rf-run") || header.querySelector(".rf-sort"))?.setAttribute("tabindex", "0");
  }

  table.addEventListener("focusin", (/** @type {FocusEvent} */ event) =>
    keepStop(/** @type {any} */ (event.target).closest("input, button, td[tabindex]")),
  );

  function focus(/** @type {any} */ stop) {
    if (!stop) return;
    keepStop(stop);
    stop.focus();
  }

  /** When the focused row disappears, the focus goes to a neighbour. */
  function focusNear(/** @type {number} */ run) {
    const tr = parts.get(run)?.tr;
    const next = tr?.nextElementSibling || tr?.previousElementSibling;
    if (next) focus(/** @type {any} */ (next.querySelector(".rf-run")));
  }

  /** Moves the focus by rows and stops. */
  function step(/** @type {number} */ down, /** @type {number} */ right) {
    const at = /** @type {HTMLElement} */ (document.activeElement);
    const tr = at.closest("tr");
    if (!tr) return;
    const here = stops(tr);
    const index = here.indexOf(/** @type {HTMLElement} */ (at.closest("input, button, td[tabindex]")));
    if (right) return focus(here[Math.min(here.length - 1, Math.max(0, index + right))]);
    const trs = [header, ...body.children];
    const next = trs[Math.min(trs.length - 1, Math.max(0, trs.indexOf(tr) + down))];
    const cell = /** @type {HTMLTableCellElement} */ (at.closest("td, th")).cellIndex;
    const inside = stops(/** @type {any} */ (at.closest("td, th"))).indexOf(at);
    const there = next.children[cell];
    const choices = stops(there);
    focus(
      choices[Math.min(Math.max(0, inside), choices.length - 1)] ||
        (there.hasAttribute("tabindex") ? /** @type {HTMLElement} */ (there) : stops(next)[0]),
    );
  }

  const focused = () =>
    Number(
      /** @type {HTMLElement | null} */ (document.activeElement?.closest("tr[data-run]"))?.dataset.run ??
        table.querySelector('[tabindex="0"]')?.closest("tr[data-run]")?.getAttribute("data-run") ??
        NaN,
    );
  return {
    element,
    table,
    update,
    step,
    select,
    selectAll,
    showHide,
    focused,
    ids: () => rows.map((row) => row.id),
    focusRun: (/** @type {number} */ run) => focus(parts.get(run)?.name),
  };
}

/** Hyperparameters that are the same for all runs, in a line. */
function constantsText(/** @type {Head} */ head) {
  const pairs = Object.entries(head.constants).map(([name, value]) => `${shortName(name)} ${showValue(value)}`);
  return pairs.length ? `Same for all: ${pairs.join(" · ")}` : "";
}
