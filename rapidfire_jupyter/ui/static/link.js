// @ts-check
/* The connection to the kernel: one per widget model, shared by its views. See wire.py for what is said. */

// Colab shows only what a callback sends: there a view asks often, and the pong tells it to fetch.
const PING_MS = /** @type {any} */ (globalThis).google?.colab ? 5_000 : 20_000;
const SILENT_MS = 10_000; // after this long without any answer the kernel counts as silent
const LATE_MS = 2_000; // an order without an ack after this long is "not confirmed"
const RETRY_MS = 5_000;
const ANSWER_MS = 60_000;
const MOST_ORDERS = 200;

/**
 * Makes the link of a model. It listens only while a view is open.
 * @param {Model} model
 */
function createLink(model) {
  const state = emptyState();
  /** @type {Map<string, (what: string) => void>} */
  const views = new Map();
  /** @type {Map<string, {resolve: Function, reject: Function, until: number}>} */
  const asks = new Map();
  /** @type {Sent[]} */
  const orders = [];
  const link = { state, orders, silent: false, open, ask, order, resync, size: () => views.size };
  let [timer, heard, spoke, pinged, wanted] = [0, 0, 0, 0, 0];

  function tell(/** @type {string} */ what) {
    for (const listener of [...views.values()]) listener(what);
  }

  function send(/** @type {any} */ message) {
    if (spoke <= heard) spoke = performance.now();
    try {
      model.send(message);
    } catch {
      spoke = Math.min(spoke, performance.now() - SILENT_MS); // the comm is closed: nobody will answer
    }
  }

  /** Opens a view; gives the function that closes it. */
  function open(/** @type {string} */ view, /** @type {(what: string) => void} */ listener) {
    if (!views.size) {
      model.on("msg:custom", receive);
      document.addEventListener("visibilitychange", wake);
      timer = window.setInterval(tick, 1000);
      heard = spoke = 0;
      if (state.seq < 0) drawSaved();
    }
    views.set(view, listener);
    greet(view);
    return () => {
      if (!views.delete(view)) return;
      send({ type: "bye", view });
      if (views.size) return;
      model.off("msg:custom", receive);
      document.removeEventListener("visibilitychange", wake);
      window.clearInterval(timer);
      for (const waiting of asks.values()) waiting.reject(new Error("the panel was closed"));
      asks.clear();
      link.silent = false;
    };
  }

  function greet(/** @type {string} */ view) {
    wanted = pinged = performance.now();
    send({ type: "hello", view });
  }

  /** What was saved with the notebook is shown until the kernel answers, if one does. */
  function drawSaved() {
    const saved = model.get("_snap");
    if (!saved || saved.type !== "snapshot") return;
    applySnapshot(state, saved, decodeBuffer(saved.buffer64));
    state.seq = -1; // whatever the kernel says is newer
  }

  function resync() {
    const [view] = views.keys();
    if (view === undefined) return;
    wanted = performance.now();
    send({ type: "ask", view, id: randomId(), what: "snapshot", args: {} });
  }

  function receive(/** @type {any} */ message, /** @type {any[]} */ buffers) {
    heard = performance.now();
    if (link.silent) {
      link.silent = false;
      tell("link");
    }
    const buffer = asView(buffers && buffers[0]);
    if (message.type === "snapshot") {
      wanted = 0;
      if (applySnapshot(state, message, buffer)) tell("data");
    } else if (message.type === "delta") {
      const outcome = applyDelta(state, message, buffer);
      if (outcome === "applied") tell("data");
      else if (outcome === "gap" && !wanted) resync();
    } else if (message.type === "pong") {
      if (message.seq > state.seq && !wanted) resync();
    } else if (message.type === "ack") settle(message);
    else if (message.type === "answer") {
      const waiting = asks.get(message.id);
      asks.delete(message.id);
      if (message.ok) waiting?.resolve({ data: message.data, buffer });
      else waiting?.reject(new Error(message.error));
    }
  }

  function settle(/** @type {Ack} */ ack) {
    const sent = orders.find((one) => one.id === ack.id);
    if (!sent || (sent.settled && ack.status === "pending")) return;
    Object.assign(sent, { status: ack.status, reason: ack.reason, line: ack.line || sent.line, late: false });
    if (ack.status !== "pending") sent.settled = performance.now();
    if (sent.kind === "clone") sent.made = ack.run;
    tell("order");
  }

  /** Asks a question; the promise gives `{data, buffer}` or fails with the kernel's one-line error. */
  function ask(
    /** @type {string} */ view,
    /** @type {string} */ what,
    /** @type {Record<string, Json>} */ args = {},
    patienceMs = ANSWER_MS,
  ) {
    const id = randomId();
    /** @type {Promise<{data: any, buffer: DataView | null}>} */
    const promise = new Promise((resolve, reject) =>
      asks.set(id, { resolve, reject, until: performance.now() + patienceMs }),
    );
    send({ type: "ask", view, id, what, args });
    return promise;
  }

  /** Sends an op; `before` is what undoing it needs to know. */
  function order(
    /** @type {string} */ view,
    /** @type {string} */ kind,
    /** @type {number | null} */ run,
    /** @type {Record<string, Json>} */ args = {},
    /** @type {any} */ before = null,
  ) {
    /** @type {Sent} */
    const sent = {
      id: randomId(),
      kind,
      run,
      args,
      at: performance.now(),
      late: false,
      status: "sent",
      reason: "",
      line: "",
      made: null,
      undone: false,
      before,
      settled: 0,
    };
    orders.push(sent);
    if (orders.length > MOST_ORDERS) orders.shift();
    send({ type: "order", view, id: sent.id, kind, run, args });
    tell("order");
    return sent;
  }

  function tick() {
    const now = performance.now();
    if (now - pinged >= PING_MS - 500) ping(now); // ticks are not exact
    if (wanted && now - wanted >= RETRY_MS) resync();
    if (!link.silent && spoke > heard && now - spoke >= SILENT_MS) {
      link.silent = true;
      tell("link");
    }
    for (const one of orders)
      if (one.status === "sent" && !one.late && now - one.at >= LATE_MS) {
        one.late = true;
        tell("order");
      }
    for (const [id, waiting] of asks)
      if (now > waiting.until) {
        asks.delete(id);
        waiting.reject(new Error("the kernel gave no answer; it may be busy"));
      }
    tell("tick");
  }

  function ping(/** @type {number} */ now) {
    pinged = now;
    for (const view of views.keys()) send({ type: "ping", view, seq: state.seq });
  }

  /** A page that comes to the front again was perhaps asleep for so long that the kernel closed its views. */
  function wake() {
    if (document.visibilityState !== "visible") return;
    const slept = performance.now() - pinged;
    if (slept > 2.5 * PING_MS) for (const view of views.keys()) greet(view);
    else ping(performance.now());
  }

  return link;
}

/** A buffer as it comes, as a DataView. */
function asView(/** @type {any} */ buffer) {
  if (!buffer) return null;
  if (buffer instanceof ArrayBuffer) return new DataView(buffer);
  return new DataView(buffer.buffer, buffer.byteOffset, buffer.byteLength);
}
