"""Who trains next: fair shares, no run starved or favoured, whatever ops come in between."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapidfire_jupyter import mixture
from rapidfire_jupyter.events import Event
from rapidfire_jupyter.ops import KINDS, WHOLE_EXPERIMENT, Op, verdict
from rapidfire_jupyter.scheduler import next_run, slice_end, turns
from rapidfire_jupyter.state import ACTIVE, Run, State, apply, chunks_done

MIXED = {mixture.TASKS: ["a", "b"], mixture.WEIGHTS: [0.5, 0.5]}


class Simulation:
    """An engine without training: it appends the events that the real one would."""

    def __init__(self, *chunk_ends):
        self.state, self.events, self.slices = State(), [], []
        specs = [
            {"id": i, "name": f"run {i}", "trainer_type": "MTL", "config": MIXED}
            for i in range(1, len(chunk_ends) + 1)
        ]
        self.emit("fit_started", runs=specs, fit={})
        for number, ends in enumerate(chunk_ends, start=1):
            self.prepare(number, ends)

    def emit(self, kind, run=None, /, **data):
        event = Event(len(self.events), float(len(self.events)), kind, run, data)
        self.events.append(event)
        self.state = apply(self.state, event)

    def prepare(self, run, ends, step=0):
        facts = {"total_steps": ends[-1], "chunk_ends": list(ends), "base": "base-1", "step": step}
        self.emit("run_prepared", run, **facts)

    def slice(self, steps=None):
        """Train the next run for a slice; gives its id, or None if there is none."""
        run = next_run(self.state, self.state.runs)
        if run is None:
            return None
        known = self.state.runs[run]
        self.emit("slice_started", run, step=known.step)
        end = slice_end(known, steps)
        chunks = chunks_done(known.chunk_ends, end) - chunks_done(known.chunk_ends, known.step)
        self.emit("advanced", run, step=end, chunks=chunks)
        if end == known.total_steps:
            self.emit("run_completed", run, step=end)
        self.slices.append(run)
        return run

    def op(self, kind, run=None, **args):
        """Ask for an op as a user does; gives the verdict."""
        op = Op(kind, run, args)
        judged = verdict(self.state, op, now=float(len(self.events)))
        data = {"kind": kind, "args": args, "by": "test", "outcome": judged.outcome}
        if judged.outcome == "applied" and kind == "boost":
            data["weight"] = args["weight"]
        if judged.outcome == "applied" and kind == "mix":
            data["weights"] = mixture.from_row(
                self.state.runs[run].config[mixture.WEIGHTS], 0, args["weights"]
            )
        if judged.outcome == "applied" and kind == "clone":
            parent, number = self.state.runs[run], max(self.state.runs) + 1
            data["created"] = {
                "id": number,
                "name": f"clone of {run}",
                "trainer_type": "MTL",
                "config": parent.config,
                "parent": run,
                "warm": args["warm"],
                "changes": {},
                "clone_step": parent.step if args["warm"] else None,
            }
        if judged.outcome == "applied" and kind == "resume" and args:
            data["config"] = MIXED
        self.emit("op", run, reason=judged.reason, **data)
        if "config" in data and self.state.runs[run].chunk_ends:  # made longer by two chunks
            ends = self.state.runs[run].chunk_ends
            self.prepare(run, [*ends, ends[-1] + 5, ends[-1] + 10], self.state.runs[run].step)
        if "created" in data and self.state.runs[run].chunk_ends:
            ends = self.state.runs[run].chunk_ends
            self.prepare(number, ends, parent.step if args["warm"] else 0)
        return judged

    def train(self, slices):
        """Ids of the runs that had the next so many slices."""
        return [self.slice() for _ in range(slices)]


def even(chunks, steps=10):
    return [steps * (k + 1) for k in range(chunks)]


def others_between(slices, run):
    """How many slices others had between two of this run."""
    at = [i for i, one in enumerate(slices) if one == run]
    return [after - before - 1 for before, after in pairwise(at)]


def test_all_runs_finish_a_chunk_before_any_starts_the_next():
    sim = Simulation(even(4), even(4), even(4))

    assert sim.train(12) == [1, 2, 3] * 4
    assert sim.slice() is None
    assert {run.status for run in sim.state.runs.values()} == {"completed"}


def test_runs_of_different_steps_per_chunk_still_go_chunk_by_chunk():
    sim = Simulation(even(4, steps=64), even(4, steps=1), [3, 3, 7, 9])

    order = sim.train(11)

    done = {1: 0, 2: 0, 3: 0}
    for run in order:
        ends = sim.state.runs[run].chunk_ends
        done[run] += 1 if run != 3 or done[3] != 0 else 2  # its second chunk holds no step
        behind = [d for i, d in done.items() if d < len(sim.state.runs[i].chunk_ends)]
        assert done[run] <= min(behind, default=len(ends)) + (2 if run == 3 else 1)
    assert order == [1, 2, 3, 1, 2, 1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize("slice_steps", [1, 3, 7])
def test_slices_shorter_than_a_chunk_share_by_chunks_too(slice_steps):
    sim = Simulation(even(4, steps=10), even(4, steps=20))

    while all(run.status in ACTIVE for run in sim.state.runs.values()):
        sim.slice(slice_steps)
        shares = [chunks_done(r.chunk_ends, r.step) for r in sim.state.runs.values()]
        assert abs(shares[0] - shares[1]) <= slice_steps / 10 + 1e-6


def test_a_weight_of_3_gets_three_chunks_for_each_one_of_the_others():
    sim = Simulation(even(100), even(100))
    sim.op("boost", 1, weight=3.0)

    order = sim.train(40)

    assert order.count(1) == 30 and order.count(2) == 10
    for start in range(0, 40, 4):
        assert order[start : start + 4].count(1) == 3


def test_thirds_of_a_chunk_add_up_to_a_chunk():
    sim = Simulation(even(3000, steps=3), even(3000, steps=3))
    for weight, run in ((3.0, 1), (7.0, 2)):
        sim.op("boost", run, weight=weight)

    order = sim.train(1000)

    assert order.count(1) == 300 and order.count(2) == 700


@pytest.mark.parametrize("warm", [True, False])
def test_a_clone_in_the_middle_neither_waits_nor_monopolises(warm):
    sim = Simulation(even(50), even(50))
    sim.train(40)
    sim.op("clone", 1, warm=warm)

    order = sim.train(30)

    assert order.index(3) <= 2
    assert order.count(3) == 10
    assert max(others_between(order, 3)) <= 2


def test_a_resumed_run_does_not_catch_up_what_it_missed():
    sim = Simulation(even(100), even(100), even(100))
    sim.train(3)
    sim.op("stop", 2)
    sim.train(60)
    sim.op("resume", 2)

    order = sim.train(30)

    assert order.index(2) <= 2 and order.count(2) == 10


def test_a_run_that_failed_and_was_resumed_is_served_like_the_others():
    sim = Simulation(even(100), even(100), even(100))
    sim.train(7)
    sim.emit("run_failed", 2, error="RuntimeError: no", trace="")
    sim.train(20)
    sim.op("resume", 2)
    sim.emit("run_recovered", 2, step=10, rows=1, skipped=[])

    order = sim.train(30)

    assert max(others_between(order, 2), default=0) <= 2
    assert 10 <= order.count(2) <= 11  # the chunk it lost is given back


def test_a_boost_that_ends_leaves_no_debt_and_no_credit():
    sim = Simulation(even(500), even(500))
    sim.op("boost", 1, weight=4.0)
    sim.train(50)
    sim.op("boost", 1, weight=1.0)

    order = sim.train(40)

    assert order.count(1) == order.count(2) == 20
    assert max(others_between(order, 1)) <= 1 and max(others_between(order, 2)) <= 1


@pytest.mark.parametrize("weight", [0.01, 0.1])
def test_a_run_slowed_down_for_a_while_is_not_starved_when_its_weight_is_put_back(weight):
    sim = Simulation(even(500), even(500))
    sim.op("boost", 1, weight=weight)
    sim.train(3)
    sim.op("boost", 1, weight=1.0)

    order = sim.train(20)

    assert 1 in order[:4] and max(others_between(order, 1)) <= 2


def test_nothing_is_next_while_paused_ended_or_when_nobody_is_ready():
    sim = Simulation(even(2), even(2))
    assert next_run(sim.state, []) is None
    assert next_run(sim.state, [2]) == 2

    sim.op("pause_all")
    assert next_run(sim.state, [1, 2]) is None
    sim.op("resume_all")
    assert next_run(sim.state, [1, 2]) == 1
    sim.emit("ended")
    assert next_run(sim.state, [1, 2]) is None


def test_ties_go_to_the_lower_id():
    state = State({i: Run(i, "", "SFT", {}, served=0.1 + 0.2) for i in (3, 1, 2)})
    state = State({**state.runs, 9: replace(state.runs[3], id=9, served=0.3)})

    assert next_run(state, [9, 3, 2, 1]) == 1


def test_a_slice_ends_with_its_chunk_or_after_its_steps_whichever_is_first():
    run = Run(1, "", "SFT", {}, chunk_ends=(3, 3, 7), total_steps=7)

    assert slice_end(run, None) == 3
    assert slice_end(replace(run, step=3), None) == 7
    assert slice_end(run, 2) == 2
    assert slice_end(replace(run, step=2), 5) == 3
    assert slice_end(replace(run, step=7), None) == 7
    assert slice_end(Run(1, "", "SFT", {}), None) == 1


WEIGHTS = [0.25, 0.5, 1.0, 2.0, 3.0, 8.0]


@settings(max_examples=60, deadline=None)
@given(
    chunks=st.lists(st.integers(20, 60), min_size=2, max_size=5),
    steps=st.lists(st.sampled_from([1, 10, 64]), min_size=5, max_size=5),
    data=st.data(),
)
def test_every_run_gets_its_next_slice_within_a_bounded_number_of_others(chunks, steps, data):
    sim = Simulation(*[even(n, s) for n, s in zip(chunks, steps, strict=False)])
    for run in sim.state.runs:
        sim.op("boost", run, weight=data.draw(st.sampled_from(WEIGHTS)))
    slices = []
    for _ in range(data.draw(st.integers(0, 20))):
        slices.append(sim.slice())
    changed = data.draw(st.sampled_from(["clone", "fail", "stop", "nothing"]))
    if changed == "clone":
        sim.op("clone", 1, warm=data.draw(st.booleans()))
    elif changed in ("fail", "stop") and sim.state.runs[1].status in ACTIVE:
        if changed == "fail":
            sim.emit("run_failed", 1, error="no", trace="")
        else:
            sim.op("stop", 1)
        sim.train(data.draw(st.integers(0, 15)))
        sim.op("resume", 1)

    waited = dict.fromkeys(sim.state.runs, 0)
    while (run := sim.slice()) is not None:
        runs = sim.state.runs
        waited[run] = 0
        for other in runs:
            if other != run and runs[other].status in ACTIVE:
                waited[other] += 1
                mine = runs[other].weight
                bound = sum(math.ceil(r.weight / mine) + 1 for i, r in runs.items() if i != other)
                assert waited[other] <= bound, (other, waited[other], bound)


LEGAL = {
    "stop": {("queued", "stopped"), ("running", "stopped"), ("paused", "stopped")},
    "resume": {
        (before, after)
        for before in ("stopped", "failed", "completed")
        for after in ("queued", "paused")
    },
    "boost": set(),
    "mix": {("running", "queued")},
    "clone": set(),
    "delete": {(before, "deleted") for before in (*ACTIVE, "stopped", "failed", "completed")},
    "undelete": {
        ("deleted", after) for after in ("queued", "paused", "stopped", "completed", "failed")
    },
    "pause_all": {("queued", "paused"), ("running", "paused")},
    "resume_all": {("paused", "queued")},
    "policy": set(),
}

STORM = st.lists(
    st.tuples(
        st.sampled_from([*KINDS, "slice", "slice", "slice", "steps", "fail", "reopen"]),
        st.integers(1, 6),
        st.sampled_from(WEIGHTS),
        st.booleans(),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(storm=STORM)
def test_no_storm_of_ops_leads_to_an_exception_or_an_illegal_state(storm):
    sim = Simulation(even(5), [1, 1, 4], even(3, steps=1))

    for kind, run, weight, flag in storm:
        before = sim.state
        if kind == "slice":
            sim.slice()
        elif kind == "steps":
            sim.slice(2)
        elif kind == "fail":
            if run in before.runs and before.runs[run].status == "running":
                sim.emit("run_failed", run, error="RuntimeError: no", trace="")
        elif kind == "reopen":
            sim.emit("ended")
            sim.emit("attached")
            for active in [r for r in sim.state.runs.values() if r.status in ACTIVE]:
                at = active.checkpoint_step or 0
                sim.emit("run_recovered", active.id, step=at, rows=0, skipped=[])
        else:
            shares = [0.5, 0.5] if flag else [0.8, 0.2]
            given = {
                "boost": {"weight": weight},
                "clone": {"warm": flag},
                "mix": {"weights": shares},
            }
            args = given.get(kind, {})
            if kind == "resume" and flag:
                args = {"num_train_epochs": 9}
            if kind == "policy":
                mode, settings = ("on", "dry-run", "off")[run % 3], {"eta": weight}
                args = {"name": "halving", "mode": mode, "settings": settings if flag else None}
            target = None if kind in WHOLE_EXPERIMENT else run
            judged = sim.op(kind, target, **args)
            assert judged.outcome in ("applied", "already", "refused")
            assert bool(judged.reason) == (judged.outcome == "refused")
            if judged.outcome != "applied":
                assert sim.state == before
            moved = {
                (before.runs[i].status, r.status)
                for i, r in sim.state.runs.items()
                if i in before.runs and before.runs[i].status != r.status
            }
            assert moved <= LEGAL[kind]
            if judged.outcome == "applied":
                assert sim.state != before
        assert set(before.runs) <= set(sim.state.runs)
        for one in sim.state.runs.values():
            assert one.served >= 0 and math.isfinite(one.served) and one.weight > 0
            assert not (sim.state.paused and one.status in ("queued", "running"))
            assert one.status != "paused" or sim.state.paused

    replayed = State()
    for event in sim.events:
        replayed = apply(replayed, event)
    assert replayed == sim.state


def test_runs_of_one_base_are_beside_each_other_within_a_pass_and_no_pass_is_left():
    sim = Simulation((2, 4), (2, 4), (2, 4), (2, 4))
    for run in (2, 4):
        facts = {"total_steps": 4, "chunk_ends": [2, 4], "base": "base-2", "step": 0}
        sim.emit("run_prepared", run, **facts)

    assert turns(sim.state, sim.state.runs) == [1, 2, 3, 4]
    assert turns(sim.state, sim.state.runs, "base-2") == [2, 4, 1, 3]
    sim.emit("advanced", 2, step=2, chunks=1)
    assert turns(sim.state, sim.state.runs, "base-2") == [4, 1, 3, 2]
    assert next_run(sim.state, sim.state.runs, "base-1") == 1
