/** The sidebar: every experiment of every running kernel, its runs, and what can be done to them. */

import { ReactWidget, UseSignal } from '@jupyterlab/ui-components';
import * as React from 'react';

import type { Actions } from './commands';
import { rapidfireIcon } from './icon';
import type { IKernel, Model } from './model';
import { colours, duration, isActive, loss, percent } from './reduce';
import type { IBrief, IBriefRun } from './types';

export const SIDEBAR_ID = 'rapidfire-sidebar';

const SHAPES = {
  pause: 'M7 5h3.5v14H7zM13.5 5H17v14h-3.5z',
  play: 'M8 5v14l11-7z',
  stop: 'M6 6h12v12H6z',
  normal: 'M5 11h14v2H5z',
  boost: 'M4 5v14l8-7zM12 5v14l8-7z',
  open: 'M14 3v2h3.6l-9.8 9.8 1.4 1.4L19 6.4V10h2V3zM5 5h5V3H3v18h18v-7h-2v5H5z'
};

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
  const slots = colours(brief.runs);
  return (
    <section className="rf-Experiment" aria-label={`Experiment ${brief.name}`}>
      <header>
        <h3 title={brief.name}>{brief.name}</h3>
        {brief.live && !brief.reason && (
          <Button
            label={paused ? 'Resume all' : 'Pause all'}
            shape={paused ? 'play' : 'pause'}
            act={() => actions.order(kernel, brief, paused ? 'resume_all' : 'pause_all')}
          />
        )}
        <Button label="Open panel" shape="open" act={() => actions.open(kernel, brief)} />
      </header>
      <p className="rf-Where" title={kernel.path}>
        {kernel.path}
      </p>
      <Progress share={brief.progress} label={`Progress of ${brief.name}`} />
      <p className="rf-Summary">{summary(brief)}</p>
      {brief.reason && <p className="rf-Reason">{brief.reason}</p>}
      <ul>
        {brief.runs.map(run => (
          <Run key={run.id} run={run} slot={slots.get(run.id)} {...{ kernel, brief, actions }} />
        ))}
      </ul>
    </section>
  );
}

function summary(brief: IBrief): string {
  if (!brief.runs.length) {
    return `${brief.state} · no runs yet`;
  }
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

function Run(props: IExperimentProps & { run: IBriefRun; slot?: number }): React.JSX.Element {
  const { kernel, brief, actions, run, slot } = props;
  const colour = slot === undefined ? 'var(--jp-ui-font-color3)' : `var(--rf-run-${slot})`;
  const may = brief.reason === '' && brief.state !== 'ended';
  const order = (kind: 'stop' | 'resume' | 'boost', weight?: number): Promise<void> =>
    actions.order(kernel, brief, kind, run.id, weight);
  return (
    <li className={`rf-Run rf-mod-${run.status}`} aria-label={`Run ${run.id}, ${run.status}`}>
      <div className="rf-Row">
        <span className="rf-Dot" style={{ background: colour }} />
        <span className="rf-Id">{run.id}</span>
        <span className="rf-Name" title={run.name}>
          {run.name}
        </span>
        <span className="rf-Loss" title="Last train loss">
          {loss(run.loss)}
        </span>
      </div>
      <Progress share={run.progress} label={`Progress of run ${run.id}`} />
      <div className="rf-Row">
        <span className="rf-Status" title={details(run)}>
          {status(run)}
        </span>
        {may && isActive(run) && (
          <>
            {run.weight !== 1 && (
              <Button
                label={`Run ${run.id}: back to its normal share`}
                shape="normal"
                act={() => order('boost', 1)}
              />
            )}
            <Button
              label={`Boost run ${run.id}: twice the share`}
              shape="boost"
              act={() => order('boost', run.weight * 2)}
            />
            <Button label={`Stop run ${run.id}`} shape="stop" act={() => order('stop')} />
          </>
        )}
        {may && (run.status === 'stopped' || run.status === 'failed') && (
          <Button label={`Resume run ${run.id}`} shape="play" act={() => order('resume')} />
        )}
      </div>
      {run.error && (
        <p className="rf-Error" title={run.error}>
          {run.error}
        </p>
      )}
    </li>
  );
}

function status(run: IBriefRun): string {
  const plain = run.weight === 1 || run.status === 'completed';
  const weight = plain ? '' : ` ×${Number(run.weight.toPrecision(3))}`;
  const left = isActive(run) && run.eta_s !== null ? ` · ${duration(run.eta_s)}` : '';
  return `${run.status}${weight}${left}`;
}

/** What the status line leaves out. */
function details(run: IBriefRun): string {
  const steps = `step ${run.step}${run.total_steps ? ` of ${run.total_steps}` : ''}`;
  const saved = run.checkpoint_step === null ? '' : `, saved at step ${run.checkpoint_step}`;
  const left = isActive(run) && run.eta_s !== null ? `, ${duration(run.eta_s)} left` : '';
  return `${steps}, ${percent(run.progress)}${saved}${left}`;
}

function Progress(props: { share: number; label: string }): React.JSX.Element {
  return <progress value={props.share} max={1} aria-label={props.label} />;
}

interface IButtonProps {
  label: string;
  shape: keyof typeof SHAPES;
  act: () => Promise<void>;
}

/** A button that waits for its answer before it can be pressed again. */
function Button({ label, shape, act }: IButtonProps): React.JSX.Element {
  const [busy, setBusy] = React.useState(false);
  const press = (): void => {
    setBusy(true);
    void act().finally(() => setBusy(false));
  };
  return (
    <button type="button" title={label} aria-label={label} disabled={busy} onClick={press}>
      <svg viewBox="0 0 24 24" width="14" height="14" aria-hidden="true">
        <path d={SHAPES[shape]} fill="currentColor" />
      </svg>
    </button>
  );
}
