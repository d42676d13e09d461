/**
 * A connection to each running kernel.
 *
 * An open notebook's own connection is used where there is one: a second one would fetch every
 * output twice. Kernels without an open notebook get a connection that leaves comms to others.
 */

import type { Kernel, ServiceManager, Session } from '@jupyterlab/services';
import type { ISessionContext } from '@jupyterlab/apputils';
import { ISignal, Signal } from '@lumino/signaling';

export interface IConnected {
  readonly connection: Kernel.IKernelConnection;
  /** The document or console that the kernel belongs to. */
  readonly path: string;
  readonly type: string;
}

export class Connections {
  constructor(private services: ServiceManager.IManager) {
    services.sessions.runningChanged.connect(this.refresh, this);
    void services.sessions.ready.then(() => this.refresh());
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Connections by kernel id. */
  get all(): ReadonlyMap<string, IConnected> {
    return this.connected;
  }

  /** Use a notebook's or console's connection while it is open. */
  follow(context: ISessionContext): void {
    this.contexts.add(context);
    context.kernelChanged.connect(this.refresh, this);
    context.disposed.connect(() => {
      this.contexts.delete(context);
      this.refresh();
    });
    this.refresh();
  }

  /** Look which kernels run, and which connections are open. */
  refresh(): void {
    const wanted = this.wanted();
    let changed = false;
    for (const [id, old] of this.connected) {
      const next = wanted.get(id);
      if (!next || (next.open && next.open !== old.connection) || old.connection.isDisposed) {
        this.forget(id);
        changed = true;
      }
    }
    for (const [id, { session, open, path }] of wanted) {
      const old = this.connected.get(id);
      if (!old || old.path !== path || old.type !== session.type) {
        const connection = old?.connection ?? open ?? this.connect(session);
        this.connected.set(id, { connection, path, type: session.type });
        changed = true;
      }
    }
    if (changed) {
      this._changed.emit();
    }
  }

  /** By kernel id: its session (a notebook's, if it has several), and the open connection. */
  private wanted(): Map<string, IWanted> {
    const open = new Map<string, ISessionContext>();
    for (const context of this.contexts) {
      const kernel = context.session?.kernel;
      if (kernel && !kernel.isDisposed) {
        open.set(kernel.id, context);
      }
    }
    const wanted = new Map<string, IWanted>();
    for (const session of this.services.sessions.running()) {
      const kernel = session.kernel;
      if (kernel && this.isPython(kernel.name)) {
        if (!wanted.has(kernel.id) || session.type === 'notebook') {
          const context = open.get(kernel.id);
          // A session that was just made has no path of its own yet.
          const path = context?.path ?? session.path;
          wanted.set(kernel.id, { session, path, open: context?.session?.kernel });
        }
      }
    }
    return wanted;
  }

  private isPython(name: string): boolean {
    const language = this.services.kernelspecs.specs?.kernelspecs[name]?.language;
    return !language || language.toLowerCase() === 'python';
  }

  private connect(session: Session.IModel): Kernel.IKernelConnection {
    const connection = this.services.kernels.connectTo({
      model: session.kernel!,
      handleComms: false
    });
    this.own.add(connection);
    return connection;
  }

  private forget(id: string): void {
    const connection = this.connected.get(id)?.connection;
    this.connected.delete(id);
    if (connection && this.own.delete(connection)) {
      // Who used it hears of its end by the `changed` signal first.
      setTimeout(() => connection.dispose(), 0);
    }
  }

  private contexts = new Set<ISessionContext>();
  private connected = new Map<string, IConnected>();
  private own = new Set<Kernel.IKernelConnection>();
  private _changed = new Signal<this, void>(this);
}

interface IWanted {
  readonly session: Session.IModel;
  readonly path: string;
  readonly open: Kernel.IKernelConnection | null | undefined;
}
