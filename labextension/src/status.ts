/** The status bar's item: how far everything is, at a glance; a click opens the panel. */

import { Widget } from '@lumino/widgets';

import type { Model } from './model';
import { statusText } from './reduce';

export class StatusItem extends Widget {
  constructor(
    private model: Model,
    open: () => void
  ) {
    super();
    this.addClass('rf-StatusItem');
    this.button = document.createElement('button');
    this.button.type = 'button';
    this.button.addEventListener('click', open);
    this.node.appendChild(this.button);
    model.changed.connect(this.refresh, this);
    this.refresh();
  }

  /** Whether there is anything to say. */
  get isActive(): boolean {
    return this.button.textContent !== '';
  }

  dispose(): void {
    this.model.changed.disconnect(this.refresh, this);
    super.dispose();
  }

  private refresh(): void {
    const briefs = this.model.kernels.flatMap(kernel => kernel.experiments);
    const text = statusText(briefs);
    if (this.button.textContent !== text) {
      this.button.textContent = text;
      this.button.title = [
        ...briefs.map(brief => `${brief.name}: ${brief.state}`),
        'Runs that are over / all runs. Click to open the panel.'
      ].join('\n');
    }
  }

  private button: HTMLButtonElement;
}
