/** Notifications: one of each kind, brought up to date instead of piling up. */

import { Notification } from '@jupyterlab/apputils';
import type { INotebookTracker } from '@jupyterlab/notebook';

import type { INoticed, Model } from './model';
import { INotice, summed } from './reduce';
import type { ISettings } from './settings';

const LOOKS: Record<INotice['kind'], 'success' | 'error' | 'warning' | null> = {
  started: null,
  finished: 'success',
  failed: 'error',
  alert: 'warning'
};
const SAVE_AFTER_MS = 1_500; // the cell's panel is in the notebook by then

/** Tell what happens, as far as the user wants it. */
export function notify(
  model: Model,
  settings: () => ISettings,
  open: (noticed: INoticed) => void
): void {
  const shown = new Map<INotice['kind'], { id: string; all: INotice[] }>();
  model.noticed.connect((_, noticed) => {
    const { kind } = noticed.notice;
    const look = LOOKS[kind];
    if (!look || !isWanted(kind, settings())) {
      return;
    }
    const actions = [
      { label: 'Open panel', callback: () => open(noticed), displayType: 'accent' as const }
    ];
    const before = shown.get(kind);
    const all = [...(before?.all ?? []), noticed.notice];
    // It is no longer there to be updated if somebody has closed it: what it said was read.
    const updated =
      before && Notification.update({ id: before.id, message: summed(all), type: look, actions });
    if (before && updated) {
      shown.set(kind, { id: before.id, all });
    } else {
      const autoClose = kind === 'finished' ? 10_000 : (false as const);
      const id = Notification.emit(noticed.notice.text, look, { actions, autoClose });
      shown.set(kind, { id, all: [noticed.notice] });
    }
  });
  model.refused.connect((_, reason) => {
    Notification.error(reason, { autoClose: 8_000 });
  });
}

function isWanted(kind: INotice['kind'], settings: ISettings): boolean {
  return {
    started: false,
    finished: settings.notifyFinished,
    failed: settings.notifyFailed,
    alert: settings.notifyAlert
  }[kind];
}

/**
 * Save a notebook when its experiment starts: after a reload, JupyterLab finds a widget again only
 * if the saved notebook names it.
 */
export function saveOnStart(
  model: Model,
  notebooks: INotebookTracker,
  settings: () => ISettings
): void {
  model.noticed.connect((_, { kernel, notice }) => {
    if (notice.kind !== 'started' || !settings().saveNotebook) {
      return;
    }
    setTimeout(() => {
      const panel = notebooks.find(p => p.sessionContext.session?.kernel?.id === kernel.id);
      if (panel?.context.model.dirty && panel.context.contentsModel?.writable) {
        void panel.context.save();
      }
    }, SAVE_AFTER_MS);
  });
}
