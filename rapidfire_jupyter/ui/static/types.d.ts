/** Types of the panel's front end; those of messages mirror ui/wire.py. For `tsc` only, not shipped to the page. */

type Json = any;

interface Head {
  name: string; state: string; read_only: boolean; reason: string; progress: number; elapsed_s: number;
  eta_s: number | null; counts: Record<string, number>; device: string;
  memory: { used_bytes?: number | null; total_bytes?: number | null };
  alerts: number; metrics: string[]; lower_is_better: Record<string, boolean>; constants: Record<string, Json>;
  varying: string[]; best: Record<string, number>; rows_per_epoch: number | null; first_time: number; can: string[];
}

interface Row {
  id: number; name: string; status: string; progress: number; step: number; total_steps: number | null; chunk: number;
  chunk_ends: number[]; eta_s: number | null; params: Record<string, Json>; last: Record<string, number | string | null>;
  weight: number; parent: number | null; warm: boolean; clone_step: number | null; changes: Record<string, Json>;
  inexact: string[]; error: string; why: string; checkpoint_step: number | null; deleted_at: number; parked: boolean;
}

interface Block { run: number; metrics: string[]; n: number }
interface Entry {
  seq: number; time: number; kind: string; run: number | null; text: string; level: "info" | "alert" | "error"; op: string; outcome: string;
  policy: string; remedies: Remedy[];
}
interface Remedy { label: string; kind: string; args: Record<string, Json> }
interface EffectRow {
  factor: string; before: string; after: string; mean: number; low: number | null; high: number | null;
  verdict: "better" | "worse" | "tie" | "unclear"; pairs: number;
}
interface Slice { run: number; start: number; end: number; steps: number }
interface Snapshot {
  type: "snapshot"; seq: number; head: Head; rows: Row[]; blocks: Block[]; entries: Entry[]; slices: Slice[]; buffer64?: string;
}
interface Delta {
  type: "delta"; seq: number; head: Head | null; rows: Row[]; gone: number[]; reset: number[]; blocks: Block[]; entries: Entry[]; slices: Slice[];
}
interface Pong { type: "pong"; view: string; seq: number }
interface Ack {
  type: "ack"; id: string; status: "pending" | "applied" | "already" | "refused"; reason: string; run: number | null; step: number | null; line: string;
}
interface Answer { type: "answer"; id: string; view: string; ok: boolean; error: string; data: Json }
interface Field {
  path: string; label: string; group: string; kind: "int" | "float" | "bool" | "choice" | "text" | "list" | "fixed"; value: Json;
  choices: Json[] | null; least: number | null; most: number | null; given: boolean; note: string;
}
interface Setting { name: string; kind: "int" | "float" | "bool" | "text" | "list" | "fixed"; value: Json; about: string }
interface Policy {
  key: string; mode: "on" | "dry-run" | "off"; given: boolean; about: string; settings: Setting[]; done: string; told: [number, string][];
}
interface Sample {
  prompt: string; reference: string; predictions: Record<string, string>; scores: Record<string, Record<string, number | null>>;
}

interface Chunk {
  rows: number; words: number; word_js: number; word_kl: number; word_chance: number; word_limit: number;
  length_js: number; length_kl: number; length_chance: number; length_limit: number; groups: Record<string, number>;
}
interface Curve { n: number; step: Float32Array; epoch: Float32Array; time: Float32Array; value: Float32Array }
interface State {
  seq: number; head: Head | null; rows: Map<number, Row>; curves: Map<number, Map<string, Curve>>; entries: Entry[]; slices: Slice[];
  version: number;
}
/** An op on its way. `sent`: no ack yet. */
interface Sent {
  id: string; kind: string; run: number | null; args: Record<string, Json>; at: number; late: boolean;
  status: "sent" | "pending" | "applied" | "already" | "refused"; reason: string; line: string; made: number | null; undone: boolean; before: any;
  settled: number;
}
interface Model {
  on(name: string, call: Function): void; off(name: string, call: Function): void; get(name: string): any;
  send(content: any, callbacks?: any, buffers?: any[]): void;
}
/** What a view wants to see. */
interface Wish {
  metric: string; x: "step" | "rows" | "epoch" | "time"; smooth: number; log: boolean; hidden: Set<number>; alone: number | null;
  selected: Set<number>; sort: { key: string; down: boolean }; filter: string; tab: string; zoom: Zoom | null; asTable: boolean; alerts?: boolean;
}
interface Zoom { x: [number, number]; y: [number, number] | null }
interface Line {
  run: number; title: string; slot: number; dashed: boolean; x: ArrayLike<number>; y: ArrayLike<number>; raw: ArrayLike<number> | null;
  at: ArrayLike<number>; epochs: ArrayLike<number>; label: string;
}
interface Pen {
  line(x1: number, y1: number, x2: number, y2: number, style: Ink): void;
  path(points: Float64Array, count: number, style: Ink): void;
  box(x: number, y: number, w: number, h: number, style: Ink): void;
  text(text: string, x: number, y: number, style: Ink): void;
  clip(x: number, y: number, w: number, h: number, draw: () => void): void;
}
interface Ink { color: string; width?: number; dash?: number[]; alpha?: number; size?: number; align?: "left" | "center" | "right"; bold?: boolean; turn?: boolean }
interface Theme { dark: boolean; text: string; faint: string; grid: string; back: string; grey: string; colors: string[]; font: string; error: string; accent: string }
interface Sent { batch?: string }
/** One open view: what its parts are handed. */
interface View {
  id: string; root: HTMLElement; link: any; state: State; wish: Wish; theme: Theme; slots: Map<number, number>;
  ask(what: string, args?: Record<string, Json>, patienceMs?: number): Promise<{ data: any; buffer: DataView | null }>;
  say(text: string): void; openClone(run: number): void; openLonger(runs: number[]): void; openMix(runs: number[]): void; openTab(key: string): void; closeForm(): void;
  changed(): void; light(run: number | null): void; targets(): number[]; order(): number[]; picture(): any;
}
interface Column {
  key: string; title: string; hint: string; number: boolean; width: number;
  sort(row: Row): number | string; text(row: Row): string;
}
