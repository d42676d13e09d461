// @ts-check
/* One run as a row of the table: its cells, and what they show. Only what changed is set. */

/** @typedef {{tr: HTMLTableRowElement, check: HTMLInputElement, eye: HTMLButtonElement, name: HTMLElement, cells: HTMLElement[], ops: HTMLButtonElement[]}} RowParts */

/** An empty cell of a column. */
function makeCell(/** @type {Column} */ column) {
  if (column.key === "progress")
    return h(
      "td",
      { tabindex: -1 },
      h("div", { class: "rf-bar", "aria-hidden": "true" }, h("i")),
      h("span", { class: "rf-figure" }),
    );
  if (column.key === "status")
    return h(
      "td",
      { tabindex: -1 },
      h("i", { class: "rf-dot" }),
      h("span"),
      h("span", { class: "rf-chip" }),
      h("span", { class: "rf-mark" }),
    );
  return h("td", { tabindex: -1, class: column.number ? "rf-number" : "" }, h("span", { class: "rf-cut" }));
}

/** Shows a run in its row. */
function fillRow(
  /** @type {View} */ view,
  /** @type {RowParts} */ part,
  /** @type {Row} */ row,
  /** @type {Column[]} */ columns,
) {
  const { wish, state } = view;
  const selected = wish.selected.has(row.id);
  part.check.checked = selected;
  setAttribute(part.tr, "aria-selected", String(selected));
  part.tr.classList.toggle("rf-deleted", row.status === "deleted");
  const shown = isShown(state, wish, row.id);
  setAttribute(part.eye, "aria-pressed", String(shown));
  setAttribute(part.eye, "aria-label", `Curve of run ${row.id}`);
  part.eye.title = "Show or hide the curve (h); alone with Alt or i";
  part.eye.classList.toggle("rf-dashed", row.warm);
  const color = slotColor(view.theme, view.slots.get(row.id) ?? -1);
  if (part.eye.style.color !== color) part.eye.style.color = color;
  const title = runTitle(row);
  setText(/** @type {Element} */ (part.name.firstChild), tableTitle(row, state.head?.varying || []));
  part.name.title =
    row.parent === null
      ? title
      : `${title}\n${row.warm ? "warm" : "cold"} clone of run ${row.parent}: ${Object.entries(row.changes)
          .map(([name, value]) => `${shortName(name)}=${showValue(value)}`)
          .join(", ")}`;
  columns.forEach((column, index) => fillCell(view, part.cells[index], column, row));
  for (const op of part.ops) fillOp(view, op, row);
}

function fillCell(
  /** @type {View} */ view,
  /** @type {HTMLElement} */ cell,
  /** @type {Column} */ column,
  /** @type {Row} */ row,
) {
  if (column.key === "progress") {
    const [bar, text] = /** @type {any} */ (cell.children);
    setBar(bar, row.progress);
    setText(text, column.text(row));
    cell.title = `step ${row.step}${row.total_steps ? ` of ${row.total_steps}` : ""}, ${plural(row.chunk, "chunk")} done${row.checkpoint_step === null ? "" : `, checkpoint at step ${row.checkpoint_step}`}`;
    return;
  }
  if (column.key === "status") return fillStatus(view, cell, row);
  const best = column.key.startsWith("m:") && view.state.head?.best[column.key.slice(2)] === row.id;
  const text = column.text(row);
  setText(/** @type {Element} */ (cell.firstChild), best ? `★ ${text}` : text);
  cell.classList.toggle("rf-best", best);
  if (!column.number || best) cell.title = best ? `best ${column.title}: ${text}` : text;
  else cell.removeAttribute("title");
}

function fillStatus(/** @type {View} */ view, /** @type {HTMLElement} */ cell, /** @type {Row} */ row) {
  const [dot, word, chip, mark] = /** @type {any} */ (cell.children);
  setAttribute(dot, "data-status", row.status);
  setText(mark, (row.why ? "⚖" : "") + (row.inexact.length ? "≈" : ""));
  const order = [...view.link.orders]
    .reverse()
    .find((/** @type {Sent} */ one) => one.run === row.id && (!one.settled || performance.now() - one.settled < 4000));
  setText(word, order ? "" : row.status);
  setText(chip, order ? chipText(order) : "");
  chip.dataset.status = order?.status || "";
  cell.title =
    [
      row.error,
      row.why && `stopped by a policy: ${row.why}`,
      order?.status === "refused" ? order.reason : "",
      ...row.inexact.map((reason) => `may differ from plain TRL: ${reason}`),
    ]
      .filter(Boolean)
      .join("\n") || row.status;
}

function chipText(/** @type {Sent} */ order) {
  if (order.status === "sent") return order.late ? "not confirmed" : `${order.kind}…`;
  return order.status === "pending"
    ? `${order.kind} pending`
    : order.status === "already"
      ? "was so already"
      : `${order.kind} ${order.status}`;
}

function fillOp(/** @type {View} */ view, /** @type {HTMLButtonElement} */ op, /** @type {Row} */ row) {
  const kind = /** @type {keyof typeof RUN_OPS} */ (op.dataset.op);
  const back = kind === "delete" && row.status === "deleted";
  const reason = refusal(view.state.head, row, back ? "undelete" : kind);
  setAttribute(op, "aria-disabled", reason ? "true" : null);
  const label = back
    ? "Bring back"
    : kind === "resume" && row.status === "completed"
      ? "Train longer"
      : RUN_OPS[kind].label;
  setAttribute(op, "aria-label", `${label} run ${row.id}`);
  const title = reason ? `${label}: ${reason}` : `${label} (Alt copies the %rapidfire line)`;
  if (op.title !== title) op.title = title;
  if (kind === "delete" && op.dataset.back !== String(back)) {
    op.dataset.back = String(back);
    op.replaceChildren(icon(back ? "undo" : "trash"));
  }
}
