"""The feed: what is sent to views, when, and how much; with a clock of the test."""

import itertools
import json
import threading

import logs
import pytest

from rapidfire_jupyter.ui.curves import unpack
from rapidfire_jupyter.ui.feed import BEAT_S, GAP_S, SILENT_S, TWIN_S, Feed
from rapidfire_jupyter.ui.fold import Fold
from rapidfire_jupyter.ui.view import Facts, snapshot


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Bench:
    """A feed whose turns the test takes; what it sends is kept with the time."""

    def __init__(self, log):
        self.log, self.clock, self.sent, self.status = log, Clock(), [], "running"
        self.feed = Feed(log, lambda: Facts("exp", self.status), self.keep, self.clock)
        self.feed._ensure_thread = lambda: None

    def keep(self, message, buffers):
        size = len(json.dumps(message)) + sum(map(len, buffers))
        self.sent.append((self.clock.now, message, buffers, size))

    def turn(self, seconds=0.0):
        """Let time pass and take a turn; gives the new messages."""
        before = len(self.sent)
        self.clock.now += seconds
        self.feed._turn()
        return [message for _, message, _, _ in self.sent[before:]]

    def pass_time(self, seconds, act=lambda: None, every=0.05):
        """Take turns as the thread would: when the pace allows it."""
        for _ in range(round(seconds / every)):
            self.clock.now += every
            act()
            due = self.feed._allowed_at
            if self.feed._urgent:
                due = self.feed._sent_at + GAP_S
            if self.clock.now >= due:
                self.feed._turn()


@pytest.fixture
def bench(tmp_path):
    """A feed of two runs."""
    return Bench(logs.started(tmp_path))


def types(messages):
    return [message["type"] for message in messages]


def everything(bench):
    """Points by run, as a view has them that took every message."""
    curves = {}
    for _, message, buffers, _ in bench.sent:
        if message["type"] == "snapshot":
            curves = {}
        if message["type"] in ("snapshot", "delta"):
            for run in message.get("reset", []):
                curves[run] = []
            for run, points in unpack(message["blocks"], buffers[0]).items():
                curves.setdefault(run, []).extend(points)
    return curves


def test_a_hello_is_answered_with_a_snapshot_and_deltas_follow_in_sequence(bench):
    logs.rows(bench.log, 1, 3)
    bench.feed.open("v")

    first = bench.turn()
    told = []
    for step in range(4, 40, 4):
        logs.rows(bench.log, 1, 4, step)
        told += bench.turn(1.0)

    assert types(first) == ["snapshot"] and first[0]["blocks"][0]["n"] == 3
    assert types(told) == ["delta"] * 9
    assert [m["seq"] for m in told] == [first[0]["seq"] + k for k in range(1, 10)]
    whole, numbers = snapshot(Fold().read(bench.log.since(0)), Facts("exp"), 0, 0.0)
    assert everything(bench) == unpack(whole["blocks"], numbers)


def test_nothing_is_sent_or_read_without_a_view(bench):
    logs.rows(bench.log, 1, 50)
    logs.op(bench.log, "stop", 1)

    assert bench.turn(1.0) == [] and bench.feed._fold.next_seq == 0
    bench.feed.open("v")
    bench.turn()
    bench.feed.close("v")
    logs.rows(bench.log, 1, 50, 51)
    assert bench.turn(10.0) == []


def test_a_second_view_gets_a_snapshot_and_the_first_misses_nothing(bench):
    bench.feed.open("a")
    bench.turn()
    logs.rows(bench.log, 1, 5)
    bench.feed.open("b")

    told = bench.turn(0.01)

    assert types(told) == ["delta", "snapshot"] and told[0]["seq"] == told[1]["seq"]
    assert told[0]["blocks"][0]["n"] == told[1]["blocks"][0]["n"] == 5


def test_no_more_than_four_messages_a_second_though_everything_is_urgent(bench):
    bench.feed.open("v")
    bench.turn()

    bench.pass_time(10, lambda: logs.op(bench.log, "boost", 1, weight=1 + bench.clock.now))

    told = [t for t, message, _, _ in bench.sent if message["type"] == "delta"]
    assert len(told) <= 41 and min(b - a for a, b in itertools.pairwise(told)) >= GAP_S - 1e-6


def test_48_runs_with_10_rows_a_second_cost_at_most_20_kilobytes_a_second(tmp_path):
    bench = Bench(logs.started(tmp_path, 48))
    bench.feed.open("v")
    bench.turn()
    step = [0.0]

    def act():
        step[0] += 0.5
        if step[0] == int(step[0]):
            for run in range(1, 49):
                logs.rows(bench.log, run, 1, int(step[0]))
        bench.feed.heard("v")

    bench.pass_time(60, act)

    deltas = [(message, size) for _, message, _, size in bench.sent if message["type"] == "delta"]
    print(f"\n{len(deltas) / 60:.2f} messages/s, {sum(s for _, s in deltas) / 60e3:.1f} KB/s")
    assert len(deltas) / 60 <= 4
    assert sum(size for _, size in deltas) / 60 <= 20_000
    told = {row["id"] for message, _ in deltas[-10:] for row in message["rows"]}
    assert told == set(range(1, 49))
    bench.turn(5)
    assert sum(map(len, everything(bench).values())) == 48 * 600


def test_a_change_of_status_does_not_wait_for_the_pace(bench):
    bench.feed.open("v")
    bench.turn()
    for run in (1, 2):
        logs.rows(bench.log, run, 4000)
    bench.turn(GAP_S)
    assert bench.feed._allowed_at > bench.clock.now + 1

    logs.op(bench.log, "stop", 2)
    told = bench.turn(GAP_S)

    assert [row["status"] for m in told for row in m["rows"]] == ["stopped"]


def test_the_head_beats_while_it_trains_and_falls_silent_when_all_is_said(bench):
    bench.feed.open("v")
    bench.turn()

    bench.pass_time(20, lambda: bench.feed.heard("v"))
    beats = [m for _, m, _, _ in bench.sent if m["type"] == "delta"]
    bench.status = "idle"
    bench.pass_time(20, lambda: bench.feed.heard("v"))
    after = len(bench.sent)
    bench.pass_time(60, lambda: bench.feed.heard("v"))

    assert len(beats) == pytest.approx(20 / BEAT_S, abs=1)
    assert all(m["head"] and not m["rows"] for m in beats)
    assert len(bench.sent) == after


def test_a_silent_view_counts_as_closed(bench):
    bench.feed.open("v")
    bench.turn()
    assert bench.feed.heard("v")

    bench.turn(SILENT_S + 1)

    assert bench.feed.views == 0 and not bench.feed.heard("v")


def test_rows_that_were_trained_again_are_reset(bench):
    bench.feed.open("v")
    logs.rows(bench.log, 1, 20)
    bench.turn()
    bench.log.append("run_recovered", 1, step=10, rows=10, skipped=[])
    logs.rows(bench.log, 1, 2, 11, seed=9)

    told = bench.turn(1.0)

    assert told[0]["reset"] == [1]
    assert [p.step for p in everything(bench)[1]] == list(range(1, 13))


# ------------------------------------------------------------------------------------ the twin


def test_the_twin_is_refreshed_rarely_while_it_trains_and_at_once_when_it_ends(bench):
    seen = []

    def later(fold, facts):
        seen.append((bench.clock.now, facts.status, fold.next_seq))

    bench.feed.show_twin(later, later)
    for _ in range(200):
        logs.rows(bench.log, 1, 1, len(bench.log.events))
        bench.turn(0.5)
    training = len(seen)
    bench.status = "idle"
    bench.log.append("run_completed", 1, step=9, note="")
    bench.turn(0.1)
    bench.turn(100.0)

    assert training == 1 + int(100 / TWIN_S)
    assert [s[1:] for s in seen[training:]] == [("idle", len(bench.log.events))]


def test_a_flush_brings_the_twin_up_to_date_at_once_and_only_if_there_is_news(bench):
    seen = []
    bench.feed.show_twin(lambda fold, facts: None, lambda fold, facts: seen.append(fold.next_seq))
    logs.rows(bench.log, 1, 2)

    bench.feed.flush()
    bench.feed.flush()

    assert seen == [len(bench.log.events)]


# ---------------------------------------------------------------------------------- the thread


def test_the_thread_sends_and_ends_with_its_last_view_and_starts_again(tmp_path):
    log, sent, got = logs.started(tmp_path), [], threading.Event()

    def send(message, buffers):
        sent.append((message, threading.current_thread().name))
        got.set()

    feed = Feed(log, lambda: Facts("exp", "running"), send)
    for view in ("a", "b"):
        got.clear()
        feed.open(view)
        assert got.wait(5)
        got.clear()
        logs.rows(log, 1, 1)
        assert got.wait(5)
        feed.close(view)
        assert feed.join(5) and feed._thread is None

    assert {name for _, name in sent} == {"rapidfire-panel"}
    assert [m["type"] for m, _ in sent if m["type"] == "snapshot"] == ["snapshot"] * 2


def test_a_failing_send_ends_neither_the_thread_nor_the_log(tmp_path, caplog):
    log, tried = logs.started(tmp_path), threading.Event()
    second = threading.Event()

    def send(message, buffers):
        if tried.is_set():
            second.set()
        tried.set()
        raise OSError("the comm is gone")

    feed = Feed(log, lambda: Facts("exp", "running"), send)
    feed.open("v")
    assert tried.wait(5)
    feed.open("w")
    assert second.wait(5)
    feed.stop()

    assert feed.join(5)
    assert [r.message for r in caplog.records] == ["the panel cannot be told what is new"]


def test_appending_from_many_threads_while_views_come_and_go_never_blocks(tmp_path):
    log, sent = logs.started(tmp_path, 4), []
    feed = Feed(log, lambda: Facts("exp", "running"), lambda m, b: sent.append((m, b)))
    feed.show_twin(lambda fold, facts: None, lambda fold, facts: None)

    def append(run):
        for step in range(1, 200):
            logs.rows(log, run, 1, step)
            if step % 20 == 0:
                logs.op(log, "boost", run, weight=float(step))

    def come_and_go():
        for number in range(100):
            feed.open(f"v{number}")
            feed.heard(f"v{number}")
            feed.flush()
            feed.close(f"v{number}")

    threads = [threading.Thread(target=append, args=(run,)) for run in range(1, 5)]
    threads += [threading.Thread(target=come_and_go) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert not any(thread.is_alive() for thread in threads)
    done = threading.Event()
    feed._send = lambda m, b: (sent.append((m, b)), done.set())
    feed.open("last")
    assert done.wait(5)
    feed.stop()
    assert feed.join(5)
    last = sent[-1][0]
    assert last["type"] == "snapshot" and sum(b["n"] for b in last["blocks"]) == 4 * 199
