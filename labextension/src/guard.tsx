/**
 * Asks before a kernel with live training is restarted, shut down or changed.
 *
 * A courtesy: what was trained is safe without it. It wraps JupyterLab's methods while the page
 * runs, so a way that is not listed here goes through unasked.
 */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Dialog, ISessionContext, ISessionContextDialogs, showDialog } from '@jupyterlab/apputils';
import type { ServiceManager } from '@jupyterlab/services';
import * as React from 'react';

import type { Model } from './model';
import { atStake } from './reduce';

const APPROVED_MS = 30_000;
/** Commands that end the kernel of the document in front, and then close it. */
const ENDING: ReadonlySet<string> = new Set([
  'notebook:shutdown-kernel',
  'notebook:close-and-shutdown',
  'console:close-and-shutdown',
  'console:shutdown',
  'kernelmenu:shutdown',
  'filemenu:close-and-cleanup'
]);
/** The command that ends every kernel, with the server. */
const ENDING_ALL = 'filemenu:shutdown';

export class Guard {
  constructor(
    private model: Model,
    private enabled: () => boolean,
    private ask: (action: string, stake: string[]) => Promise<boolean> = askUser
  ) {
    model.changed.connect(() => {
      for (const id of [...this.approved.keys()]) {
        if (!model.live(id).length) {
          this.approved.delete(id);
        }
      }
    });
  }

  /** Whether these kernels may be ended; asks if one of them trains and it was not just asked. */
  async allows(kernelIds: readonly string[], action: string): Promise<boolean> {
    const training = kernelIds.filter(
      id => this.model.live(id).length && !((this.approved.get(id) ?? 0) > Date.now())
    );
    if (!this.enabled() || !training.length) {
      return true;
    }
    const key = training.join();
    const asked = this.asking.get(key) ?? this.askOnce(key, training, action);
    return asked;
  }

  private async askOnce(key: string, ids: string[], action: string): Promise<boolean> {
    const stake = ids.flatMap(id => atStake(this.model.live(id), this.model.kernelTime(id)));
    const answer = this.ask(action, stake);
    this.asking.set(key, answer);
    try {
      const yes = await answer;
      if (yes) {
        ids.forEach(id => this.approved.set(id, Date.now() + APPROVED_MS));
      }
      return yes;
    } finally {
      this.asking.delete(key);
    }
  }

  /** Ask before commands that also close a document: refused, they must do nothing at all. */
  watchCommands(app: JupyterFrontEnd): void {
    const { commands } = app;
    const execute = commands.execute.bind(commands);
    commands.execute = async (id: string, args?) => {
      const all = id === ENDING_ALL;
      if (all || ENDING.has(id)) {
        const running = [...app.serviceManager.kernels.running()].map(kernel => kernel.id);
        const front = kernelOf(app.shell.currentWidget);
        const ending = all ? running : front ? [front] : [];
        if (!(await this.allows(ending, all ? 'Shut down the server' : 'Shut down the kernel'))) {
          return undefined;
        }
      }
      return execute(id, args);
    };
  }

  /** Ask instead of JupyterLab's own question; all restart commands come by here. */
  watchDialogs(dialogs: ISessionContextDialogs): void {
    const restart = dialogs.restart.bind(dialogs);
    dialogs.restart = async context => {
      const id = context.session?.kernel?.id ?? '';
      if (!this.enabled() || !this.model.live(id).length) {
        return restart(context);
      }
      if (!(await this.allows([id], 'Restart the kernel'))) {
        return false;
      }
      await context.restartKernel();
      return true;
    };
  }

  /** Ask before an open document's kernel is ended or changed, by whatever code. */
  watchContext(context: ISessionContext): void {
    const restart = context.restartKernel.bind(context);
    const shutdown = context.shutdown.bind(context);
    const change = context.changeKernel.bind(context);
    const ids = (): string[] => (context.session?.kernel ? [context.session.kernel.id] : []);
    context.restartKernel = async () => {
      if (await this.allows(ids(), 'Restart the kernel')) {
        await restart();
      }
    };
    context.shutdown = async () => {
      if (!(await this.allows(ids(), 'Shut down the kernel'))) {
        throw new Error('The kernel was kept: it trains.');
      }
      await shutdown();
    };
    context.changeKernel = async options => {
      const kept = context.session?.kernel ?? null;
      return (await this.allows(ids(), 'Change the kernel')) ? change(options) : kept;
    };
  }

  /** Ask before the running panel, or other code, ends kernels by their managers. */
  watchServices(services: ServiceManager.IManager): void {
    const { kernels, sessions } = services;
    const action = 'Shut down the kernel';
    const all = (): string[] => [...kernels.running()].map(kernel => kernel.id);
    const end = sessions.shutdown.bind(sessions);
    sessions.shutdown = async id => {
      const session = [...sessions.running()].find(model => model.id === id);
      if (await this.allows(session?.kernel ? [session.kernel.id] : [], action)) {
        await end(id);
      }
    };
    const endKernel = kernels.shutdown.bind(kernels);
    kernels.shutdown = async id => {
      if (await this.allows([id], action)) {
        await endKernel(id);
      }
    };
    for (const manager of [sessions, kernels]) {
      const endAll = manager.shutdownAll.bind(manager);
      manager.shutdownAll = async () => {
        if (await this.allows(all(), 'Shut down all kernels')) {
          await endAll();
        }
      };
    }
  }

  private approved = new Map<string, number>();
  private asking = new Map<string, Promise<boolean>>();
}

function kernelOf(widget: unknown): string | undefined {
  return (widget as { sessionContext?: ISessionContext } | null)?.sessionContext?.session?.kernel
    ?.id;
}

async function askUser(action: string, stake: string[]): Promise<boolean> {
  const result = await showDialog({
    title: `${action} while it trains?`,
    body: (
      <div className="rf-Guard">
        {stake.map(line => (
          <p key={line}>{line}</p>
        ))}
        <p>
          Nothing up to a run&rsquo;s last checkpoint is lost: run the same cells again and training
          goes on from there.
        </p>
      </div>
    ),
    buttons: [
      Dialog.cancelButton({ label: 'Keep training' }),
      Dialog.warnButton({ label: action })
    ],
    defaultButton: 0
  });
  return result.button.accept;
}
