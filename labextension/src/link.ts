/**
 * A comm to one kernel, without JupyterLab's comm manager.
 *
 * Only one connection of a page may handle a kernel's comms: a second one closes what it does not
 * know, and a notebook that comes later gets no widgets. So this speaks the comm messages itself,
 * over any connection, and leaves all other comms alone.
 */

import type { Kernel, KernelMessage as Wire } from '@jupyterlab/services';
import { UUID } from '@lumino/coreutils';
import { ISignal, Signal } from '@lumino/signaling';

import { KernelMessage, PageMessage, parse } from './types';

export const TARGET = 'rapidfire';
const PING_MS = 20_000;
const TRIES_MS = [3_000, 15_000];

export interface ILink {
  readonly kernelId: string;
  /** What the kernel sends; null when the comm has closed. */
  readonly received: ISignal<ILink, KernelMessage | null>;
  send(message: PageMessage): void;
  dispose(): void;
}

export class Link implements ILink {
  /**
   * @param lastSeq Number of the last message that was applied.
   */
  constructor(
    private connection: Kernel.IKernelConnection,
    private everySeconds: () => number,
    private lastSeq: () => number
  ) {
    connection.iopubMessage.connect(this.onMessage, this);
    connection.statusChanged.connect(this.onStatus, this);
    connection.disposed.connect(this.dispose, this);
    this.open();
  }

  get kernelId(): string {
    return this.connection.id;
  }

  get received(): ISignal<this, KernelMessage | null> {
    return this._received;
  }

  get isDisposed(): boolean {
    return this._disposed;
  }

  /** Open the comm; the kernel closes it at once if it does not know rapidfire. */
  open(): void {
    if (this.opened || this._disposed) {
      return;
    }
    this.opened = true;
    this.heard = this.again = false;
    this.commId = UUID.uuid4();
    const id = this.commId;
    this.greeted = this.chooseSubshell().then(() => {
      if (!this._disposed && this.commId === id) {
        this.post('comm_open', {
          comm_id: id,
          target_name: TARGET,
          data: { type: 'hello', every_s: this.everySeconds() }
        });
      }
    });
    clearInterval(this.timer);
    this.unanswered = 0;
    this.timer = setInterval(() => this.ping(), PING_MS);
  }

  private ping(): void {
    if (this.unanswered >= 2 && this.connection.status === 'idle') {
      this.closed(); // its subshell has gone, or the kernel forgot us
      this.open();
    } else if (this.opened) {
      this.unanswered += 1;
      this.send({ type: 'ping', seq: this.lastSeq() });
    }
  }

  send(message: PageMessage): void {
    if (this.opened && !this._disposed) {
      const id = this.commId;
      // The comm's opening comes first, and waits for a subshell.
      void this.greeted.then(() => {
        if (!this._disposed && this.commId === id) {
          this.post('comm_msg', { comm_id: id, data: message });
        }
      });
    }
  }

  dispose(): void {
    if (this._disposed) {
      return;
    }
    if (this.opened && !this.connection.isDisposed) {
      this.post('comm_close', { comm_id: this.commId, data: {} });
    }
    this._disposed = true;
    clearInterval(this.timer);
    this.tries.forEach(clearTimeout);
    this.connection.iopubMessage.disconnect(this.onMessage, this);
    this.connection.statusChanged.disconnect(this.onStatus, this);
    this.connection.disposed.disconnect(this.dispose, this);
    Signal.clearData(this);
  }

  /**
   * A subshell answers while a cell runs. One that is there is shared, so that page reloads do not
   * pile them up.
   */
  private async chooseSubshell(): Promise<void> {
    try {
      await this.connection.info;
      if (!this.connection.supportsSubshells) {
        return;
      }
      const listed = await this.connection.requestListSubshell({}).done;
      const known = (listed?.content as { subshell_id?: string[] })?.subshell_id ?? [];
      if (known.length) {
        this.subshell = known[0];
        return;
      }
      const made = await this.connection.requestCreateSubshell({}).done;
      this.subshell = (made?.content as { subshell_id?: string })?.subshell_id ?? null;
    } catch {
      this.subshell = null; // the main shell does as well, after the running cell
    }
  }

  private onMessage(_: Kernel.IKernelConnection, message: Wire.IIOPubMessage): void {
    const content = message.content as { comm_id?: string; data?: unknown; code?: string };
    const type = message.header.msg_type as string;
    if (type === 'comm_msg' && content.comm_id === this.commId) {
      const parsed = parse(content.data);
      this.unanswered = 0;
      this.heard = true;
      if (parsed) {
        this._received.emit(parsed);
      }
    } else if (type === 'comm_close' && content.comm_id === this.commId) {
      const again = this.heard || this.again;
      this.closed();
      if (again) {
        this.open(); // this page was silent for too long, or a cell has loaded us since
      }
    } else if (!this.heard && this.loads(message)) {
      this.cell = (message.parent_header as { msg_id?: string }).msg_id ?? '';
      this.tryLater();
    } else if (type === 'status' && this.cell) {
      const { msg_id } = message.parent_header as { msg_id?: string };
      const state = (message.content as { execution_state?: string }).execution_state;
      if (state === 'idle' && msg_id === this.cell) {
        this.cell = '';
        this.again = !this.heard;
        this.open();
      }
    }
  }

  /** A cell that names rapidfire, or our panel opening: the kernel may know us from then on. */
  private loads(message: Wire.IIOPubMessage): boolean {
    const type = message.header.msg_type as string;
    if (type === 'execute_input') {
      return /rapidfire/i.test((message.content as { code: string }).code);
    }
    const state = (message.content as { data?: { state?: { _anywidget_id?: unknown } } }).data
      ?.state;
    return type === 'comm_open' && `${state?._anywidget_id}`.startsWith('rapidfire_jupyter');
  }

  /** A cell that waits for its training is idle only when all is over. */
  private tryLater(): void {
    this.tries.forEach(clearTimeout);
    this.tries = TRIES_MS.map(ms => setTimeout(() => this.open(), ms));
  }

  private onStatus(_: Kernel.IKernelConnection, status: Kernel.Status): void {
    if (['restarting', 'autorestarting', 'dead', 'terminating'].includes(status)) {
      this.closed();
    }
  }

  private closed(): void {
    if (this.opened) {
      this.opened = this.heard = this.again = false;
      this.commId = '';
      this.subshell = null;
      this._received.emit(null);
    }
  }

  private post(type: string, content: object): void {
    const header = {
      msg_id: UUID.uuid4(),
      msg_type: type,
      session: this.connection.clientId,
      username: this.connection.username,
      date: new Date().toISOString(),
      version: '5.3',
      ...(this.subshell ? { subshell_id: this.subshell } : {})
    };
    const message = {
      header,
      parent_header: {},
      metadata: {},
      content,
      channel: 'shell',
      buffers: []
    };
    try {
      this.connection.sendShellMessage(message as unknown as Wire.IShellMessage, false, true);
    } catch {
      this.closed(); // the connection is going away; the next kernel or page opens another
    }
  }

  private commId = '';
  private opened = false;
  private heard = false;
  private again = false;
  private greeted = Promise.resolve();
  private cell = '';
  private tries: ReturnType<typeof setTimeout>[] = [];
  private unanswered = 0;
  private subshell: string | null = null;
  private timer: ReturnType<typeof setInterval> | undefined;
  private _disposed = false;
  private _received = new Signal<this, KernelMessage | null>(this);
}
