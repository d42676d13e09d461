/** What is known of a kernel's experiments, as pure functions of the messages it sent. */

import type { IBrief, IBriefRun, IExperiments } from './types';

const COLOURS = 8;

export interface IKnown {
  /** Number of the last message; 0 if there was none. */
  readonly seq: number;
  readonly experiments: ReadonlyMap<string, IBrief>;
  /** Seconds that this page's clock is ahead of the kernel's. */
  readonly clockAhead: number;
}

export const NOTHING: IKnown = { seq: 0, experiments: new Map(), clockAhead: 0 };

/**
 * What is known after a message; null if one is missing in between, so everything must be asked
 * for again.
 *
 * @param now Unix time of this page, in seconds.
 */
export function reduce(known: IKnown, message: IExperiments, now: number): IKnown | null {
  if (!message.full && message.seq !== known.seq + 1) {
    return null;
  }
  const experiments = new Map(message.full ? [] : known.experiments);
  for (const key of message.gone) {
    experiments.delete(key);
  }
  for (const item of message.experiments) {
    const before = experiments.get(item.key);
    experiments.set(item.key, { ...item, runs: merged(before?.runs ?? [], item.runs) });
  }
  return { seq: message.seq, experiments, clockAhead: now - message.time };
}

function merged(
  before: readonly IBriefRun[],
  changed: readonly IBriefRun[]
): readonly IBriefRun[] {
  const runs = new Map([...before, ...changed].map(run => [run.id, run]));
  return [...runs.values()].sort((a, b) => a.id - b.id);
}

/** Something a person may want to be told, wherever they look. */
export interface INotice {
  readonly kind: 'started' | 'finished' | 'failed' | 'alert';
  readonly experiment: string;
  readonly text: string;
  /** How many runs failed, or 1. */
  readonly count: number;
}

/**
 * What happened to an experiment between two states.
 *
 * @param isNew Whether an experiment without a state before has just come up in its kernel; else
 *   this page has just met it, and what it went through is old news.
 */
export function notices(
  before: IBrief | undefined,
  after: IBrief,
  isNew: boolean = false
): INotice[] {
  if (!before && isNew && after.state !== 'ended') {
    before = { ...after, state: 'empty', live: true, alerts: 0, runs: [] };
  }
  const found: INotice[] = [];
  const tell = (kind: INotice['kind'], text: string, count = 1): number =>
    found.push({ kind, experiment: after.key, text, count });
  const began = after.state === 'running' && before?.state !== 'running';
  if (began && before?.state !== 'paused') {
    tell('started', `${after.name} trains`);
  }
  if (!before) {
    return found;
  }
  const was = new Map(before.runs.map(run => [run.id, run.status]));
  const failed = after.runs.filter(
    run => run.status === 'failed' && was.get(run.id) !== 'failed'
  );
  if (failed.length === 1) {
    tell('failed', `${after.name}: run ${failed[0].id} failed: ${failed[0].error}`);
  } else if (failed.length) {
    const ids = failed.map(run => run.id).join(', ');
    tell('failed', `${after.name}: runs ${ids} failed`, failed.length);
  }
  if (after.alerts > before.alerts) {
    tell('alert', `${after.name}: ${after.alert}`);
  }
  const rests = after.state === 'idle' || after.state === 'ended';
  if (before.live && rests && after.runs.length) {
    const done = after.runs.filter(run => run.status === 'completed').length;
    tell('finished', `${after.name}: nothing is left to train; ${done} of ${runs(after)} finished`);
  }
  return found;
}

/** Notices of one kind that nobody has put away, in one: how many, and the newest. */
export function summed(all: readonly INotice[]): string {
  const newest = all[all.length - 1];
  if (all.length === 1) {
    return newest.text;
  }
  const count = all.reduce((sum, notice) => sum + notice.count, 0);
  const what = {
    started: 'experiments started',
    finished: 'experiments finished',
    failed: 'runs failed',
    alert: 'alerts'
  }[newest.kind];
  return `${count} ${what}, last: ${newest.text}`;
}

/** What is known of an experiment when one is to be opened. */
interface IOpenable {
  readonly kernel: { readonly id: string };
  readonly brief: { readonly live: boolean };
}

/**
 * The experiments to choose from when one is to be opened, the likeliest first; a single one needs
 * no question.
 *
 * @param front The kernel of the notebook in front.
 */
export function toOpen<T extends IOpenable>(all: readonly T[], front: string | undefined): T[] {
  const isLive = (one: T): boolean => one.brief.live;
  const here = all.filter(one => one.kernel.id === front);
  const likely = here.some(isLive) ? here.filter(isLive) : here;
  if (likely.length === 1) {
    return likely;
  }
  const others = all.filter(one => one.kernel.id !== front);
  return [...likely, ...(all.some(isLive) ? others.filter(isLive) : others)];
}

function runs(brief: IBrief): string {
  return brief.runs.length === 1 ? '1 run' : `${brief.runs.length} runs`;
}

/** The status bar's text, like "RF 3/12 · 34 % · ETA 14 min"; "" without experiments. */
export function statusText(briefs: readonly IBrief[]): string {
  const live = briefs.filter(brief => brief.live);
  const told = live.length ? live : briefs.slice(-1);
  const all = told.flatMap(brief => brief.runs);
  if (!told.length || !all.length) {
    return '';
  }
  const over = all.filter(run => !isActive(run)).length;
  const parts = [`RF ${over}/${all.length}`];
  if (!live.length) {
    return `${parts[0]} · ${told[0].state}`;
  }
  const shares = live.map(brief => brief.progress * brief.runs.length);
  const share = shares.reduce((sum, one) => sum + one, 0) / all.length;
  parts.push(percent(share));
  const etas = live.map(brief => brief.eta_s);
  if (live.every(brief => brief.state === 'paused')) {
    parts.push('paused');
  } else if (etas.every(eta => eta !== null)) {
    parts.push(`ETA ${duration(Math.max(...(etas as number[])))}`);
  }
  return parts.join(' · ');
}

/** The place of each run's colour in the palette, as in the panel; none if there are too many. */
export function colours(runs: readonly IBriefRun[]): ReadonlyMap<number, number> {
  const slots = new Map<number, number>();
  if (runs.length > COLOURS) {
    return slots; // the panel colours the best of a metric then
  }
  const free = new Set(Array.from({ length: COLOURS }, (_, slot) => slot));
  for (const run of runs) {
    const own = (run.id - 1 + COLOURS) % COLOURS;
    if (free.delete(own)) {
      slots.set(run.id, own);
    }
  }
  for (const run of runs) {
    if (!slots.has(run.id)) {
      const slot = [...free][0];
      free.delete(slot);
      slots.set(run.id, slot);
    }
  }
  return slots;
}

export function isActive(run: IBriefRun): boolean {
  return run.status === 'queued' || run.status === 'running' || run.status === 'paused';
}

export function percent(share: number): string {
  return `${Math.floor(share * 100)} %`;
}

/** Seconds as people say them: "40 s", "14 min", "2 h 5 min", "3 d". */
export function duration(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) {
    return `${whole} s`;
  }
  const minutes = Math.round(whole / 60);
  if (minutes < 60) {
    return `${minutes} min`;
  }
  const hours = Math.floor(minutes / 60);
  if (hours >= 48) {
    return `${Math.round(hours / 24)} d`;
  }
  return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
}

/** A loss with four figures; non-finite ones by name. */
export function loss(value: number | string | null): string {
  if (value === null) {
    return '–';
  }
  return typeof value === 'string' ? value : value.toPrecision(4);
}

/**
 * What would be lost if a kernel ended now, for the guard's dialog.
 *
 * @param now Unix time by the kernel's clock, in seconds.
 */
export function atStake(briefs: readonly IBrief[], now: number): string[] {
  return briefs
    .filter(brief => brief.live)
    .map(brief => {
      const active = brief.runs.filter(isActive).length;
      const training = `${brief.name}: ${active} ${active === 1 ? 'run is' : 'runs are'} unfinished`;
      const eta = brief.eta_s === null ? '' : `, ${duration(brief.eta_s)} left`;
      const saved =
        brief.checkpoint_time === null
          ? 'there is no checkpoint yet'
          : `last checkpoint ${duration(now - brief.checkpoint_time)} ago`;
      return `${training}${eta}; ${saved}.`;
    });
}
