/** The extension: finds all experiments of all kernels, and wires the parts that show them. */

import {
  ILayoutRestorer,
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette, ISessionContext, ISessionContextDialogs } from '@jupyterlab/apputils';
import { IConsoleTracker } from '@jupyterlab/console';
import { IDocumentManager } from '@jupyterlab/docmanager';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';

import { Actions, addCommands } from './commands';
import { Connections } from './connections';
import { Guard } from './guard';
import { Link } from './link';
import { Model } from './model';
import { notify, saveOnStart } from './notices';
import { Panels } from './panel';
import { read } from './settings';
import { Sidebar, SIDEBAR_ID } from './sidebar';
import { StatusItem } from './status';

const PLUGIN_ID = 'rapidfire-jupyter:plugin';

const plugin: JupyterFrontEndPlugin<void> = {
  id: PLUGIN_ID,
  description: 'Experiments of all kernels: sidebar, status, panel, and a guard of live training.',
  autoStart: true,
  optional: [
    INotebookTracker,
    IConsoleTracker,
    IDocumentManager,
    ISettingRegistry,
    ISessionContextDialogs,
    ICommandPalette,
    IStatusBar,
    ILayoutRestorer
  ],
  activate
};

async function activate(
  app: JupyterFrontEnd,
  notebooks: INotebookTracker | null,
  consoles: IConsoleTracker | null,
  documents: IDocumentManager | null,
  registry: ISettingRegistry | null,
  dialogs: ISessionContextDialogs | null,
  palette: ICommandPalette | null,
  statusBar: IStatusBar | null,
  restorer: ILayoutRestorer | null
): Promise<void> {
  const loaded = await registry?.load(PLUGIN_ID).catch(() => undefined);
  const stored = loaded ?? null;
  const settings = (): ReturnType<typeof read> => read(stored);

  const model = new Model(() => settings().updateSeconds);
  const connections = new Connections(app.serviceManager);
  connections.changed.connect(() =>
    model.listen(connections.all, connection => {
      const rate = (): number => settings().updateSeconds;
      return new Link(connection, rate, () => model.lastSeq(connection.id));
    })
  );
  stored?.changed.connect(() => model.greet());

  const guard = new Guard(model, () => settings().guard);
  guard.watchCommands(app);
  guard.watchServices(app.serviceManager);
  if (dialogs) {
    guard.watchDialogs(dialogs);
  }
  const meet = (context: ISessionContext): void => {
    guard.watchContext(context);
    connections.follow(context);
  };
  notebooks?.forEach(panel => meet(panel.sessionContext));
  notebooks?.widgetAdded.connect((_, panel) => meet(panel.sessionContext));
  consoles?.forEach(panel => meet(panel.sessionContext));
  consoles?.widgetAdded.connect((_, panel) => meet(panel.sessionContext));

  const panels = new Panels(app, model, notebooks, documents);
  const front = (): string | undefined =>
    notebooks?.currentWidget?.sessionContext.session?.kernel?.id;
  const actions = new Actions(model, panels, settings, front);
  const sidebar = new Sidebar(model, actions);
  app.shell.add(sidebar, 'left', { rank: 650, type: 'RapidFire' });
  restorer?.add(sidebar, SIDEBAR_ID);
  addCommands(app, palette, actions, SIDEBAR_ID, settings, on => void stored?.set('guard', on));

  notify(model, settings, ({ kernel, notice }) => {
    const brief = kernel.experiments.find(item => item.key === notice.experiment);
    if (brief) {
      void actions.open(kernel, brief);
    }
  });
  if (notebooks) {
    saveOnStart(model, notebooks, settings);
  }
  if (statusBar) {
    const item = new StatusItem(model, () => void actions.openAny());
    statusBar.registerStatusItem('rapidfire:status', {
      item,
      align: 'left',
      rank: 40,
      isActive: () => item.isActive,
      activeStateChanged: model.changed
    });
  }
}

export default plugin;
