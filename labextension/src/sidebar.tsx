/** The sidebar: every experiment of every running kernel, its runs, and what can be done to them. */

import { ReactWidget, UseSignal } from '@jupyterlab/ui-components';
import * as React from 'react';

import type { Actions } from './commands';
import { rapidfireIcon } from './icon';
import type { IKernel, Model } from './model';
import { duration, isActive, loss, percent } from './reduce';
import type { IBrief, IBriefRun } from './types';

export const SIDEBAR_ID = 'rapidfire-sidebar';
const COLOURED = 8; // as many as there are colours; later runs are grey

export class Sidebar extends ReactWidget {
  constructor(
    private model: Model,
    private actions: Actions
  ) {
    super();
    this.id = SIDEBAR_ID;
    this.title.icon = rapidfireIcon;
    this.title.caption = 'Experiments (RapidFire)';
    this.addClass('rf-Sidebar');
  }

  protected render(): React.JSX.Element {
    return (
      <UseSignal signal={this.model.changed}>
        {() => <Kernels kernels={this.model.kernels} actions={this.actions} />}
      </UseSignal>
    );
  }
}

function Kernels(props: { kernels: IKernel[]; actions: Actions }): React.JSX.Element {
  if (!props.kernels.length) {
    return (
      <div className="rf-Empty">
        <p>No running kernel has an experiment.</p>
        <p>
          One appears here as soon as a notebook calls <code>Experiment(…)</code>.
        </p>
      </div>
    );
  }
  return (
    <div className="rf-Kernels">
      {props.kernels.map(kernel =>
        kernel.experiments.map(brief => (
          <Experiment
            key={`${kernel.id} ${brief.key}`}
            kernel={kernel}
            brief={brief}
            actions={props.actions}
          />
        ))
      )}
    </div>
  );
}

interface IExperimentProps {
  kernel: IKernel;
  brief: IBrief;
  actions: Actions;
}

function Experiment({ kernel, brief, actions }: IExperimentProps): React.JSX.Element {
  const paused = brief.state === 'paused';
  return (
    <section className="rf-Experiment" aria-label={`Experiment ${brief.name}`}>
      <header>
        <h3 title={brief.name}>{brief.name}</h3>
        {brief.live && !brief.reason && (
          <Button
            label={paused ? 'Resume all' : 'Pause all'}
            glyph={paused ? '▶' : '⏸'}
            act={() => actions.order(kernel, brief, paused ? 'resume_all' : 'pause_all')}
          />
        )}
        <Button label="Open panel" glyph="↗" act={() => actions.open(kernel, brief)} />
      </header>
      <p className="rf-Where" title={kernel.path}>
        {kernel.path}
      </p>
      <Progress share={brief.progress} label={`Progress of ${brief.name}`} />
      <p className="rf-Summary">{summary(brief)}</p>
      {brief.reason && <p className="rf-Reason">{brief.reason}</p>}
      <ul>
        {brief.runs.map((run, index) => (
          <Run key={run.id} run={run} index={index} {...{ kernel, brief, actions }} />
        ))}
      </ul>
    </section>
  );
}

function summary(brief: IBrief): string {
  const over = brief.runs.filter(run => !isActive(run)).length;
  const parts = [brief.state, `${over} of ${brief.runs.length} over`, percent(brief.progress)];
  if (brief.state === 'running' && brief.eta_s !== null) {
    parts.push(`${duration(brief.eta_s)} left`);
  }
  if (brief.alerts) {
    parts.push(brief.alerts === 1 ? '1 alert' : `${brief.alerts} alerts`);
  }
  return parts.join(' · ');
}

function Run(props: IExperimentProps & { run: IBriefRun; index: number }): React.JSX.Element {
  const { kernel, brief, actions, run, index } = props;
  const colour = index < COLOURED ? `var(--rf-run-${index})` : 'var(--jp-ui-font-color3)';
  const may = brief.reason === '' && brief.state !== 'ended';
  const order = (kind: 'stop' | 'resume' | 'boost', weight?: number): Promise<void> =>
    actions.order(kernel, brief, kind, run.id, weight);
  return (
    <li className={`rf-Run rf-mod-${run.status}`} aria-label={`Run ${run.id}, ${run.status}`}>
      <span className="rf-Dot" style={{ background: colour }} />
      <span className="rf-Id">{run.id}</span>
      <span className="rf-Name" title={run.error || run.name}>
        {run.name}
      </span>
      <span className="rf-Loss" title="Last train loss">
        {loss(run.loss)}
      </span>
      <Progress share={run.progress} label={`Progress of run ${run.id}`} />
      <span className="rf-Status" title={run.error || undefined}>
        {status(run)}
      </span>
      <span className="rf-Buttons">
        {may && isActive(run) && (
          <>
            <Button
              label={`Boost run ${run.id}: twice the share`}
              glyph="»"
              act={() => order('boost', run.weight * 2)}
            />
            <Button label={`Stop run ${run.id}`} glyph="■" act={() => order('stop')} />
          </>
        )}
        {may && (run.status === 'stopped' || run.status === 'failed') && (
          <Button label={`Resume run ${run.id}`} glyph="▶" act={() => order('resume')} />
        )}
      </span>
    </li>
  );
}

function status(run: IBriefRun): string {
  const parts: string[] = [run.status];
  if (isActive(run) && run.total_steps) {
    parts.push(`${run.step}/${run.total_steps}`);
  }
  if (run.weight !== 1) {
    parts.push(`×${Number(run.weight.toPrecision(3))}`);
  }
  if (run.eta_s !== null && run.status === 'running') {
    parts.push(duration(run.eta_s));
  }
  return parts.join(' · ');
}

function Progress(props: { share: number; label: string }): React.JSX.Element {
  return <progress value={props.share} max={1} aria-label={props.label} />;
}

interface IButtonProps {
  label: string;
  glyph: string;
  act: () => Promise<void>;
}

/** A button that waits for its answer before it can be pressed again. */
function Button({ label, glyph, act }: IButtonProps): React.JSX.Element {
  const [busy, setBusy] = React.useState(false);
  const press = (): void => {
    setBusy(true);
    void act().finally(() => setBusy(false));
  };
  return (
    <button type="button" title={label} aria-label={label} disabled={busy} onClick={press}>
      {glyph}
    </button>
  );
}
