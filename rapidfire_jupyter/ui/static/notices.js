// @ts-check
/* What became of ops: a short list under the table, with the line of magic to copy, and Undo. */

const SHOWN_MS = 6_000;
const REFUSED_MS = 60_000;
const COST_S = 60; // what is older was told before

/** Orders that were given together, newest first, as long as they are worth showing. */
function batches(/** @type {Sent[]} */ orders, /** @type {Set<string>} */ dismissed, /** @type {number} */ now) {
  /** @type {Map<string, Sent[]>} */
  const groups = new Map();
  for (const one of orders) {
    const key = one.batch || one.id;
    groups.set(key, [...(groups.get(key) || []), one]);
  }
  return [...groups]
    .reverse()
    .filter(([key, group]) => !dismissed.has(key) && group.some((one) => now - (one.settled || now) < keptMs(one)))
    .map(([key, group]) => ({ key, group }));
}

function keptMs(/** @type {Sent} */ sent) {
  if (sent.status === "refused") return REFUSED_MS;
  return sent.kind === "delete" && sent.status === "applied" && !sent.undone ? UNDO_MS : SHOWN_MS;
}

/** A batch in words: its op, how far it is, and why it was refused. */
function batchWords(/** @type {Sent[]} */ group) {
  if (group.length === 1) {
    const [one] = group;
    return { text: opWords(one), state: opState(one), reason: one.reason, bad: one.status === "refused" };
  }
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const one of group) counts.set(opState(one), (counts.get(opState(one)) || 0) + 1);
  const refused = group.filter((one) => one.status === "refused");
  return {
    text: `${opWords({ ...group[0], run: null })} ${plural(group.length, "run")}`,
    state: [...counts].map(([state, count]) => (counts.size === 1 ? state : `${count} ${state}`)).join(", "),
    reason: refused.length ? refused[0].reason : "",
    bad: refused.length > 0,
  };
}

/** The list of notices of a view. */
function createNotices(/** @type {View} */ view) {
  const list = h("ul", { class: "rf-notices", "aria-label": "What became of operations" });
  const alarm = h("div", { class: "rf-offscreen", role: "alert" });
  const dismissed = /** @type {Set<string>} */ (new Set());
  /** @type {{key: string, text: string, until: number} | null} */
  let said = null;
  let [drawn, told, priced] = ["", "", -1];

  /** What the experiment will cost, or has cost, is told when it becomes known, and not again after a reload of the page. */
  function tellCost(/** @type {number} */ now) {
    const price = view.state.entries.filter((one) => one.kind === "cost").at(-1);
    if (!price || price.seq === priced) return;
    priced = price.seq;
    const age = Date.now() / 1000 - /** @type {Head} */ ((view.state.head).first_time + price.time);
    if (age < COST_S) said = { key: "cost", text: `Cost: ${price.text}`, until: now + REFUSED_MS };
  }

  function update() {
    const now = performance.now();
    tellCost(now);
    if (said && now > said.until) said = null;
    const shown = batches(view.link.orders, dismissed, now).slice(0, 4);
    const items = shown.map(({ key, group }) => {
      const back = group.filter((one) => opposite(one, now));
      const left = back.length && back[0].kind === "delete" ? Math.ceil((UNDO_MS - (now - back[0].settled)) / 1000) : 0;
      return {
        key,
        group,
        ...batchWords(group),
        back,
        left,
        lines: group.map((one) => one.line || magicLine(one.kind, one.run, one.args)).join("\n"),
      };
    });
    const wanted = JSON.stringify([
      said,
      items.map((one) => [one.key, one.text, one.state, one.reason, one.left, one.back.length]),
    ]);
    if (wanted === drawn) return;
    drawn = wanted;
    const focused = list.contains(document.activeElement)
      ? /** @type {HTMLElement} */ (document.activeElement).dataset.key
      : null;
    list.replaceChildren(
      ...(said ? [h("li", { class: "rf-notice" }, h("span", { class: "rf-grow" }, said.text))] : []),
      ...items.map(item),
    );
    if (focused) list.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
    const bad = items.find((one) => one.bad);
    const alarmed = bad ? `${bad.text} refused: ${bad.reason}` : said ? said.text : "";
    if (alarmed !== told) setText(alarm, (told = alarmed));
  }

  function item(/** @type {any} */ one) {
    return h(
      "li",
      { class: `rf-notice${one.bad ? " rf-bad" : ""}` },
      h("span", { class: "rf-grow" }, h("strong", null, one.text), ` ${one.state}`, one.reason && `: ${one.reason}`),
      h("code", { title: one.lines }, one.lines.split("\n")[0], one.group.length > 1 && " …"),
      button(
        "Copy as magic",
        "copy",
        () => void copyText(one.lines).then((done) => view.say(done ? "copied" : "this page may not copy")),
        { "data-key": `copy ${one.key}` },
      ),
      one.back.length > 0 &&
        button("Undo", "undo", () => undo(view, one.back), {
          text: one.left ? `Undo (${one.left} s)` : "Undo",
          "data-key": `undo ${one.key}`,
          "aria-label": `Undo: ${one.text}`,
        }),
      button("Dismiss", "close", () => (dismissed.add(one.key), update()), { "data-key": `close ${one.key}` }),
    );
  }

  return {
    element: h("div", null, list, alarm),
    update,
    say(/** @type {string} */ text) {
      said = { key: randomId(), text, until: performance.now() + SHOWN_MS };
      update();
    },
  };
}
