// @ts-check
/* One row under review: its texts, keep and drop, a note. All texts go in as text nodes. */

const REVIEW_KEYS = /** @type {Record<string, string>} */ ({
  k: "keep",
  d: "drop",
  u: "undecide",
  ArrowRight: "next",
  ArrowLeft: "back",
});
const VERDICTS = /** @type {Record<string, string>} */ ({ keep: "kept", drop: "dropped", "": "undecided" });

/** Opens a view of the model; gives what closes it. */
function openReview(/** @type {any} */ model, /** @type {HTMLElement} */ el) {
  const root = h("section", {
    class: "rf-panel rf-review",
    "data-lm-suppress-shortcuts": "true",
    "aria-label": "Review of rows",
    tabindex: 0,
    onkeydown: onKey,
  });
  const progress = h("strong", { "aria-live": "polite" });
  const bar = h("i");
  const where = h("span", { class: "rf-faint" });
  const verdict = h("span", { class: "rf-verdict" });
  const body = h("div", { class: "rf-rowtext", tabindex: 0, role: "region", "aria-label": "The row" });
  const note = h("input", {
    ...{ type: "text", class: "rf-grow", "aria-label": "Note", placeholder: "Note (N)", maxlength: 2000 },
    onchange: () => say("note"),
    onkeydown: onNoteKey,
  });
  const error = h("p", { class: "rf-error", role: "alert" });
  const saved = h("span", { class: "rf-note rf-cut" });
  const keep = button("Keep", "", () => say("keep"), { text: "Keep", title: "K" });
  const drop = button("Drop", "", () => say("drop"), { text: "Drop", title: "D" });
  const undo = button("Undecide", "", () => say("undecide"), { text: "Undecide", title: "U" });
  const back = button("Previous", "", () => say("back"), { text: "‹ Previous", title: "Left arrow" });
  const next = button("Next", "", () => say("next"), { text: "Next ›", title: "Right arrow" });
  root.append(
    h("div", { class: "rf-top rf-head" }, progress, h("div", { class: "rf-bar" }, bar), where, verdict),
    body,
    h("div", { class: "rf-acts" }, keep, drop, undo, note, back, next),
    error,
    h(
      "div",
      { class: "rf-said" },
      saved,
      h("span", { class: "rf-note" }, "K keep · D drop · U undecide · N note · ← →"),
    ),
  );
  el.append(root);
  let key = "";

  function say(/** @type {string} */ what) {
    model.send({ do: what, key, note: note.value });
  }

  function onKey(/** @type {KeyboardEvent} */ event) {
    if (event.target === note || event.ctrlKey || event.metaKey || event.altKey) return;
    const what = REVIEW_KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (event.key.toLowerCase() === "n") note.focus();
    else if (what && !event.repeat) say(what);
    else if (!what) return;
    event.preventDefault();
    event.stopPropagation();
  }

  function onNoteKey(/** @type {KeyboardEvent} */ event) {
    if (event.key === "Escape") note.value = model.get("_shown").note;
    if (event.key === "Enter" || event.key === "Escape") root.focus();
    event.stopPropagation();
  }

  function draw() {
    const shown = model.get("_shown");
    setText(progress, shown.progress);
    bar.style.width = `${(100 * shown.done) / shown.of}%`;
    setText(
      where,
      `${shown.place} of ${shown.of} · row ${shown.row.toLocaleString("en")} of ${shown.rows.toLocaleString("en")}`,
    );
    setText(verdict, VERDICTS[shown.verdict]);
    verdict.dataset.verdict = shown.verdict;
    setAttribute(keep, "aria-pressed", String(shown.verdict === "keep"));
    setAttribute(drop, "aria-pressed", String(shown.verdict === "drop"));
    setAttribute(undo, "aria-disabled", shown.verdict ? null : "true");
    setAttribute(back, "aria-disabled", shown.place > 1 ? null : "true");
    setAttribute(next, "aria-disabled", shown.place < shown.of ? null : "true");
    if (key !== shown.key) {
      body.replaceChildren(...shown.pieces.map(reviewPiece));
      body.scrollTop = 0;
    }
    if (key !== shown.key || document.activeElement !== note) note.value = shown.note;
    key = shown.key;
    setText(error, shown.error || "");
    setText(saved, shown.done === shown.of ? `all decided · ${shown.file}` : shown.file);
    saved.title = shown.file;
  }

  const setTheme = () => (root.dataset.dark = String(isDark(el)));
  const unwatch = watchTheme(setTheme);
  setTheme();
  draw();
  model.on("change:_shown", draw);
  return () => {
    model.off("change:_shown", draw);
    unwatch();
  };
}

/** One part of a row: who says it, and what. */
function reviewPiece(/** @type {[string, string, number, boolean]} */ [name, text, more, column]) {
  return h(
    "div",
    { class: column ? "rf-piece rf-column" : "rf-piece", "data-who": name.split(" ")[0] },
    h("div", { class: "rf-who" }, name),
    h("div", { class: "rf-what", dir: "auto" }, text || h("span", { class: "rf-faint" }, "(empty)")),
    more > 0 && h("div", { class: "rf-note" }, `${more.toLocaleString("en")} more letters`),
  );
}

export default () => ({
  render(/** @type {{model: any, el: HTMLElement}} */ { model, el }) {
    return openReview(model, el);
  },
});
