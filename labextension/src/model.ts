/** All experiments of all running kernels, as one model that views read and ask. */

import type { Kernel } from '@jupyterlab/services';
import { UUID } from '@lumino/coreutils';
import { ISignal, Signal } from '@lumino/signaling';

import type { IConnected } from './connections';
import type { ILink } from './link';
import { IKnown, INotice, NOTHING, notices, reduce } from './reduce';
import type { IAck, IBrief, IModelId, KernelMessage, OrderKind } from './types';

const ANSWER_MS = 10_000;

/** A kernel with experiments. */
export interface IKernel {
  readonly id: string;
  /** Path of the notebook or console it belongs to. */
  readonly path: string;
  readonly type: string;
  readonly experiments: readonly IBrief[];
  /** Seconds that this page's clock is ahead of the kernel's. */
  readonly clockAhead: number;
}

export interface INoticed {
  readonly kernel: IKernel;
  readonly notice: INotice;
}

interface IEntry {
  readonly link: ILink;
  readonly connection: Kernel.IKernelConnection;
  readonly path: string;
  readonly type: string;
  known: IKnown;
}

export class Model {
  constructor(
    private everySeconds: () => number,
    private now: () => number = () => Date.now() / 1000
  ) {}

  /** Something that views show is different. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get noticed(): ISignal<this, INoticed> {
    return this._noticed;
  }

  /** An op was taken in, and refused when it was to act. */
  get refused(): ISignal<this, string> {
    return this._refused;
  }

  /** Kernels that have experiments, in the order they were met. */
  get kernels(): IKernel[] {
    return [...this.entries.values()]
      .filter(entry => entry.known.experiments.size)
      .map(entry => this.kernel(entry));
  }

  /** Experiments that would be cut off if this kernel ended now. */
  live(kernelId: string): IBrief[] {
    const known = this.entries.get(kernelId)?.known;
    return [...(known?.experiments.values() ?? [])].filter(brief => brief.live);
  }

  /** Kernel clock's Unix time. */
  kernelTime(kernelId: string): number {
    return this.now() - (this.entries.get(kernelId)?.known.clockAhead ?? 0);
  }

  /** Number of the last message of a kernel, for its link. */
  lastSeq(kernelId: string): number {
    return this.entries.get(kernelId)?.known.seq ?? 0;
  }

  /** Listen to these kernels only, each over its connection of now. */
  listen(
    all: ReadonlyMap<string, IConnected>,
    link: (connection: Kernel.IKernelConnection) => ILink
  ): void {
    const before = new Map(this.entries);
    for (const [id, entry] of before) {
      if (all.get(id)?.connection !== entry.connection) {
        this.entries.delete(id);
        entry.link.received.disconnect(this.receive, this);
        entry.link.dispose();
      }
    }
    for (const [id, { connection, path, type }] of all) {
      const entry = this.entries.get(id);
      if (entry) {
        this.entries.set(id, { ...entry, path, type });
        continue;
      }
      // Over another connection the same kernel tells everything anew; until then what is known
      // stays.
      const known = { ...(before.get(id)?.known ?? NOTHING), seq: 0 };
      const made = { link: link(connection), connection, path, type, known };
      this.entries.set(id, made);
      made.link.received.connect(this.receive, this);
    }
    this._changed.emit();
  }

  /** Ask every kernel for everything, at the update rate of now. */
  greet(): void {
    for (const { link } of this.entries.values()) {
      link.send({ type: 'hello', every_s: this.everySeconds() });
    }
  }

  /** Do an op; answers when the kernel has taken it in, or refused it. */
  async order(
    kernelId: string,
    experiment: string,
    kind: OrderKind,
    run: number | null,
    args: { weight?: number } = {}
  ): Promise<IAck> {
    const id = UUID.uuid4();
    const answer = this.answer(id);
    this.entries.get(kernelId)?.link.send({ type: 'order', id, experiment, kind, run, args });
    const ack = await answer;
    return ack?.type === 'ack' ? ack : unanswered(id);
  }

  /** Ask for the widget model of an experiment's panel. */
  async openPanel(kernelId: string, experiment: string): Promise<IModelId> {
    const id = UUID.uuid4();
    const answer = this.answer(id);
    this.entries.get(kernelId)?.link.send({ type: 'open_panel', id, experiment });
    const panel = await answer;
    return panel?.type === 'model' ? panel : { type: 'model', id, model: '', error: SILENT };
  }

  private kernel(entry: IEntry): IKernel {
    const { link, path, type, known } = entry;
    const experiments = [...known.experiments.values()];
    return { id: link.kernelId, path, type, experiments, clockAhead: known.clockAhead };
  }

  private answer(id: string): Promise<KernelMessage | null> {
    return new Promise(resolve => {
      const timer = setTimeout(() => {
        this.waiting.delete(id);
        resolve(null);
      }, ANSWER_MS);
      this.waiting.set(id, message => {
        this.waiting.delete(id);
        clearTimeout(timer);
        resolve(message);
      });
    });
  }

  private receive(link: ILink, message: KernelMessage | null): void {
    const entry = this.entries.get(link.kernelId);
    if (!entry) {
      return;
    }
    if (message === null) {
      const had = entry.known.experiments.size;
      entry.known = NOTHING;
      if (had) {
        this._changed.emit();
      }
    } else if (message.type === 'experiments') {
      const next = reduce(entry.known, message, this.now());
      if (!next) {
        link.send({ type: 'hello', every_s: this.everySeconds() });
        return;
      }
      this.apply(entry, next, !message.full);
    } else if (message.type === 'ack' || message.type === 'model') {
      const asked = this.waiting.get(message.id);
      asked?.(message);
      if (!asked && message.type === 'ack' && message.status === 'refused') {
        this._refused.emit(message.reason);
      }
    }
  }

  private apply(entry: IEntry, next: IKnown, isUpdate: boolean): void {
    const before = entry.known.experiments;
    entry.known = next;
    this._changed.emit();
    const kernel = this.kernel(entry);
    for (const brief of next.experiments.values()) {
      for (const notice of notices(before.get(brief.key), brief, isUpdate)) {
        this._noticed.emit({ kernel, notice });
      }
    }
  }

  private entries = new Map<string, IEntry>();
  private waiting = new Map<string, (message: KernelMessage) => void>();
  private _changed = new Signal<this, void>(this);
  private _noticed = new Signal<this, INoticed>(this);
  private _refused = new Signal<this, string>(this);
}

function unanswered(id: string): IAck {
  const nothing = { run: null, step: null, line: '' };
  return { type: 'ack', id, status: 'refused', reason: SILENT, ...nothing };
}

const SILENT = 'the kernel does not answer; it may be busy or gone';
