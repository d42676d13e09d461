// @ts-check
/* The panel's first lines: name, state, progress, time, device and memory; and what is said aloud about them. */

const STATE_WORDS = /** @type {Record<string, string>} */ ({
  empty: "no runs yet",
  running: "training",
  paused: "paused",
  halted: "halted",
  idle: "idle",
  ended: "ended",
});
const ALOUD_MS = 10_000;

/** The runs in words, the busiest first: "3 running, 2 queued". */
function countsWords(/** @type {Record<string, number>} */ counts) {
  const order = ["running", "queued", "paused", "stopped", "completed", "failed"];
  return order
    .filter((status) => counts[status])
    .map((status) => `${counts[status]} ${status}`)
    .join(" · ");
}

/** What a screen reader hears now and then. */
function summary(/** @type {Head} */ head) {
  const left = head.eta_s === null ? "" : `, about ${showDuration(head.eta_s)} left`;
  const alerts = head.alerts ? `, ${plural(head.alerts, "alert")}` : "";
  return `${head.name}: ${STATE_WORDS[head.state] || head.state}, ${showShare(head.progress)} done${left}. ${countsWords(head.counts).replaceAll(" · ", ", ")}${alerts}.`;
}

/** Why things are not live, as a line under the head; "" if they are. */
function banner(/** @type {View} */ view) {
  const { head } = view.state;
  if (view.link.silent)
    return head
      ? "The kernel does not answer: it may be gone, or busy with a cell. This is the last that was known."
      : "The kernel does not answer. Run the cell again to see the experiment.";
  if (!head) return "";
  if (head.state === "halted") return `Halted: ${head.reason || "see the events"}`;
  if (head.state === "ended") return "The experiment has ended. Results stay; to train on, run its cells again.";
  if (head.read_only && head.state !== "empty")
    return `Read-only: ${head.reason || "another kernel owns this experiment"}`;
  return "";
}

/** The head of a view: texts are updated in place. */
function createHead(/** @type {View} */ view, /** @type {HTMLElement} */ menu) {
  const name = h("h2", { class: "rf-name" }, "…");
  const state = h("span", { class: "rf-state" });
  const bar = h(
    "div",
    {
      class: "rf-bar",
      role: "progressbar",
      "aria-label": "Progress of the experiment",
      "aria-valuemin": 0,
      "aria-valuemax": 100,
    },
    h("i"),
  );
  const share = h("span", { class: "rf-figure" });
  const time = h("span", { class: "rf-figure" });
  const counts = h("span", { class: "rf-faint rf-cut rf-counts" });
  const device = h("span", { class: "rf-faint rf-cut" });
  const memory = h(
    "div",
    {
      class: "rf-bar rf-memory",
      role: "meter",
      "aria-label": "Memory",
      "aria-valuemin": 0,
      "aria-valuemax": 100,
      "aria-valuenow": 0,
    },
    h("i"),
  );
  const memoryText = h("span", { class: "rf-figure rf-faint" });
  const memoryBox = h("span", { class: "rf-pair", hidden: true }, memory, memoryText);
  const pause = button("Pause all", "pause", () => toggle(), { text: "Pause all" });
  const alerts = button("Alerts", "bell", () => ((view.wish.alerts = true), view.openTab("events")), {
    text: "0",
    class: "rf-button rf-alerts",
    hidden: true,
  });
  const note = h("div", { class: "rf-banner", hidden: true });
  const aloud = h("div", { class: "rf-offscreen", "aria-live": "polite" });
  let [spokenAt, spoken, pauseKind] = [0, "", "pause_all"];

  /** Why everything cannot be paused, or go on; "" if it can. */
  function idle(/** @type {Head} */ head) {
    if (pauseKind === "resume_all" || WORKING.some((status) => head.counts[status])) return locked(head);
    return locked(head) || "no run is training or waiting to";
  }

  function toggle() {
    const reason = view.state.head ? idle(view.state.head) : locked(null);
    if (reason) view.say(`${pauseKind === "pause_all" ? "Pause" : "Resume"} all: not possible, ${reason}`);
    else view.link.order(view.id, pauseKind, null);
  }

  function update() {
    const { head } = view.state;
    setText(note, banner(view));
    note.hidden = !note.textContent;
    if (!head) return;
    setText(name, head.name);
    name.title = head.name;
    setText(state, STATE_WORDS[head.state] || head.state);
    state.dataset.state = head.state;
    setBar(bar, head.progress);
    setText(share, showShare(head.progress));
    const left = head.eta_s === null || head.state === "ended" ? "" : ` · ETA ${showDuration(head.eta_s)}`;
    setText(time, `${showDuration(head.elapsed_s)}${left}`);
    setText(counts, countsWords(head.counts));
    counts.title = counts.textContent;
    setText(device, head.device);
    device.title = head.device;
    const { used_bytes: used, total_bytes: total } = head.memory;
    memoryBox.hidden = used === null || used === undefined;
    memory.hidden = !total;
    if (used && total) setBar(memory, used / total);
    setText(memoryText, total ? `${showBytes(used)} / ${showBytes(total)}` : showBytes(used));
    pauseKind = head.state === "paused" ? "resume_all" : "pause_all";
    const text = pauseKind === "pause_all" ? "Pause all" : "Resume all";
    if (pause.lastChild.textContent !== text)
      pause.replaceChildren(icon(pauseKind === "pause_all" ? "pause" : "play"), text);
    const reason = idle(head);
    setAttribute(pause, "aria-disabled", reason ? "true" : null);
    pause.title = reason;
    alerts.hidden = !head.alerts;
    setText(alerts.lastChild, String(head.alerts));
    setAttribute(alerts, "aria-label", `${plural(head.alerts, "alert")}: show events`);
    speak(head);
  }

  function speak(/** @type {Head} */ head) {
    const now = performance.now();
    const text = summary(head);
    if (text === spoken || (spokenAt && now - spokenAt < ALOUD_MS)) return;
    [spokenAt, spoken] = [now, text];
    setText(aloud, text);
  }

  const row = h(
    "div",
    { class: "rf-head" },
    name,
    state,
    h("span", { class: "rf-pair" }, bar, share),
    time,
    counts,
    h("span", { class: "rf-pair rf-right" }, device, memoryBox, alerts, menu, pause),
  );
  return { row, note, aloud, update };
}

/** Sets a bar to a share from 0 to 1. */
function setBar(/** @type {HTMLElement} */ bar, /** @type {number} */ share) {
  const percent = String(Math.round(Math.min(1, Math.max(0, share || 0)) * 1000) / 10);
  if (bar.getAttribute("aria-valuenow") === percent) return;
  bar.setAttribute("aria-valuenow", percent);
  /** @type {HTMLElement} */ (bar.firstChild).style.width = `${percent}%`;
}
