/** Commands of palette, shortcuts, sidebar and notifications. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Dialog, ICommandPalette, InputDialog, Notification, showDialog } from '@jupyterlab/apputils';

import { rapidfireIcon } from './icon';
import type { IKernel, Model } from './model';
import type { Panels } from './panel';
import { toOpen } from './reduce';
import type { ISettings } from './settings';
import type { IBrief, OrderKind } from './types';

export const Commands = {
  openPanel: 'rapidfire:open-panel',
  showRuns: 'rapidfire:show-runs',
  pauseAll: 'rapidfire:pause-all',
  resumeAll: 'rapidfire:resume-all',
  toggleGuard: 'rapidfire:toggle-guard'
} as const;

/** One experiment, with the kernel it is in. */
interface IFound {
  readonly kernel: IKernel;
  readonly brief: IBrief;
}

export class Actions {
  constructor(
    private model: Model,
    private panels: Panels,
    private settings: () => ISettings,
    private front: () => string | undefined
  ) {}

  /** Do an op and show why if it is refused. */
  async order(
    kernel: IKernel,
    brief: IBrief,
    kind: OrderKind,
    run: number | null = null,
    weight?: number
  ): Promise<void> {
    if (kind === 'stop' && this.settings().confirm === 'stop' && !(await sure(brief, run))) {
      return;
    }
    const args = weight === undefined ? {} : { weight };
    const ack = await this.model.order(kernel.id, brief.key, kind, run, args);
    if (ack.status === 'refused') {
      Notification.error(ack.reason, { autoClose: 8_000 });
    }
  }

  /** Open an experiment's panel and show why if it cannot be. */
  async open(kernel: IKernel, brief: IBrief): Promise<void> {
    try {
      await this.panels.open(kernel, brief);
    } catch (error) {
      Notification.warning((error as Error).message, { autoClose: 8_000 });
    }
  }

  /** Open the panel of the notebook in front, or of what trains; asks which if there are several. */
  async openAny(): Promise<void> {
    const choices = toOpen(this.found(), this.front());
    if (!choices.length) {
      Notification.info('No running kernel has an experiment yet.', { autoClose: 4_000 });
      return;
    }
    const one = choices.length === 1 ? choices[0] : await choose(choices);
    if (one) {
      await this.open(one.kernel, one.brief);
    }
  }

  /** Pause or resume every experiment that can be. */
  async everywhere(kind: 'pause_all' | 'resume_all'): Promise<void> {
    const from = kind === 'pause_all' ? 'running' : 'paused';
    const meant = this.found().filter(({ brief }) => brief.state === from);
    await Promise.all(meant.map(({ kernel, brief }) => this.order(kernel, brief, kind)));
  }

  private found(): IFound[] {
    return this.model.kernels.flatMap(kernel =>
      kernel.experiments.map(brief => ({ kernel, brief }))
    );
  }
}

async function choose(choices: IFound[]): Promise<IFound | undefined> {
  const items = choices.map(({ kernel, brief }) => `${brief.name} (${kernel.path})`);
  const result = await InputDialog.getItem({ title: 'Open the panel of', items });
  return result.button.accept ? choices[items.indexOf(result.value ?? '')] : undefined;
}

async function sure(brief: IBrief, run: number | null): Promise<boolean> {
  const result = await showDialog({
    title: `Stop run ${run} of ${brief.name}?`,
    body: 'It is saved and can be resumed.',
    buttons: [Dialog.cancelButton(), Dialog.okButton({ label: 'Stop' })]
  });
  return result.button.accept;
}

/** Register the commands, and list them in the palette. */
export function addCommands(
  app: JupyterFrontEnd,
  palette: ICommandPalette | null,
  actions: Actions,
  sidebarId: string,
  settings: () => ISettings,
  setGuard: (on: boolean) => void
): void {
  const { commands } = app;
  commands.addCommand(Commands.openPanel, {
    label: 'Open Experiment Panel',
    icon: rapidfireIcon,
    execute: () => actions.openAny()
  });
  commands.addCommand(Commands.showRuns, {
    label: 'Show Experiments',
    icon: rapidfireIcon,
    execute: () => app.shell.activateById(sidebarId)
  });
  commands.addCommand(Commands.pauseAll, {
    label: 'Pause All Training',
    execute: () => actions.everywhere('pause_all')
  });
  commands.addCommand(Commands.resumeAll, {
    label: 'Resume All Training',
    execute: () => actions.everywhere('resume_all')
  });
  commands.addCommand(Commands.toggleGuard, {
    label: 'Ask Before Training Is Cut Off',
    isToggled: () => settings().guard,
    execute: () => setGuard(!settings().guard)
  });
  for (const command of Object.values(Commands)) {
    palette?.addItem({ command, category: 'RapidFire' });
  }
}
