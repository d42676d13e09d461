"""The labextension's comm: briefs as pure functions, pages with a fake channel, a real kernel."""

import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import get_type_hints

import pytest
from jupyter_client.manager import KernelManager

from rapidfire_jupyter import Experiment, front_ends
from rapidfire_jupyter.errors import OpError
from rapidfire_jupyter.events import Event
from rapidfire_jupyter.ops import Op, OpHandle
from rapidfire_jupyter.state import Run, State
from rapidfire_jupyter.ui import brief as briefs
from rapidfire_jupyter.ui import comm, wire
from rapidfire_jupyter.ui.brief import Seen, brief, changed, lost, see
from rapidfire_jupyter.ui.comm import Publisher, Source, update

GOLDEN = json.loads((Path(__file__).parent / "golden" / "comm.json").read_text(encoding="utf-8"))
SECONDS = 30


# ------------------------------------------------------------------------------- types and golden


def fields(value, kind):
    """Whether a golden value has the very fields of a typed dict, all the way down."""
    hints = get_type_hints(kind)
    assert set(value) == set(hints), kind.__name__
    if kind is briefs.Experiments:
        for item in value["experiments"]:
            fields(item, briefs.Brief)
            for run in item["runs"]:
                fields(run, briefs.BriefRun)


@pytest.mark.parametrize("name", [n for n in GOLDEN if n != "Ack"])
def test_golden_messages_have_the_fields_of_their_types(name):
    fields(GOLDEN[name], getattr(briefs, name))


def test_the_golden_ack_is_the_panels():
    fields(GOLDEN["Ack"], wire.Ack)


def test_golden_kinds_are_those_of_the_types():
    for name, message in GOLDEN.items():
        kind = get_type_hints(wire.Ack if name == "Ack" else getattr(briefs, name))["type"]
        assert kind.__args__ == (message["type"],)


# ----------------------------------------------------------------------------------------- briefs


def event(seq, kind, run=None, **data):
    return Event(seq, 1000.0 + seq, kind, run, data)


RUNS = {
    1: Run(1, "a", "SFT", {}, "running", step=4, total_steps=8, chunk_ends=(4, 8)),
    2: Run(2, "b", "SFT", {}, "queued", total_steps=8, chunk_ends=(4, 8)),
    3: Run(3, "c", "SFT", {}, "deleted"),
    4: Run(4, "d", "SFT", {}, "completed", step=8, total_steps=8, chunk_ends=(4, 8)),
}
EVENTS = [
    event(0, "logged", 1, row={"loss": 2.5, "step": 1}, source="trainer"),
    event(1, "logged", 1, row={"loss": float("nan"), "step": 2}, source="trainer"),
    event(2, "logged", 1, row={"eval_loss": 3.0, "step": 2}, source="chunk"),
    event(3, "slice_ended", 1, step=4, steps=4, seconds=8.0),
    event(4, "checkpoint", 1, step=4),
    event(5, "checkpoint", 4, step=8),
    event(6, "alert", text="disk is nearly full"),
]


def made(state=None, seen=None, status="running"):
    state = State(RUNS) if state is None else state
    return brief("/e", "e", status, "", state, see(Seen(), EVENTS) if seen is None else seen)


def test_a_brief_tells_what_is_left_and_what_is_saved():
    told = made()

    assert [run["id"] for run in told["runs"]] == [1, 2, 4]
    assert told["progress"] == 0.5  # 12 steps done, 12 left
    assert told["eta_s"] == 24  # 4 + 8 steps of 2 s
    assert told["checkpoint_time"] == 1004.0  # that of the finished run is no one's stake
    assert (told["alerts"], told["alert"]) == (1, "disk is nearly full")
    assert told["runs"][0]["loss"] == "NaN"
    assert told["live"]
    json.dumps(told, allow_nan=False)


def test_only_training_that_would_be_cut_off_is_live():
    over = State({4: RUNS[4]})

    assert made(status="paused")["live"]
    assert not made(status="ended")["live"]
    assert not made(status="halted")["live"]
    assert not made(over, status="running")["live"]


def test_events_read_in_parts_give_the_same_as_at_once():
    seen = Seen()
    for one in EVENTS:
        seen = see(seen, [one])

    assert seen == see(Seen(), EVENTS)
    assert seen.count == len(EVENTS)


def test_an_update_has_the_changed_runs_only():
    moved = State({**RUNS, 1: replace(RUNS[1], step=5)})
    old, new = made(), made(moved)

    assert changed(old, old) is None
    assert [run["id"] for run in changed(old, new)["runs"]] == [1, 2]  # the other's ETA, too
    assert changed(None, new) == new
    assert lost(old, made(State({1: RUNS[1]})))
    assert not lost(made(State({1: RUNS[1]})), old)


def test_an_update_says_what_is_new_what_is_gone_and_nothing_else():
    one, two = made(), {**made(), "key": "/f"}

    nothing = {"experiments": [], "gone": []}
    assert update(None, {}) == {"type": "experiments", "full": True, **nothing}
    assert update({"/e": one}, {"/e": one}) is None
    assert update({"/e": one}, {"/e": one, "/f": two})["experiments"] == [two]
    assert update({"/e": one, "/f": two}, {"/e": one})["gone"] == ["/f"]
    fewer = made(State({1: RUNS[1]}))
    assert update({"/e": one}, {"/e": fewer})["full"]


# ---------------------------------------------------------------------------- pages without kernel


class FakeChannel:
    """A comm of which a test is the page."""

    def __init__(self, name="page"):
        self.comm_id = name
        self.sent = []
        self.closed = False
        self._arrived = threading.Condition()
        self._reply_subshell_for = lambda data, default: "the shell that sent last"

    def send(self, data):
        with self._arrived:
            self.sent.append(json.loads(json.dumps(data, allow_nan=False)))
            self._arrived.notify_all()

    def on_msg(self, callback):
        self._on_msg = callback

    def on_close(self, callback):
        self._on_close = callback

    def say(self, **data):
        self._on_msg({"content": {"data": data}})

    def close(self):
        """The kernel's end closes it."""
        self.closed = True

    def leave(self):
        """The page's end closes it."""
        self._on_close({"content": {}})

    def wait(self, good):
        """The first message that is good, once there is one."""
        with self._arrived:
            found = self._arrived.wait_for(lambda: next(filter(good, self.sent), None), SECONDS)
        assert found, self.sent
        return found

    def of(self, kind):
        return [message for message in self.sent if message["type"] == kind]


def opened(publisher, name="page", **data):
    channel = FakeChannel(name)
    publisher.open(channel, {"content": {"data": {"type": "hello", "every_s": 0.2, **data}}})
    return channel


@pytest.fixture
def training(experiment):
    """An experiment with a hand-written log, its publisher and what it was asked."""
    exp = experiment("written")
    runs = [
        {"id": i, "name": f"run {i}", "trainer_type": "SFT", "config": {}, "total_steps": 8}
        for i in (1, 2)
    ]
    exp._opened.log.append("fit_started", runs=runs, fit={})
    asked = []

    def order(kind, run, args):
        if run == 9:
            raise OpError("there is no run 9; runs: 1, 2")
        asked.append((kind, run, dict(args)))
        exp.handle = OpHandle(Op(kind, run, args))
        return exp.handle

    standing = wire_standing("running")
    actions = replace(front_ends._source(exp).actions, order=order, standing=lambda: standing[0])
    publisher = Publisher(lambda: [Source(actions, lambda: "model-id")])
    exp.asked, exp.standing, exp.publisher = asked, standing, publisher
    return exp


def wire_standing(status):
    from rapidfire_jupyter.ui.actions import Standing

    return [Standing(status, False, "")]


def steps(message):
    return [run["step"] for item in message["experiments"] for run in item["runs"]]


def step(exp, run, step):
    exp._opened.log.append("slice_started", run, step=0)
    exp._opened.log.append("advanced", run, step=step, chunks=0.1)


def test_a_page_is_told_everything_and_then_what_changes(training):
    page = opened(training.publisher)
    first = page.wait(lambda m: m["type"] == "experiments")

    step(training, 2, 3)
    second = page.wait(lambda m: m["type"] == "experiments" and m["seq"] == 2)

    assert first["full"] and first["seq"] == 1
    assert [run["id"] for run in first["experiments"][0]["runs"]] == [1, 2]
    assert not second["full"]
    assert [(r["id"], r["step"]) for r in second["experiments"][0]["runs"]] == [(2, 3)]


def test_many_changes_make_few_messages(training):
    page = opened(training.publisher)
    page.wait(lambda m: m["type"] == "experiments")

    began = time.monotonic()
    for done in range(400):
        training._opened.log.append("advanced", 1, step=done, chunks=0.001)
    page.wait(
        lambda m: m["type"] == "experiments" and m["experiments"][0]["runs"][0]["step"] == 399
    )
    seconds = time.monotonic() - began

    assert len(page.of("experiments")) <= 2 + seconds / 0.2


def test_nothing_is_sent_when_nothing_changes_and_no_thread_is_left_without_pages(training):
    page = opened(training.publisher)
    page.wait(lambda m: m["type"] == "experiments")
    thread = training.publisher._thread

    training.publisher.look()
    page.say(type="ping", seq=1)
    page.wait(lambda m: m["type"] == "pong")
    other = opened(training.publisher, "other")
    other.wait(lambda m: m["type"] == "experiments")
    page.leave()
    other.leave()
    thread.join(SECONDS)

    assert len(page.of("experiments")) == 1
    assert not thread.is_alive()
    assert training.publisher.pages == 0
    assert len(training._opened.log._listeners) == 1  # the experiment's own


def test_a_page_that_lost_a_message_is_told_everything_again(training):
    page = opened(training.publisher)
    page.wait(lambda m: m["type"] == "experiments")

    page.say(type="ping", seq=0)

    again = page.wait(lambda m: m["type"] == "experiments" and m["seq"] == 2)
    assert again["full"]


def test_the_comm_of_a_silent_page_is_closed(training, monkeypatch):
    page = opened(training.publisher)
    page.wait(lambda m: m["type"] == "experiments")
    thread = training.publisher._thread

    monkeypatch.setattr(comm, "SILENT_S", -1.0)
    training.publisher.look()
    thread.join(SECONDS)

    assert page.closed
    assert training.publisher.pages == 0
    monkeypatch.undo()
    assert opened(training.publisher).wait(lambda m: m["type"] == "experiments")["full"]


def test_an_order_is_acknowledged_at_once_and_when_it_has_acted(training):
    page = opened(training.publisher)

    page.say(type="order", id="a", experiment=str(training.folder), kind="stop", run=2, args={})
    page.say(type="order", id="a", experiment=str(training.folder), kind="stop", run=2, args={})
    assert page.of("ack")[0]["status"] == "pending"
    training.handle.settle("applied", "", 4, 2)
    done = page.wait(lambda m: m["type"] == "ack" and m["status"] == "applied")

    assert training.asked == [("stop", 2, {})]
    assert (done["id"], done["step"]) == ("a", 4)
    assert done["line"].startswith("%rapidfire stop 2")


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ({"kind": "stop", "run": 9, "args": {}}, "there is no run 9"),
        ({"kind": "explode", "run": 1, "args": {}}, "kind is one of"),
        ({"kind": "stop", "run": "1", "args": {}}, "needs a run's number"),
        ({"kind": "boost", "run": 1, "args": {"weight": "much"}}, "weight is a number"),
        ({"kind": "stop", "run": 1, "args": {}, "experiment": "/elsewhere"}, "no longer has"),
        ({"kind": "stop", "run": 1, "args": {}, "experiment": {"a": []}}, "no longer has"),
    ],
)
def test_a_bad_order_is_refused_with_the_reason(training, order, reason):
    page = opened(training.publisher)

    page.say(**{"type": "order", "id": "b", "experiment": str(training.folder), **order})

    ack = page.of("ack")[-1]
    assert ack["status"] == "refused" and reason in ack["reason"]
    assert training.asked == []


@pytest.mark.parametrize("data", [None, 3, [], "x", {}, {"type": "order"}, {"type": "hello"}])
def test_what_is_no_message_changes_nothing(training, data):
    page = opened(training.publisher)

    page._on_msg({"content": {"data": data}})

    assert page.of("ack") == []


def test_a_panel_is_given_by_its_model(training):
    page = opened(training.publisher)

    page.say(type="open_panel", id="c", experiment=str(training.folder))
    page.say(type="open_panel", id="d", experiment="/elsewhere")

    assert [(m["model"], m["error"]) for m in page.of("model")] == [
        ("model-id", ""),
        ("", "this kernel no longer has the experiment"),
    ]


def test_answers_go_to_the_subshell_that_the_page_chose(training):
    page = opened(training.publisher)

    assert page._reply_subshell_for({}, "chosen") == "chosen"


def test_outside_a_kernel_nothing_is_registered(tmp_path):
    code = (
        "import sys; from rapidfire_jupyter import Experiment;"
        "from rapidfire_jupyter.ui import comm;"
        f"Experiment('e', root={str(tmp_path)!r}); print(comm._publisher, 'comm' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["None", "False"]


def test_the_comm_is_light_to_import():
    code = (
        "import sys, rapidfire_jupyter.front_ends;"
        "print({'torch', 'anywidget', 'plotly', 'pandas', 'IPython'} & set(sys.modules))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "set()"


# -------------------------------------------------------------------------------------- real kernel

TRAIN = """
%load_ext rapidfire_jupyter
import time, tiny
from rapidfire_jupyter import Experiment, RFLoraConfig, RFModelConfig, RFSFTConfig

class Slow(tiny.Callback):
    def on_step_begin(self, *args, **kwargs):
        time.sleep(0.02)

config = RFModelConfig(
    "tiny",
    peft_config=RFLoraConfig(r=4, target_modules=["q_proj"]),
    callbacks=[Slow()],
    training_args=RFSFTConfig(
        learning_rate=1e-2, per_device_train_batch_size=2, num_train_epochs=500, logging_steps=1
    ),
)
exp = Experiment("kernel")
exp.run_fit(config, tiny.create_model, tiny.sft_rows(8), num_chunks=2, trainer_type="SFT")
"""


class Page:
    """A page's end of a comm to a real kernel, over a subshell as JupyterLab has it."""

    def __init__(self, client):
        self.client = client
        self.subshell = self._subshell()
        self.sent_bytes = 0

    def _subshell(self):
        request = self.client.session.msg("create_subshell_request", {})
        self.client.control_channel.send(request)
        return self.client.get_control_msg(timeout=SECONDS)["content"]["subshell_id"]

    def post(self, kind, **content):
        message = self.client.session.msg(kind, {"comm_id": "page-1", **content})
        message["header"]["subshell_id"] = self.subshell
        self.client.shell_channel.send(message)

    def say(self, **data):
        self.post("comm_msg", data=data)

    def wait(self, good):
        """The next message of the kernel that is good."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            message = self.client.get_iopub_msg(timeout=SECONDS)
            content = message["content"]
            if message["msg_type"] == "comm_close" and content["comm_id"] == "page-1":
                return None
            if message["msg_type"] == "comm_msg" and content["comm_id"] == "page-1":
                data = content["data"]
                if good(data):
                    return data
        raise AssertionError("no such message came")


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    manager = KernelManager()
    manager.start_kernel(cwd=str(tmp_path))
    client = manager.blocking_client()
    client.start_channels(hb=False)
    client.wait_for_ready(timeout=60)
    yield Page(client)
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def is_reply(client, request):
    while True:
        reply = client.get_shell_msg(timeout=60)
        if reply["parent_header"]["msg_id"] == request:
            assert reply["content"]["status"] == "ok", reply["content"]
            return


@pytest.mark.slow
def test_a_kernel_that_does_not_know_us_closes_the_comm_at_once(page):
    page.post("comm_open", target_name="rapidfire", data={"type": "hello", "every_s": 1.0})

    assert page.wait(lambda data: True) is None


@pytest.mark.slow
def test_a_real_kernel_tells_and_obeys_while_a_cell_blocks_it(page):
    is_reply(page.client, page.client.execute(TRAIN))
    page.post("comm_open", target_name="rapidfire", data={"type": "hello", "every_s": 0.2})
    told = page.wait(lambda m: m["type"] == "experiments" and m["experiments"])
    key = told["experiments"][0]["key"]
    cell = page.client.execute("time.sleep(8); after = exp.run(1).status")

    acks = []
    began = time.monotonic()
    for number in range(20):
        weight = 2.0 + number % 2
        order = {"id": f"o{number}", "kind": "boost", "run": 1, "args": {"weight": weight}}
        sent = time.monotonic()
        page.say(type="order", experiment=key, **order)
        page.wait(lambda m, n=number: m["type"] == "ack" and m["id"] == f"o{n}")
        acks.append(time.monotonic() - sent)
    page.say(type="order", experiment=key, id="stop", kind="stop", run=1, args={})
    page.wait(lambda m: m["type"] == "ack" and m["id"] == "stop" and m["status"] == "applied")
    stopped = page.wait(
        lambda m: (
            m["type"] == "experiments"
            and any(r["status"] == "stopped" for e in m["experiments"] for r in e["runs"])
        )
    )

    assert time.monotonic() - began < 8, "the kernel answered only after the cell"
    assert not stopped["experiments"][0]["live"]
    acks.sort()
    print(f"ack in a blocked kernel: p50 {acks[10] * 1e3:.0f} ms, max {acks[-1] * 1e3:.0f} ms")
    is_reply(page.client, cell)
    page.say(type="open_panel", id="p", experiment=key)
    assert page.wait(lambda m: m["type"] == "model")["model"]


@pytest.mark.slow
def test_a_page_that_closes_leaves_no_thread_in_the_kernel(page):
    is_reply(page.client, page.client.execute(TRAIN))
    page.post("comm_open", target_name="rapidfire", data={"type": "hello", "every_s": 0.2})
    page.wait(lambda m: m["type"] == "experiments" and m["seq"] >= 3)

    page.post("comm_close", data={})
    names = "[t.name for t in __import__('threading').enumerate()]"
    quiet = page.client.execute(
        f"import time; end = time.time() + 20\n"
        f"while 'rapidfire-comm' in {names} and time.time() < end: time.sleep(0.1)\n"
        f"assert 'rapidfire-comm' not in {names}"
    )
    is_reply(page.client, quiet)


@pytest.mark.slow
def test_watching_costs_the_kernel_little(experiment):
    """48 runs that log ten times a second: CPU of the publisher, and messages and bytes."""
    exp = experiment("many")
    runs = [
        {"id": i, "name": f"run {i}", "trainer_type": "SFT", "config": {}, "total_steps": 999}
        for i in range(1, 49)
    ]
    exp._opened.log.append("fit_started", runs=runs, fit={})
    standing = wire_standing("running")
    actions = replace(front_ends._source(exp).actions, standing=lambda: standing[0])
    publisher = Publisher(lambda: [Source(actions, str)])
    page = opened(publisher, every_s=1.0)
    page.wait(lambda m: m["type"] == "experiments")

    began = time.monotonic()
    for done in range(1, 31):
        for run in range(1, 49):
            exp._opened.log.append(
                "logged", run, row={"loss": done / 7, "step": done}, source="trainer"
            )
            exp._opened.log.append("advanced", run, step=done, chunks=0.01)
    last = 30 / 7
    page.wait(
        lambda m: (
            m["type"] == "experiments"
            and m["experiments"][0]["runs"][-1]["loss"] == pytest.approx(last)
        )
    )
    seconds = time.monotonic() - began
    page.leave()

    told = page.of("experiments")
    size = max(len(json.dumps(m)) for m in told)
    print(f"{len(told)} messages in {seconds:.1f} s, largest {size} bytes")
    assert len(told) <= 3 + seconds
    assert size <= 20_000


def test_every_open_experiment_is_a_source(tmp_path):
    exp = Experiment("listed", root=tmp_path)
    try:
        keys = [source.key for source in front_ends._sources()]
        assert str(exp.folder) in keys
    finally:
        exp.end()
    assert str(exp.folder) not in [source.key for source in front_ends._sources()]
