// @ts-check
/* Ops as the panel offers them: which are possible now, how they are said as magic, how they are undone. Pure but for `act` and `undo`. */

const UNDO_MS = 30_000;
const WORKING = ["queued", "running", "paused"];

/** What a run's buttons are called; the order is that of the buttons. */
const RUN_OPS = /** @type {const} */ ({
  stop: { label: "Stop", icon: "stop" },
  resume: { label: "Resume", icon: "play" },
  clone: { label: "Clone", icon: "clone" },
  mix: { label: "Mix", icon: "mix" },
  less: { label: "Boost less", icon: "minus" },
  more: { label: "Boost more", icon: "plus" },
  delete: { label: "Delete", icon: "trash" },
});

/** Whether an op is one for this experiment at all: only tasks of a mixture can be weighed. */
function offered(/** @type {Head | null} */ head, /** @type {string} */ kind) {
  return kind !== "mix" || tasksOf(head).length > 0;
}

/** Why no op at all is possible; "" if they are. */
function locked(/** @type {Head | null} */ head) {
  if (!head) return "waiting for the kernel";
  if (head.state === "ended") return "the experiment has ended; run its cells again to go on";
  if (head.state === "empty") return "there are no runs yet";
  if (head.read_only) return head.reason || "read-only: another kernel owns this experiment";
  if (head.state === "halted") return head.reason || "the experiment is halted";
  return head.can.includes("ops") ? "" : "this kernel only shows the experiment";
}

/** Why an op on a run is not possible now; "" if it is. The kernel has the last word. */
function refusal(/** @type {Head | null} */ head, /** @type {Row} */ row, /** @type {string} */ kind) {
  const all = locked(head);
  if (all) return all;
  if (row.status === "deleted") return kind === "undelete" ? "" : "the run is deleted";
  if (kind === "stop") return WORKING.includes(row.status) ? "" : `the run is ${row.status}`;
  if (kind === "resume") {
    if (["stopped", "failed", "completed"].includes(row.status)) return "";
    return row.status === "paused" ? "paused with the experiment: use Resume all" : `the run is ${row.status}`;
  }
  if (kind === "less" || kind === "more" || kind === "boost" || kind === "mix")
    return [...WORKING, "stopped"].includes(row.status) ? "" : `the run is ${row.status}`;
  return "";
}

/** The weight after one press of boost. */
function boosted(/** @type {number} */ weight, /** @type {boolean} */ more) {
  if (more) return weight < 1 ? Math.min(1, weight * 2) : Math.min(64, weight + 1);
  return weight > 1 ? Math.max(1, weight - 1) : Math.max(0.125, weight / 2);
}

/** An op as a line of magic. */
function magicLine(
  /** @type {string} */ kind,
  /** @type {number | null} */ run,
  /** @type {Record<string, Json>} */ args,
) {
  if (kind === "pause_all") return "%rapidfire pause";
  if (kind === "resume_all") return "%rapidfire resume-all";
  if (kind === "boost") return `%rapidfire boost ${run} ${args.weight}`;
  const parts = { clone: args.changes || {}, mix: args.weights || {}, policy: args.settings || {} };
  const pairs = Object.entries(parts[/** @type {keyof typeof parts} */ (kind)] || args);
  const words = pairs.map(([key, value]) => `${key}=${typeof value === "string" ? value : JSON.stringify(value)}`);
  const what = kind === "policy" ? [args.name, args.mode] : [run];
  return ["%rapidfire", kind, ...what, ...words, kind === "clone" && args.warm ? "--warm" : ""]
    .filter((word) => word !== "")
    .join(" ");
}

/** An op in words: "Stop run 2". */
function opWords(/** @type {Sent} */ sent) {
  const words = {
    stop: "Stop",
    resume: "Resume",
    clone: "Clone",
    delete: "Delete",
    undelete: "Bring back",
    boost: "Boost",
    mix: "Mix anew",
    pause_all: "Pause all",
    resume_all: "Resume all",
    policy: `Policy ${sent.args.name} ${sent.args.mode}`,
  };
  const verb = words[/** @type {keyof typeof words} */ (sent.kind)] || sent.kind;
  const tail =
    sent.kind === "boost"
      ? ` to weight ${showNumber(sent.args.weight)}`
      : sent.kind === "clone" && sent.made !== null
        ? ` as run ${sent.made}`
        : "";
  return sent.run === null ? verb : `${verb} run ${sent.run}${tail}`;
}

/** How far an op has come, in words. */
function opState(/** @type {Sent} */ sent) {
  if (sent.status === "sent") return sent.late ? "sent, not confirmed" : "sent";
  return sent.status === "already" ? "it was so already" : sent.status;
}

/** The op that undoes one, or null if there is none (any more). */
function opposite(/** @type {Sent} */ sent, /** @type {number} */ now) {
  if (sent.status !== "applied" || sent.undone) return null;
  if (sent.kind === "delete")
    return now - sent.settled < UNDO_MS ? { kind: "undelete", run: sent.run, args: {} } : null;
  if (sent.kind === "clone") return sent.made === null ? null : { kind: "delete", run: sent.made, args: {} };
  if (sent.kind === "boost")
    return sent.before === null ? null : { kind: "boost", run: sent.run, args: { weight: sent.before } };
  if (sent.kind === "policy")
    return sent.before === null ? null : { kind: "policy", run: null, args: { name: sent.args.name, ...sent.before } };
  if (sent.kind === "mix")
    return sent.before === null ? null : { kind: "mix", run: sent.run, args: { weights: sent.before } };
  /** @type {Record<string, string>} */
  const pairs = { stop: "resume", pause_all: "resume_all", resume_all: "pause_all", undelete: "delete" };
  if (sent.kind === "resume" && !Object.keys(sent.args).length) return { kind: "stop", run: sent.run, args: {} };
  return pairs[sent.kind] ? { kind: pairs[sent.kind], run: sent.run, args: {} } : null;
}

/**
 * Does what a button or key asks of some runs: sends one order each, or opens a form.
 * @param {View} view @param {string} kind of `RUN_OPS`, or an op's @param {number[]} runs
 * @returns {Sent[]}
 */
function act(view, kind, runs) {
  const rows = runs.map((run) => view.state.rows.get(run)).filter((row) => row && !refusal(view.state.head, row, kind));
  if (!rows.length) {
    const row = view.state.rows.get(runs[0]);
    if (row)
      view.say(
        `${RUN_OPS[/** @type {keyof typeof RUN_OPS} */ (kind)]?.label || kind}: not possible, ${refusal(view.state.head, row, kind)}`,
      );
    return [];
  }
  if (kind === "clone") return (view.openClone(/** @type {Row} */ (rows[0]).id), []);
  if (kind === "mix") return (view.openMix(rows.map((row) => /** @type {Row} */ (row).id)), []);
  if (kind === "resume" && rows.every((row) => row?.status === "completed"))
    return (view.openLonger(rows.map((row) => /** @type {Row} */ (row).id)), []);
  const batch = randomId();
  return rows.map((found) => {
    const row = /** @type {Row} */ (found);
    const boost = kind === "less" || kind === "more";
    const args = boost ? { weight: boosted(row.weight, kind === "more") } : {};
    return Object.assign(view.link.order(view.id, boost ? "boost" : kind, row.id, args, boost ? row.weight : null), {
      batch,
    });
  });
}

/** The same as lines of magic, without doing it. */
function actLines(/** @type {View} */ view, /** @type {string} */ kind, /** @type {number[]} */ runs) {
  return runs
    .map((run) => /** @type {Row} */ (view.state.rows.get(run)))
    .filter(Boolean)
    .map((row) => {
      const boost = kind === "less" || kind === "more";
      if (kind === "mix") return magicLine(kind, row.id, { weights: sharesOf(view.state.head, row) });
      return magicLine(boost ? "boost" : kind, row.id, boost ? { weight: boosted(row.weight, kind === "more") } : {});
    })
    .join("\n");
}

/** Undoes orders, or the newest that can be undone. */
function undo(/** @type {View} */ view, /** @type {Sent[] | null} */ orders = null) {
  const now = performance.now();
  const newest = [...view.link.orders].reverse().find((/** @type {Sent} */ one) => opposite(one, now));
  const wanted =
    orders ||
    view.link.orders.filter(
      (/** @type {Sent} */ one) => one === newest || (newest?.batch && one.batch === newest.batch),
    );
  const batch = randomId();
  let count = 0;
  for (const one of wanted) {
    const back = opposite(one, now);
    if (!back) continue;
    one.undone = true;
    Object.assign(view.link.order(view.id, back.kind, back.run, back.args), { batch, undone: true });
    count += 1;
  }
  if (!count) view.say("nothing to undo");
  return count;
}
