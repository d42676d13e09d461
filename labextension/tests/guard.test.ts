// Only the question and the methods it wraps are under test; JupyterLab's dialogs are not loaded.
jest.mock('@jupyterlab/apputils', () => ({ Dialog: {}, showDialog: jest.fn() }));

import { Signal } from '@lumino/signaling';

import { Guard } from '../src/guard';
import type { Model } from '../src/model';
import { brief } from './made';

function setUp(enabled = true): {
  guard: Guard;
  asked: string[];
  answer: (yes: boolean) => void;
  end: () => void;
} {
  let live = [brief()];
  const model = {
    changed: new Signal<object, void>({}),
    live: (id: string) => (id === 'training' ? live : []),
    kernelTime: () => 1040
  };
  const asked: string[] = [];
  let yes = false;
  const guard = new Guard(
    model as unknown as Model,
    () => enabled,
    async action => {
      asked.push(action);
      return yes;
    }
  );
  return {
    guard,
    asked,
    answer: value => void (yes = value),
    end: () => {
      live = [];
      model.changed.emit();
      live = [brief()];
    }
  };
}

test('a kernel that trains nothing is ended unasked', async () => {
  const { guard, asked } = setUp();

  expect(await guard.allows(['other'], 'Restart')).toBe(true);
  expect(asked).toEqual([]);
});

test('a kernel that trains is ended only after a yes', async () => {
  const { guard, asked, answer } = setUp();

  expect(await guard.allows(['training', 'other'], 'Restart')).toBe(false);
  answer(true);
  expect(await guard.allows(['training'], 'Restart')).toBe(true);
  expect(asked).toEqual(['Restart', 'Restart']);
});

test('one yes is enough for the steps of one action, but not for later training', async () => {
  const { guard, asked, answer, end } = setUp();
  answer(true);

  await guard.allows(['training'], 'Close');
  await guard.allows(['training'], 'Shut down');
  expect(asked).toEqual(['Close']);
  end();
  await guard.allows(['training'], 'Restart');

  expect(asked).toEqual(['Close', 'Restart']);
});

test('the same question is not asked twice at once', async () => {
  const { guard, asked } = setUp();

  const both = await Promise.all([
    guard.allows(['training'], 'Shut down'),
    guard.allows(['training'], 'Shut down')
  ]);

  expect(both).toEqual([false, false]);
  expect(asked).toHaveLength(1);
});

test('switched off it never asks', async () => {
  const { guard, asked } = setUp(false);

  expect(await guard.allows(['training'], 'Restart')).toBe(true);
  expect(asked).toEqual([]);
});

test('managers and documents ask before they end a kernel', async () => {
  const { guard, answer } = setUp();
  const ended: string[] = [];
  const manager = (name: string): object => ({
    running: () => [{ id: 's', kernel: { id: 'training' } }, { id: 'training' }],
    shutdown: async (id: string) => void ended.push(`${name} ${id}`),
    shutdownAll: async () => void ended.push(`${name} all`)
  });
  const services = { kernels: manager('kernels'), sessions: manager('sessions') };
  const context = {
    session: { kernel: { id: 'training' } },
    restartKernel: async () => void ended.push('restart'),
    shutdown: async () => void ended.push('shutdown'),
    changeKernel: async () => void ended.push('change')
  };
  guard.watchServices(services as never);
  guard.watchContext(context as never);
  const all = async (): Promise<void> => {
    const { kernels, sessions } = services as never as Record<
      string,
      { shutdown(id: string): Promise<void>; shutdownAll(): Promise<void> }
    >;
    await kernels.shutdown('training');
    await sessions.shutdown('s');
    await kernels.shutdownAll();
    await sessions.shutdownAll();
    await context.restartKernel();
    await context.changeKernel();
    await context.shutdown();
  };

  await expect(all()).rejects.toThrow('The kernel was kept: it trains.');
  expect(ended).toEqual([]);
  answer(true);
  await all();
  expect(ended).toEqual([
    'kernels training',
    'sessions s',
    'kernels all',
    'sessions all',
    'restart',
    'change',
    'shutdown'
  ]);
});
