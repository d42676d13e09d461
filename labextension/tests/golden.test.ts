import { readFileSync } from 'fs';
import { join } from 'path';

import { IExperiments, parse } from '../src/types';

const golden = JSON.parse(
  readFileSync(join(__dirname, '../../tests/golden/comm.json'), 'utf-8')
) as Record<string, unknown>;

test.each(['Experiments', 'Ack', 'Model', 'Pong'])('a message of the kernel is read: %s', name => {
  expect(parse(golden[name])).toEqual(golden[name]);
});

test.each([null, 'text', 3, [], {}, { type: 'experiments', seq: 1 }, { type: 'ack', id: 3 }])(
  'what is no message is passed over: %p',
  data => {
    expect(parse(data)).toBeNull();
  }
);

test('the mirror of types names every field of the golden messages', () => {
  // Written out by type: a field that one side adds or drops does not compile or does not match.
  const message: IExperiments = {
    type: 'experiments',
    seq: 1,
    time: 1750000000.5,
    full: true,
    experiments: [
      {
        key: '/home/me/rapidfire_experiments/support-bot',
        name: 'support-bot',
        state: 'running',
        live: true,
        reason: '',
        progress: 0.375,
        eta_s: 840,
        checkpoint_time: 1749999960.5,
        alerts: 1,
        alert: 'disk is nearly full',
        runs: [
          {
            id: 1,
            name: 'r=8, lr=0.001',
            status: 'running',
            progress: 0.75,
            step: 6,
            total_steps: 8,
            checkpoint_step: 4,
            eta_s: 420,
            loss: 2.125,
            weight: 1,
            error: ''
          },
          {
            id: 2,
            name: '<script>alert(1)</script>',
            status: 'failed',
            progress: 0,
            step: 0,
            total_steps: null,
            checkpoint_step: null,
            eta_s: null,
            loss: 'NaN',
            weight: 2,
            error: 'ValueError: <img src=x onerror=alert(1)>'
          }
        ]
      }
    ],
    gone: ['/home/me/rapidfire_experiments/older']
  };
  expect(golden.Experiments).toEqual(message);
});
