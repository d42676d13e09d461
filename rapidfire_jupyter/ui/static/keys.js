// @ts-check
/* The keyboard: arrow keys in toolbars and the grid, and a letter for each op. */

const HELP = [
  ["Arrows, Home, End", "move in the table, also onto buttons"],
  ["Space", "select the run; Ctrl+A all, Esc none"],
  ["Enter", "press a button, sort by a column, else clone the run"],
  ["s  r", "stop, resume"],
  ["c", "clone"],
  ["+  −", "boost more, less"],
  ["Delete", "delete; Ctrl+Z undoes the last op"],
  ["h  i", "hide the curve, show it alone"],
  ["y", "copy what the newest op was as magic"],
  ["/  ?", "filter, this help"],
];
const LETTERS = /** @type {Record<string, string>} */ ({
  s: "stop",
  r: "resume",
  c: "clone",
  "+": "more",
  "=": "more",
  "-": "less",
  Delete: "delete",
  Backspace: "delete",
});

/**
 * Makes the items of a toolbar one tab stop; left and right move between them.
 * @param {HTMLElement} bar
 * @returns {() => void} to be called when items come, go, or hide
 */
function roving(bar) {
  const items = () =>
    /** @type {HTMLElement[]} */ ([...bar.querySelectorAll("button, select, input")]).filter(
      (one) => one.offsetParent !== null || one === document.activeElement,
    );
  function refresh(/** @type {HTMLElement | null} */ wanted = null) {
    const all = items();
    const at = wanted || all.find((one) => one.tabIndex === 0) || all[0];
    for (const one of bar.querySelectorAll("button, select, input"))
      setAttribute(one, "tabindex", one === at ? "0" : "-1");
  }
  bar.addEventListener("focusin", (event) => refresh(/** @type {HTMLElement} */ (event.target)));
  bar.addEventListener("keydown", (event) => {
    const move = /** @type {Record<string, number>} */ ({ ArrowRight: 1, ArrowLeft: -1, Home: -1000, End: 1000 })[
      event.key
    ];
    const text = /** @type {HTMLInputElement} */ (event.target);
    if (!move || event.altKey || event.ctrlKey || event.metaKey || ["text", "search"].includes(text.type)) return;
    const all = items();
    all[Math.min(all.length - 1, Math.max(0, all.indexOf(/** @type {HTMLElement} */ (event.target)) + move))]?.focus();
    event.preventDefault();
  });
  return () => refresh();
}

/** What a key does in the grid; true if it did something. */
function gridKey(
  /** @type {View} */ view,
  /** @type {ReturnType<typeof createTable>} */ table,
  /** @type {KeyboardEvent} */ event,
) {
  const target = /** @type {HTMLElement} */ (event.target);
  const run = table.focused();
  const control = event.ctrlKey || event.metaKey;
  const moves = /** @type {Record<string, [number, number]>} */ ({
    ArrowDown: [1, 0],
    ArrowUp: [-1, 0],
    ArrowRight: [0, 1],
    ArrowLeft: [0, -1],
    PageDown: [10, 0],
    PageUp: [-10, 0],
    Home: [control ? -10_000 : 0, control ? 0 : -1000],
    End: [control ? 10_000 : 0, control ? 0 : 1000],
  });
  if (moves[event.key]) return (table.step(...moves[event.key]), true);
  if (control && event.key.toLowerCase() === "a") return (table.selectAll(true), true);
  if (control || event.altKey) return false;
  if (event.key === "Escape") return view.wish.selected.size ? (table.selectAll(false), true) : false;
  if (Number.isNaN(run)) return false;
  const onButton = target.matches("button, input");
  if (event.key === " " && !onButton) return (table.select(run, event.shiftKey), true);
  if (event.key === "Enter" && target.matches("input")) return (table.select(run, false), true);
  if (event.key === "Enter" && !onButton) return (view.openClone(run), true);
  if (event.key === "h") return (table.showHide(run, false), true);
  if (event.key === "i") return (table.showHide(run, true), true);
  const kind = LETTERS[event.key];
  if (!kind) return false;
  const runs = view.wish.selected.has(run) ? table.ids().filter((id) => view.wish.selected.has(id)) : [run];
  return (act(view, kind, runs), true);
}

/** Keys that work anywhere in the panel but in text fields. */
function panelKey(
  /** @type {View} */ view,
  /** @type {KeyboardEvent} */ event,
  /** @type {HTMLInputElement} */ filter,
) {
  const target = /** @type {HTMLInputElement} */ (event.target);
  const typing =
    target.matches("textarea, select") ||
    (target.matches("input") && !["checkbox", "radio", "range"].includes(target.type));
  if (typing) return false;
  if ((event.ctrlKey || event.metaKey) && !event.shiftKey && event.key.toLowerCase() === "z") return (undo(view), true);
  if (event.ctrlKey || event.metaKey || event.altKey) return false;
  if (event.key === "/") return (filter.focus(), true);
  if (event.key === "?") {
    /** @type {any} */ (view.root.querySelector("[aria-controls^=rf-help]")).click();
    return true;
  }
  if (event.key === "y") {
    const last = view.link.orders[view.link.orders.length - 1];
    if (last)
      void copyText(last.line || magicLine(last.kind, last.run, last.args)).then((done) =>
        view.say(done ? "copied" : "this page may not copy"),
      );
    return Boolean(last);
  }
  return false;
}
