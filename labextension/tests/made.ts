/** Briefs and messages for the tests. */

import type { IBrief, IBriefRun, IExperiments } from '../src/types';

export function run(id: number, given: Partial<IBriefRun> = {}): IBriefRun {
  return {
    id,
    name: `run ${id}`,
    status: 'running',
    progress: 0.5,
    step: 4,
    total_steps: 8,
    checkpoint_step: 4,
    eta_s: 60,
    loss: 2,
    weight: 1,
    error: '',
    ...given
  };
}

export function brief(given: Partial<IBrief> = {}): IBrief {
  return {
    key: '/e/one',
    name: 'one',
    state: 'running',
    live: true,
    reason: '',
    progress: 0.5,
    eta_s: 840,
    checkpoint_time: 1000,
    alerts: 0,
    alert: '',
    runs: [run(1), run(2)],
    ...given
  };
}

export function message(
  seq: number,
  experiments: IBrief[],
  given: Partial<IExperiments> = {}
): IExperiments {
  return { type: 'experiments', seq, time: 1000, full: seq === 1, experiments, gone: [], ...given };
}
