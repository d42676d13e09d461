/**
 * What kernel and page say to each other: a mirror of `rapidfire_jupyter/ui/brief.py`.
 *
 * `tests/golden/comm.json` holds one message of each kind; the tests of both sides read it.
 */

export type Status =
  'queued' | 'running' | 'paused' | 'stopped' | 'completed' | 'failed';

export type State = 'empty' | 'running' | 'paused' | 'halted' | 'idle' | 'ended';

/** One run. Shares from 0 to 1, times in seconds. */
export interface IBriefRun {
  readonly id: number;
  readonly name: string;
  readonly status: Status;
  readonly progress: number;
  readonly step: number;
  readonly total_steps: number | null;
  readonly checkpoint_step: number | null;
  readonly eta_s: number | null;
  /** The last one; a non-finite one as its name. */
  readonly loss: number | string | null;
  readonly weight: number;
  readonly error: string;
}

/** One experiment of a kernel; in an update `runs` are the changed ones. */
export interface IBrief {
  readonly key: string;
  readonly name: string;
  readonly state: State;
  /** Training would be cut off if the kernel ended now. */
  readonly live: boolean;
  readonly reason: string;
  readonly progress: number;
  readonly eta_s: number | null;
  /** Unix time, by the kernel's clock. */
  readonly checkpoint_time: number | null;
  readonly alerts: number;
  readonly alert: string;
  readonly runs: readonly IBriefRun[];
}

export interface IExperiments {
  readonly type: 'experiments';
  readonly seq: number;
  readonly time: number;
  readonly full: boolean;
  readonly experiments: readonly IBrief[];
  readonly gone: readonly string[];
}

export interface IAck {
  readonly type: 'ack';
  readonly id: string;
  readonly status: 'pending' | 'applied' | 'already' | 'refused';
  readonly reason: string;
  readonly run: number | null;
  readonly step: number | null;
  /** The same as a magic. */
  readonly line: string;
}

export interface IModelId {
  readonly type: 'model';
  readonly id: string;
  readonly model: string;
  readonly error: string;
}

export interface IPong {
  readonly type: 'pong';
  readonly seq: number;
}

export type KernelMessage = IExperiments | IAck | IModelId | IPong;

export type OrderKind =
  'stop' | 'resume' | 'boost' | 'pause_all' | 'resume_all';

export interface IHello {
  readonly type: 'hello';
  readonly every_s: number;
}

export interface IPing {
  readonly type: 'ping';
  readonly seq: number;
}

export interface IOrder {
  readonly type: 'order';
  readonly id: string;
  readonly experiment: string;
  readonly kind: OrderKind;
  readonly run: number | null;
  readonly args: { readonly weight?: number };
}

export interface IOpenPanel {
  readonly type: 'open_panel';
  readonly id: string;
  readonly experiment: string;
}

export type PageMessage = IHello | IPing | IOrder | IOpenPanel;

/** A message of the kernel, or null if it is none that this version knows. */
export function parse(data: unknown): KernelMessage | null {
  if (typeof data !== 'object' || data === null) {
    return null;
  }
  const message = data as Record<string, unknown>;
  const numbered = typeof message.seq === 'number';
  const named = typeof message.id === 'string';
  const known =
    (message.type === 'experiments' &&
      numbered &&
      Array.isArray(message.experiments) &&
      Array.isArray(message.gone)) ||
    (message.type === 'ack' && named && typeof message.status === 'string') ||
    (message.type === 'model' && named && typeof message.model === 'string') ||
    (message.type === 'pong' && numbered);
  return known ? (data as KernelMessage) : null;
}
