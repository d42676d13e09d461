/* A kernel's end for the panel's tests: a widget model that records what views send, and made experiments.
   It runs in the page; the Python side drives it through `window.kernel`. */

class FakeModel {
  constructor(traits = {}) {
    this.traits = traits;
    this.listeners = [];
    this.sent = [];
    this.answer = () => undefined;
  }
  on(name, call) { this.listeners.push([name, call]); }
  off(name, call) { this.listeners = this.listeners.filter(([n, c]) => n !== name || (call && c !== call)); }
  get(name) { return this.traits[name]; }
  set(name, value) { this.traits[name] = value; }
  save_changes() {}
  send(content) {
    const message = JSON.parse(JSON.stringify(content));
    this.sent.push({ ...message, sentAt: performance.now() });
    queueMicrotask(() => this.answer(message));
  }
  receive(message, buffer = null) {
    const view = buffer ? new DataView(buffer.buffer || buffer) : null;
    for (const [name, call] of [...this.listeners]) if (name === "msg:custom") call(JSON.parse(JSON.stringify(message)), view ? [view] : []);
  }
}

const KINDS = ["learning_rate", "r", "target_modules"];

/** A deterministic random stream. */
function stream(seed) {
  let state = seed >>> 0;
  return () => ((state = (Math.imul(state, 1664525) + 1013904223) >>> 0) / 2 ** 32);
}

function makeRow(id, over = {}) {
  const rate = [1e-3, 5e-4, 1e-4, 3e-5][id % 4];
  return {
    id, name: `run ${id}`, status: ["running", "queued", "queued", "stopped", "completed"][id % 5], progress: 0.5, step: 200, total_steps: 400,
    chunk: 4, chunk_ends: [50, 100, 150, 200, 250, 300, 350, 400], eta_s: 320 + id,
    params: { "training_args.learning_rate": rate, "peft_config.r": [8, 32][id % 2], "peft_config.target_modules": id % 3 ? ["q_proj", "v_proj"] : "all-linear" },
    last: { loss: 1 + id / 100, eval_loss: 1.2 + id / 90, learning_rate: rate }, weight: 1, parent: null, warm: false, clone_step: null, changes: {},
    inexact: [], error: "", why: "", checkpoint_step: 200, deleted_at: 0, parked: false, ...over,
  };
}

function makeHead(rows, over = {}) {
  const counts = {};
  for (const row of rows) counts[row.status] = (counts[row.status] || 0) + 1;
  return {
    name: "support-bot", state: "running", read_only: false, reason: "", progress: 0.43, elapsed_s: 754, eta_s: 840, counts, device: "cpu",
    memory: { used_bytes: 3.1e9, total_bytes: 15.6e9 }, alerts: 0, metrics: ["loss", "eval_loss", "learning_rate", "grad_norm"],
    lower_is_better: { loss: true, eval_loss: true }, constants: { "training_args.per_device_train_batch_size": 4, "training_args.num_train_epochs": 1, "peft_config.lora_dropout": 0.05, model_name: "HuggingFaceTB/SmolLM2-135M-Instruct" },
    varying: KINDS.map((name) => (name === "learning_rate" ? `training_args.${name}` : `peft_config.${name}`)), best: { loss: 1, eval_loss: 1 },
    rows_per_epoch: 1600, first_time: Date.now() / 1000 - 754, can: ["ops", "schedule"], ...over,
  };
}

/** Rows `from` to `to` of every run as blocks and their buffer. */
function makeBlocks(ids, metrics, first, to, starts = {}) {
  const length = (run) => Math.max(0, to - Math.max(first, starts[run] || 0));
  const numbers = new Float32Array(ids.reduce((sum, run) => sum + length(run), 0) * (3 + metrics.length));
  let at = 0;
  const blocks = ids.map((run) => {
    const from = Math.max(first, starts[run] || 0);
    const n = length(run);
    const random = stream(run * 7919 + from);
    for (let i = 0; i < n; i += 1) {
      const step = from + i + 1;
      numbers[at++] = step;
      numbers[at++] = step / 400;
      numbers[at++] = step * 1.9 + run;
      metrics.forEach((metric, m) => {
        const level = 1 + (run % 12) / 10 + 2.2 * Math.exp(-step / (60 + 10 * (run % 7)));
        numbers[at++] = metric === "learning_rate" ? 1e-3 * (1 - step / 400) : level + m * 0.2 + (random() - 0.5) * 0.3;
      });
    }
    return { run, metrics, n };
  });
  return { blocks, buffer: numbers };
}

function makeSlices(ids, count = 60) {
  return Array.from({ length: count }, (_, i) => ({ run: ids[i % ids.length], start: i * 12, end: i * 12 + 11.4, steps: 6 }));
}

const REMEDIES = [
  { label: "clone warm with learning rate 0.001 → 0.000333", kind: "clone", args: { changes: { "training_args.learning_rate": 0.000333 }, warm: true, again: false, name: null } },
  { label: "boost run 3 to weight 2", kind: "boost", args: { weight: 2 } },
];

function makeEntries() {
  return [
    { seq: 1, time: 0, kind: "fit_started", run: null, text: "training started: 8 runs", level: "info", op: "", outcome: "", policy: "", remedies: [] },
    { seq: 5, time: 130, kind: "op", run: 4, text: "stop run 4 at step 60", level: "info", op: "stop", outcome: "applied", policy: "", remedies: [] },
    { seq: 7, time: 260, kind: "op", run: 1, text: "boost run 1 to weight 3", level: "info", op: "boost", outcome: "applied", policy: "", remedies: [] },
    { seq: 9, time: 410, kind: "alert", run: 3, text: "loss of run 3 is NaN since step 120", level: "alert", op: "", outcome: "", policy: "", remedies: REMEDIES },
    { seq: 12, time: 520, kind: "run_failed", run: 5, text: "run 5 failed: CUDA out of memory", level: "error", op: "", outcome: "", policy: "", remedies: [] },
  ];
}

const FIELDS = [
  { path: "training_args.learning_rate", label: "learning_rate", group: "Training", kind: "float", value: 0.001, choices: null, least: 0, most: null, given: true, note: "The initial learning rate." },
  { path: "training_args.per_device_train_batch_size", label: "per_device_train_batch_size", group: "Training", kind: "int", value: 4, choices: null, least: 1, most: null, given: true, note: "The batch size per device." },
  { path: "training_args.lr_scheduler_type", label: "lr_scheduler_type", group: "Training", kind: "choice", value: "linear", choices: ["linear", "cosine", "constant", "polynomial", "inverse_sqrt", "constant_with_warmup"], least: null, most: null, given: true, note: "The schedule's shape." },
  { path: "training_args.bf16", label: "bf16", group: "Training", kind: "bool", value: false, choices: null, least: null, most: null, given: true, note: "Whether to use bf16." },
  { path: "training_args.weight_decay", label: "weight_decay", group: "Training", kind: "float", value: 0, choices: null, least: 0, most: null, given: false, note: "Weight decay." },
  { path: "training_args.warmup_steps", label: "warmup_steps", group: "Training", kind: "int", value: 0, choices: null, least: 0, most: null, given: false, note: "Steps of warm-up." },
  { path: "peft_config.r", label: "r", group: "Adapter", kind: "int", value: 8, choices: null, least: 1, most: null, given: true, note: "The rank." },
  { path: "peft_config.target_modules", label: "target_modules", group: "Adapter", kind: "list", value: ["q_proj", "v_proj"], choices: null, least: null, most: null, given: true, note: "Modules to adapt." },
  { path: "peft_config.bias", label: "bias", group: "Adapter", kind: "choice", value: "none", choices: ["none", "all", "lora_only"], least: null, most: null, given: true, note: "Which biases are trained." },
  { path: "model_name", label: "model_name", group: "Model", kind: "text", value: "HuggingFaceTB/SmolLM2-135M-Instruct", choices: null, least: null, most: null, given: true, note: "" },
  { path: "formatting_func", label: "formatting_func", group: "Model", kind: "fixed", value: "function to_text", choices: null, least: null, most: null, given: true, note: "change it in a cell: exp.clone(...)" },
];

/** An experiment and its kernel. `over` changes the head, `rows` the runs. */
class FakeKernel {
  constructor({ runs = 8, head = {}, rows = {}, points = 200, metrics = ["loss", "eval_loss", "learning_rate"], traits = {}, auto = true } = {}) {
    this.model = new FakeModel(traits);
    this.rows = Array.from({ length: runs }, (_, i) => makeRow(i + 1, rows[i + 1]));
    this.head = makeHead(this.rows, head);
    this.points = points;
    this.metrics = metrics;
    this.seq = 1;
    this.entries = makeEntries();
    this.auto = auto;
    this.answers = {};
    this.model.answer = (message) => this.hear(message);
  }
  snapshot() {
    const ids = this.rows.map((row) => row.id);
    const { blocks, buffer } = this.points ? makeBlocks(ids, this.metrics, 0, this.points, Object.fromEntries(this.rows.filter((row) => row.warm).map((row) => [row.id, row.clone_step]))) : { blocks: [], buffer: new Float32Array(0) };
    return [{ type: "snapshot", seq: this.seq, head: this.head, rows: this.rows, blocks, entries: this.entries, slices: this.points ? makeSlices(ids) : [] }, buffer];
  }
  delta(change = {}, buffer = null) {
    this.seq += 1;
    this.model.receive({ type: "delta", seq: this.seq, head: null, rows: [], gone: [], reset: [], blocks: [], entries: [], slices: [], ...change }, buffer);
  }
  set(id, over) {
    this.rows = this.rows.map((row) => (row.id === id ? { ...row, ...over } : row));
    this.delta({ rows: this.rows.filter((row) => row.id === id) });
  }
  hear(message) {
    if (!this.auto) return;
    if (message.type === "hello" || (message.type === "ask" && message.what === "snapshot")) return this.model.receive(...this.snapshot());
    if (message.type === "ping") return this.model.receive({ type: "pong", view: message.view, seq: this.seq });
    if (message.type === "order") {
      const ack = { type: "ack", id: message.id, status: "pending", reason: "", run: message.run, step: null, line: `%rapidfire ${message.kind.replace("_", "-")} ${message.run ?? ""}`.trim() };
      this.model.receive(ack);
      this.pending = [...(this.pending || []), ack];
      return undefined;
    }
    if (message.type === "ask") return this.reply(message);
    return undefined;
  }
  /** Settles all pending orders. */
  settle(status = "applied", reason = "", run = undefined) {
    for (const ack of this.pending || []) this.model.receive({ ...ack, status, reason, run: run === undefined ? ack.run : run, step: 201 });
    this.pending = [];
  }
  reply(message) {
    const made = this.answers[message.what] ?? DEFAULTS[message.what];
    if (made === undefined) return;
    const outcome = typeof made === "function" ? made(message.args, this) : made;
    const { error = "", buffer = null, ...data } = outcome;
    this.model.receive({ type: "answer", id: message.id, view: message.view, ok: !error, error, data }, buffer);
  }
}

const DEFAULTS = {
  form: { fields: FIELDS, warm: "" },
  check: (args) => ({
    errors: args.changes["training_args.learning_rate"] > 1 ? { "training_args.learning_rate": "learning_rate is above 1: no optimizer survives it" } : {},
    warm: args.changes.model_name ? "another base model" : "",
    changed: {}, line: `%rapidfire clone ${args.run} ${Object.entries(args.changes).map(([k, v]) => `${k.split(".").pop()}=${v}`).join(" ")}${args.warm ? " --warm" : ""}`.replace("  ", " "),
  }),
  schedule: (args) => {
    const steps = Array.from({ length: 41 }, (_, i) => i * 10);
    const peak = args.changes["training_args.learning_rate"] ?? 1e-3;
    return { steps, parent: steps.map((s) => 1e-3 * (1 - s / 400)), clone: steps.map((s) => (args.warm && s < 200 ? null : peak * (1 - s / 400))), from_step: args.warm ? 200 : 0 };
  },
  config: (args, kernel) => ({ values: { ...kernel.head.constants, ...kernel.rows.find((row) => row.id === args.run).params } }),
  log: (args) => ({ text: `run ${args.run}\n{'loss': 1.234, 'grad_norm': 0.5}\nUserWarning: something` }),
  peek: { rows: [[{ text: "<|user|> Where is my order? <|assistant|>", learned: false }, { text: "It left our warehouse on Monday.", learned: true }]] },
  samples: { chunks: [1, 2], chunk: 1, prompts: [{ prompt: "Where is my order?", reference: "It left on Monday.", predictions: { 1: "It left our warehouse.", 2: "I do not know." }, scores: { 1: { bleu: 0.41 }, 2: { bleu: 0.02 } } }] },
  policies: (args) =>
    args.would
      ? { would: ["halving (rung 0.25): stop run 2: eval_loss 3.1 at 0.25 of its schedule is behind 2.9 of run 1"], missing: "" }
      : {
          policies: [
            {
              key: "halving", mode: "on", given: true, about: "Guarded successive halving", done: "stop 1",
              settings: [
                { name: "eta", kind: "float", value: 4, about: "Of the runs that were judged before, one in eta goes on." },
                { name: "metric", kind: "text", value: null, about: "None takes eval_loss." },
              ],
              told: [[120, "halving (rung 0.125): stop run 4: eval_loss 3.4 is behind"]],
            },
            { key: "threshold", mode: "off", given: false, about: "Stop runs whose metric is on the wrong side of a limit", done: "", told: [],
              settings: [{ name: "limit", kind: "float", value: 2, about: "Runs with a loss above it are stopped." }] },
          ],
        },
  sample: (args) => ({ predictions: Object.fromEntries(args.runs.map((run) => [run, [`answer of ${run} to ${args.prompts[0]}`]])) }),
  analysis: (args) => ({
    metric: args.metric || "loss", mode: "min", at: 1, used: [1, 2, 3, 4], notes: ["differences of up to 0.5 % are a tie"],
    effects: [
      { factor: "r", before: "8", after: "32", mean: -0.12, low: -0.2, high: -0.04, verdict: "better", pairs: 4 },
      { factor: "learning_rate", before: "0.001", after: "0.01", mean: 0.3, low: null, high: null, verdict: "unclear", pairs: 2 },
    ],
  }),
  data: {
    rows: 400,
    measured: 400,
    chunks: [0.4, 0.5].map((share, k) => ({
      rows: 200, words: 41000 - 1500 * k, groups: { returns: share, delivery: 1 - share },
      word_js: 0.031 + 0.09 * k, word_kl: 0.04, word_chance: 0.03, word_limit: 0.05,
      length_js: 0.012, length_kl: 0.02, length_chance: 0.011, length_limit: 0.04,
    })),
  },
  export: (args) => (args.format === "adapter" ? { path: "experiments/support-bot/run-1/adapter" } : { file: `support-bot.${args.format}`, mime: "text/plain", buffer: new Uint8Array([104, 105]) }),
};

/** Loads the panel's module and mounts views. */
async function mount(kernel, source, element) {
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  const found = (await import(url)).default;
  URL.revokeObjectURL(url);
  const widget = typeof found === "function" ? await found() : found;
  widget.initialize?.({ model: kernel.model });
  const close = await widget.render({ model: kernel.model, el: element });
  return { widget, close, again: (el) => widget.render({ model: kernel.model, el }) };
}
