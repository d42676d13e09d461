import {
  atStake,
  colours,
  duration,
  loss,
  NOTHING,
  notices,
  reduce,
  statusText,
  summed,
  toOpen
} from '../src/reduce';
import { brief, message, run } from './made';

test('changed runs replace theirs, and the others stay', () => {
  const first = reduce(NOTHING, message(1, [brief()]), 1000)!;
  const next = reduce(first, message(2, [brief({ runs: [run(2, { step: 5 })] })]), 1001)!;

  expect(next.experiments.get('/e/one')!.runs.map(r => r.step)).toEqual([4, 5]);
  expect(next.seq).toBe(2);
  expect(next.clockAhead).toBe(1);
});

test('an experiment that has gone is forgotten', () => {
  const first = reduce(NOTHING, message(1, [brief()]), 1000)!;
  const next = reduce(first, message(2, [], { gone: ['/e/one'] }), 1000)!;

  expect(next.experiments.size).toBe(0);
});

test('a gap asks for everything, and everything needs no number', () => {
  const first = reduce(NOTHING, message(1, [brief()]), 1000)!;

  expect(reduce(first, message(3, [brief()]), 1000)).toBeNull();
  expect(reduce(first, message(9, [brief()], { full: true }), 1000)!.seq).toBe(9);
  expect(reduce(NOTHING, message(2, [brief()]), 1000)).toBeNull();
});

test('a full message drops runs that are no longer there', () => {
  const first = reduce(NOTHING, message(1, [brief()]), 1000)!;
  const full = message(2, [brief({ runs: [run(1)] })], { full: true });

  expect(reduce(first, full, 1000)!.experiments.get('/e/one')!.runs).toHaveLength(1);
});

test('the status bar says how much is over, the share and the time left', () => {
  const done = run(5, { status: 'completed', progress: 1 });
  const five = [...[1, 2, 3, 4].map(id => run(id)), done];

  expect(statusText([brief({ runs: five, progress: 0.304 })])).toBe('RF 1/5 · 30 % · ETA 14 min');
  expect(statusText([brief(), brief({ key: '/e/two', progress: 0.9 })])).toBe(
    'RF 0/4 · 70 % · ETA 14 min'
  );
  expect(statusText([])).toBe('');
  expect(statusText([brief({ eta_s: null })])).toBe('RF 0/2 · 50 %');
  expect(statusText([brief({ state: 'paused' })])).toBe('RF 0/2 · 50 % · paused');
  expect(statusText([brief({ live: false, state: 'idle', runs: [done] })])).toBe('RF 1/1 · idle');
});

test('only what trains counts while something trains', () => {
  const over = brief({ key: '/e/two', live: false, state: 'idle' });

  expect(statusText([over, brief()])).toBe('RF 0/2 · 50 % · ETA 14 min');
});

test('each kind of notice comes when its change happens, and only then', () => {
  const kinds = (a: Parameters<typeof notices>[0], b: Parameters<typeof notices>[1]): string[] =>
    notices(a, b).map(notice => notice.kind);
  const failed = brief({ runs: [run(1), run(2, { status: 'failed', error: 'no memory' })] });
  const idle = brief({ state: 'idle', live: false });

  expect(kinds(undefined, brief())).toEqual(['started']);
  expect(kinds(undefined, idle)).toEqual([]);
  expect(kinds(brief(), brief())).toEqual([]);
  expect(kinds(brief(), failed)).toEqual(['failed']);
  expect(kinds(failed, failed)).toEqual([]);
  expect(notices(brief(), failed)[0].text).toBe('one: run 2 failed: no memory');
  expect(kinds(brief(), brief({ alerts: 1, alert: 'disk' }))).toEqual(['alert']);
  expect(kinds(brief(), idle)).toEqual(['finished']);
  expect(kinds(idle, idle)).toEqual([]);
  expect(kinds(brief({ state: 'paused' }), brief())).toEqual([]);
  expect(kinds(idle, brief())).toEqual(['started']);
});

test('what failed or finished between two messages is told, old news are not', () => {
  const failed = brief({ state: 'idle', live: false, runs: [run(1, { status: 'failed' })] });
  const born = brief({ runs: [run(1), run(2), run(3, { status: 'failed' })] });
  const kinds = (isNew: boolean, after = failed): string[] =>
    notices(undefined, after, isNew).map(notice => notice.kind);

  expect(notices(brief(), born).map(notice => notice.kind)).toEqual(['failed']);
  expect(kinds(true)).toEqual(['failed', 'finished']);
  expect(kinds(false)).toEqual([]);
  expect(kinds(true, { ...failed, state: 'ended' })).toEqual([]);
  expect(kinds(true, brief({ state: 'empty', live: false, runs: [] }))).toEqual([]);
});

test('the guard says what is unfinished and how old the last checkpoint is', () => {
  const none = brief({ name: 'two', checkpoint_time: null, eta_s: null, runs: [run(1)] });

  expect(atStake([brief(), none, brief({ live: false })], 1040)).toEqual([
    'one: 2 runs are unfinished, 14 min left; last checkpoint 40 s ago.',
    'two: 1 run is unfinished; there is no checkpoint yet.'
  ]);
});

test('times and losses read as people say them', () => {
  expect([0, 59, 60, 3540, 3600, 7500, 200000].map(duration)).toEqual([
    '0 s',
    '59 s',
    '1 min',
    '59 min',
    '1 h',
    '2 h 5 min',
    '2 d'
  ]);
  expect([2.123456, 'NaN', null, 0.00012345].map(loss)).toEqual(['2.123', 'NaN', '–', '0.0001234']);
});

test('a run has the colour of its number, or a free one; many runs have none', () => {
  const few = [1, 2, 9].map(id => run(id));
  const many = Array.from({ length: 9 }, (_, id) => run(id + 1));

  expect([...colours(few)]).toEqual([
    [1, 0],
    [2, 1],
    [9, 2]
  ]);
  expect(colours(many).size).toBe(0);
});

test('failures of several experiments are one sentence', () => {
  const fails = (id: number, ...ids: number[]): ReturnType<typeof notices> => {
    const name = `exp ${id}`;
    const runs = [1, 2, 3].map(n => run(n, ids.includes(n) ? { status: 'failed', error: 'x' } : {}));
    return notices(brief({ name, runs: [1, 2, 3].map(n => run(n)) }), brief({ name, runs }));
  };

  expect(summed(fails(1, 2))).toBe('exp 1: run 2 failed: x');
  expect(summed([...fails(1, 2), ...fails(2, 1, 3)])).toBe(
    '3 runs failed, last: exp 2: runs 1, 3 failed'
  );
});

test('the experiment of the notebook in front is opened without a question', () => {
  const one = (id: string, name: string, live: boolean): { kernel: { id: string }; brief: any } => ({
    kernel: { id },
    brief: { name, live }
  });
  const [a, b, c, d] = [
    one('k1', 'a', true),
    one('k2', 'b', false),
    one('k3', 'c', true),
    one('k3', 'd', false)
  ];
  const all = [a, b, c, d];

  expect(toOpen(all, 'k2')).toEqual([b]);
  expect(toOpen(all, 'k3')).toEqual([c]);
  expect(toOpen(all, undefined)).toEqual([a, c]);
  expect(toOpen(all, 'no kernel of ours')).toEqual([a, c]);
  expect(toOpen([b, d], undefined)).toEqual([b, d]);
  const twice = one('k3', 'e', true);
  expect(toOpen([...all, twice], 'k3')).toEqual([c, twice, a]);
});
