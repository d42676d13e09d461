/** An experiment's panel in the main area: its widget, drawn by the widget manager of its notebook. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import { MainAreaWidget } from '@jupyterlab/apputils';
import type { IDocumentManager } from '@jupyterlab/docmanager';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { MimeModel } from '@jupyterlab/rendermime';

import { rapidfireIcon } from './icon';
import type { IKernel, Model } from './model';
import type { IBrief } from './types';

const WIDGET_MIME = 'application/vnd.jupyter.widget-view+json';

export class Panels {
  constructor(
    private app: JupyterFrontEnd,
    private model: Model,
    private notebooks: INotebookTracker | null,
    private documents: IDocumentManager | null
  ) {}

  /**
   * Show an experiment's panel; one that is open is brought to front.
   *
   * @throws Error with a sentence for the user if it cannot be shown.
   */
  async open(kernel: IKernel, brief: IBrief): Promise<void> {
    const key = `${kernel.id} ${brief.key}`;
    const shown = this.shown.get(key);
    if (shown && !shown.isDisposed) {
      this.app.shell.activateById(shown.id);
      return;
    }
    const notebook = this.notebook(kernel) ?? (await this.openNotebook(kernel));
    await notebook.sessionContext.ready;
    const { rendermime } = notebook.content;
    if (!rendermime.mimeTypes.includes(WIDGET_MIME)) {
      throw new Error('The panel needs Jupyter widgets: pip install ipywidgets, then reload.');
    }
    const answer = await this.model.openPanel(kernel.id, brief.key);
    if (!answer.model) {
      throw new Error(`The panel cannot be opened: ${answer.error}`);
    }
    const data = { model_id: answer.model, version_major: 2, version_minor: 0 };
    const content = rendermime.createRenderer(WIDGET_MIME);
    content.addClass('rf-Panel');
    const widget = new MainAreaWidget({ content });
    widget.id = `rapidfire-panel-${(this.count += 1)}`;
    widget.title.label = brief.name;
    widget.title.caption = `${brief.name} (${kernel.path})`;
    widget.title.icon = rapidfireIcon;
    widget.title.closable = true;
    this.shown.set(key, widget);
    widget.disposed.connect(() => this.shown.delete(key));
    notebook.disposed.connect(() => widget.dispose());
    this.app.shell.add(widget, 'main', { mode: 'split-right', ref: notebook.id });
    this.app.shell.activateById(widget.id);
    await content.renderModel(new MimeModel({ data: { [WIDGET_MIME]: data } }));
  }

  private notebook(kernel: IKernel): NotebookPanel | undefined {
    return this.notebooks?.find(
      panel => panel.sessionContext.session?.kernel?.id === kernel.id
    );
  }

  /** The widget manager belongs to an open notebook, so the kernel's notebook is opened first. */
  private async openNotebook(kernel: IKernel): Promise<NotebookPanel> {
    const opened =
      kernel.type === 'notebook' && this.notebooks
        ? this.documents?.openOrReveal(kernel.path)
        : undefined;
    if (!opened) {
      throw new Error(
        'The panel needs an open notebook of this kernel. ' +
          'In a console, run %rapidfire panel instead.'
      );
    }
    await opened.context.ready;
    return opened as unknown as NotebookPanel;
  }

  private shown = new Map<string, MainAreaWidget>();
  private count = 0;
}
