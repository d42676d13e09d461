// @ts-check
/* Taking things along: the log, the figure, a report, the best run's adapter. */

const EXPORTS = /** @type {[string, string, boolean][]} */ ([
  ["csv", "Log as CSV", true],
  ["parquet", "Log as Parquet", true],
  ["png", "Figure as PNG", false],
  ["svg", "Figure as SVG", false],
  ["html", "Report as HTML", true],
  ["adapter", "Best run's adapter", true],
]);

/** The button with its list of formats. */
function createExport(/** @type {View} */ view) {
  const list = h(
    "div",
    { class: "rf-menu", hidden: true, id: `rf-export-${view.id}` },
    EXPORTS.map(([format, text]) => button(text, "", () => void take(format), { text, class: "rf-button rf-item" })),
  );
  const toggle = button("Export", "save", () => open(list.hidden), {
    text: "Export",
    "aria-expanded": "false",
    "aria-controls": list.id,
  });
  const element = h(
    "div",
    {
      class: "rf-export",
      onkeydown: (/** @type {KeyboardEvent} */ event) =>
        event.key === "Escape" && !list.hidden && (open(false), toggle.focus(), event.stopPropagation()),
      onfocusout: (/** @type {FocusEvent} */ event) =>
        !element.contains(/** @type {Node | null} */ (event.relatedTarget)) && event.relatedTarget && open(false),
    },
    toggle,
    list,
  );

  function open(/** @type {boolean} */ wanted) {
    list.hidden = !wanted;
    toggle.setAttribute("aria-expanded", String(wanted));
  }

  async function take(/** @type {string} */ format) {
    open(false);
    toggle.focus();
    const name = (view.state.head?.name || "experiment").replace(/[^\w.-]+/g, "_");
    try {
      if (format === "svg")
        return saveFile(
          `${name}-${view.wish.metric}.svg`,
          new Blob([view.picture().svg(900, 360)], { type: "image/svg+xml" }),
        );
      if (format === "png") return saveFile(`${name}-${view.wish.metric}.png`, await view.picture().png(900, 360));
      const having = [...view.state.rows.values()].filter((row) => view.wish.metric in row.last);
      const best = view.state.head?.best[view.wish.metric] ?? (having.length === 1 ? having[0].id : undefined);
      if (format === "adapter" && best === undefined)
        return view.say(`${view.wish.metric || "no metric"} tells of no best run; choose another one`);
      view.say("exporting…");
      const { data, buffer } = await view.ask("export", format === "adapter" ? { format, run: best } : { format });
      if (buffer && data.file) saveFile(data.file, new Blob([/** @type {any} */ (buffer)], { type: data.mime }));
      const where = data.path || data.file;
      if (format === "adapter") await copyText(where);
      view.say(format === "adapter" ? `adapter of run ${best}: ${where} (copied)` : `saved as ${where}`);
    } catch (error) {
      view.say(`export failed: ${/** @type {Error} */ (error).message}`);
    }
  }
  return { element };
}
