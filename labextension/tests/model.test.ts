import type { Kernel } from '@jupyterlab/services';
import { Signal } from '@lumino/signaling';

import type { IConnected } from '../src/connections';
import { Link } from '../src/link';
import { INoticed, Model } from '../src/model';
import type { PageMessage } from '../src/types';
import { brief, message, run } from './made';

interface ISent {
  header: { msg_type: string; subshell_id?: string };
  content: { comm_id: string; target_name?: string; data: PageMessage };
}

/** A kernel connection that keeps what is sent, and lets a test speak as the kernel. */
class FakeConnection {
  id = 'k1';
  clientId = 'c';
  username = 'u';
  status = 'idle';
  isDisposed = false;
  supportsSubshells = true;
  info = Promise.resolve({});
  subshells: string[] = [];
  created = 0;
  sent: ISent[] = [];
  iopubMessage = new Signal<this, unknown>(this);
  statusChanged = new Signal<this, string>(this);
  disposed = new Signal<this, void>(this);

  sendShellMessage(sent: ISent): void {
    this.sent.push(sent);
  }

  requestListSubshell(): unknown {
    return { done: Promise.resolve({ content: { subshell_id: this.subshells } }) };
  }

  requestCreateSubshell(): unknown {
    this.created += 1;
    return { done: Promise.resolve({ content: { subshell_id: 'new' } }) };
  }

  say(type: string, content: object, parent = ''): void {
    this.iopubMessage.emit({ header: { msg_type: type }, content, parent_header: { msg_id: parent } });
  }

  /** As the kernel's end of the comm that is open. */
  tell(data: unknown): void {
    this.say('comm_msg', { comm_id: this.commId, data });
  }

  get commId(): string {
    return this.sent.filter(m => m.header.msg_type === 'comm_open').slice(-1)[0]?.content.comm_id;
  }

  get data(): PageMessage[] {
    return this.sent.map(m => m.content.data);
  }
}

const settled = (): Promise<void> => new Promise(resolve => setImmediate(resolve));

function listen(model: Model, kernel: FakeConnection, path = 'a.ipynb'): void {
  const connection = kernel as unknown as Kernel.IKernelConnection;
  const connected: IConnected = { connection, path, type: 'notebook' };
  const rate = (): number => 1;
  model.listen(new Map([['k1', connected]]), c => new Link(c, rate, () => model.lastSeq('k1')));
}

interface ISetUp {
  kernel: FakeConnection;
  model: Model;
  told: INoticed[];
}

async function setUp(given: Partial<FakeConnection> = {}): Promise<ISetUp> {
  const kernel = Object.assign(new FakeConnection(), given);
  const model = new Model(
    () => 1,
    () => 1000
  );
  listen(model, kernel);
  const told: INoticed[] = [];
  model.noticed.connect((_, noticed) => void told.push(noticed));
  await settled();
  return { kernel, model, told };
}

afterEach(() => {
  for (const model of made.splice(0)) {
    model.listen(new Map(), () => {
      throw new Error('no kernel is left');
    });
  }
});
const made: Model[] = [];

async function start(given: Partial<FakeConnection> = {}): Promise<ISetUp> {
  const all = await setUp(given);
  made.push(all.model);
  return all;
}

test('a kernel is greeted over a subshell, one that is there before a new one', async () => {
  const { kernel } = await start({ subshells: ['theirs'] });
  const other = await start();

  expect(kernel.sent[0].content.target_name).toBe('rapidfire');
  expect(kernel.data[0]).toEqual({ type: 'hello', every_s: 1 });
  expect(kernel.sent[0].header.subshell_id).toBe('theirs');
  expect(kernel.created).toBe(0);
  expect(other.kernel.sent[0].header.subshell_id).toBe('new');
});

test('a kernel without subshells is greeted in its main shell', async () => {
  const { kernel } = await start({ supportsSubshells: false });

  expect(kernel.sent[0].header).not.toHaveProperty('subshell_id');
});

test('experiments appear, change and go', async () => {
  const { kernel, model, told } = await start();

  kernel.tell(message(1, [brief()]));
  expect(model.kernels.map(k => [k.id, k.path, k.experiments[0].name])).toEqual([
    ['k1', 'a.ipynb', 'one']
  ]);
  expect(model.live('k1')).toHaveLength(1);
  kernel.tell(message(2, [brief({ state: 'idle', live: false, runs: [] })]));
  expect(model.live('k1')).toHaveLength(0);
  kernel.tell(message(3, [], { gone: ['/e/one'] }));
  expect(model.kernels).toEqual([]);
  expect(told.map(({ notice }) => notice.kind)).toEqual(['started', 'finished']);
});

test('after a gap everything is asked for again', async () => {
  const { kernel, model } = await start();
  kernel.tell(message(1, [brief()]));

  kernel.tell(message(3, [brief({ runs: [run(1, { step: 7 })] })]));
  await settled();

  expect(kernel.data.slice(-1)).toEqual([{ type: 'hello', every_s: 1 }]);
  expect(model.kernels[0].experiments[0].runs[0].step).toBe(4);
});

test('a kernel that does not know rapidfire is left alone until a cell names it', async () => {
  const { kernel, model } = await start();
  kernel.say('comm_close', { comm_id: kernel.commId });
  kernel.say('execute_input', { code: 'print(1)' }, 'm1');
  kernel.say('status', { execution_state: 'idle' }, 'm1');
  await settled();
  expect(kernel.sent).toHaveLength(1);

  kernel.say('execute_input', { code: '%load_ext rapidfire' }, 'm2');
  kernel.say('status', { execution_state: 'idle' }, 'm1');
  await settled();
  expect(kernel.sent).toHaveLength(1);
  kernel.say('status', { execution_state: 'idle' }, 'm2');
  await settled();

  expect(kernel.sent).toHaveLength(2);
  kernel.tell(message(1, [brief()]));
  expect(model.kernels).toHaveLength(1);
});

test('a comm that the kernel closes after it was used is opened again', async () => {
  const { kernel, model } = await start();
  kernel.tell(message(1, [brief()]));
  const first = kernel.commId;

  kernel.say('comm_close', { comm_id: first });
  await settled();

  expect(kernel.commId).not.toBe(first);
  kernel.tell(message(1, [brief()]));
  expect(model.kernels).toHaveLength(1);
});

test('a cell that loads rapidfire while the first greeting is under way is not missed', async () => {
  const { kernel } = await start();
  const first = kernel.commId;
  kernel.say('execute_input', { code: '%load_ext rapidfire' }, 'm1');
  kernel.say('status', { execution_state: 'idle' }, 'm1');
  await settled();
  expect(kernel.commId).toBe(first);

  kernel.say('comm_close', { comm_id: first });
  await settled();
  const second = kernel.commId;
  expect(second).not.toBe(first);
  kernel.say('comm_close', { comm_id: second });
  await settled();

  expect(kernel.commId).toBe(second);
});

test('our panel opening says that the kernel knows us, other widgets do not', async () => {
  jest.useFakeTimers({ doNotFake: ['setImmediate'] });
  try {
    const { kernel } = await start();
    kernel.say('comm_close', { comm_id: kernel.commId });

    kernel.say('comm_open', { data: { state: { _anywidget_id: 'other.Widget' } } }, 'm1');
    jest.advanceTimersByTime(60_000);
    await settled();
    expect(kernel.sent).toHaveLength(1);
    kernel.say('comm_open', { data: { state: { _anywidget_id: 'rapidfire_jupyter.ui.x' } } });
    jest.advanceTimersByTime(5_000);
    await settled();

    expect(kernel.sent).toHaveLength(2);
  } finally {
    jest.useRealTimers();
  }
});

test('a restart forgets what the kernel had', async () => {
  const { kernel, model } = await start();
  kernel.tell(message(1, [brief()]));

  kernel.statusChanged.emit('restarting');

  expect(model.kernels).toEqual([]);
  expect(model.live('k1')).toEqual([]);
});

test('messages of other comms are passed over', async () => {
  const { kernel, model } = await start();

  kernel.say('comm_msg', { comm_id: 'other', data: message(1, [brief()]) });
  kernel.tell({ type: 'from a later version' });

  expect(model.kernels).toEqual([]);
});

test('an order is answered by its own ack', async () => {
  const { kernel, model } = await start();
  kernel.tell(message(1, [brief()]));

  const asked = model.order('k1', '/e/one', 'boost', 2, { weight: 4 });
  await settled();
  const order = kernel.data.slice(-1)[0] as { id: string };
  kernel.tell({ type: 'ack', id: 'another', status: 'refused', reason: 'not mine' });
  kernel.tell({ type: 'ack', id: order.id, status: 'pending', reason: '' });

  expect(order).toMatchObject({ type: 'order', kind: 'boost', run: 2, args: { weight: 4 } });
  expect((await asked).status).toBe('pending');
});

test('a refusal that comes when the op was to act is told', async () => {
  const { kernel, model } = await start();
  const refused: string[] = [];
  model.refused.connect((_, reason) => void refused.push(reason));
  const asked = model.order('k1', '/e/one', 'stop', 1);
  await settled();
  const { id } = kernel.data.slice(-1)[0] as { id: string };

  kernel.tell({ type: 'ack', id, status: 'pending', reason: '' });
  await asked;
  kernel.tell({ type: 'ack', id, status: 'refused', reason: 'run 1 is completed' });

  expect(refused).toEqual(['run 1 is completed']);
});

test('an order without an answer is given up', async () => {
  jest.useFakeTimers({ doNotFake: ['setImmediate'] });
  try {
    const { model } = await start();
    const asked = model.order('k1', '/e/one', 'stop', 1);

    jest.advanceTimersByTime(11_000);

    expect(await asked).toMatchObject({ status: 'refused', reason: expect.stringMatching(/answer/) });
  } finally {
    jest.useRealTimers();
  }
});

test('the model of a panel is asked for', async () => {
  const { kernel, model } = await start();
  const asked = model.openPanel('k1', '/e/one');
  await settled();
  const { id } = kernel.data.slice(-1)[0] as { id: string };

  kernel.tell({ type: 'model', id, model: 'abc', error: '' });

  expect((await asked).model).toBe('abc');
});

test('a kernel that has gone is forgotten and its comm closed', async () => {
  const { kernel, model } = await start();
  kernel.tell(message(1, [brief()]));

  model.listen(new Map(), () => {
    throw new Error('no kernel is left');
  });

  expect(model.kernels).toEqual([]);
  expect(kernel.sent.slice(-1)[0].header.msg_type).toBe('comm_close');
});

test('what is asked at once is sent after the comm has opened', async () => {
  const kernel = new FakeConnection();
  const model = new Model(() => 1);
  made.push(model);
  listen(model, kernel);

  const asked = model.openPanel('k1', '/e/one');
  await settled();
  const { id } = kernel.data[1] as { id: string };
  kernel.tell({ type: 'model', id, model: '', error: 'no widgets' });

  expect(kernel.data.map(data => data.type)).toEqual(['hello', 'open_panel']);
  expect((await asked).error).toBe('no widgets');
});

test('over another connection a kernel keeps its experiments and tells them anew', async () => {
  const { kernel, model, told } = await start();
  kernel.tell(message(1, [brief()]));
  const other = new FakeConnection();

  listen(model, other, 'b.ipynb');
  await settled();
  expect(model.kernels.map(k => [k.path, k.experiments.length])).toEqual([['b.ipynb', 1]]);
  other.tell(message(1, [brief({ state: 'idle', live: false })]));

  expect(model.live('k1')).toEqual([]);
  expect(told.map(({ notice }) => notice.kind)).toEqual(['started', 'finished']);
});

test('a silent kernel is greeted anew after two pings', async () => {
  jest.useFakeTimers({ doNotFake: ['setImmediate'] });
  try {
    const { kernel } = await start();
    const first = kernel.commId;

    jest.advanceTimersByTime(61_000);
    await settled();

    expect(kernel.commId).not.toBe(first);
  } finally {
    jest.useRealTimers();
  }
});
