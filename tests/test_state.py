"""State from events: replay, logged rows over restarts, and what ops are told."""

import math
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapidfire_jupyter.errors import OpError
from rapidfire_jupyter.events import Event, EventLog
from rapidfire_jupyter.ops import Op, OpHandle, verdict
from rapidfire_jupyter.state import Run, State, apply, chunks_done, history, observed_steps

SPECS = [
    {"id": i, "name": f"run {i}", "trainer_type": "SFT", "config": {"peft_config.r": 2**i}}
    for i in (1, 2, 3)
]
FIT = {"seed": 42, "num_chunks": 2}
READY = {"total_steps": 6, "chunk_ends": [3, 6], "base": "base-1", "step": 0}


def events(*parts):
    """Events from (kind, run, data), numbered."""
    return [Event(n, 100.0 + n, kind, run, data) for n, (kind, run, data) in enumerate(parts)]


def replay(*parts):
    state = State()
    for event in events(("fit_started", None, {"runs": SPECS, "fit": FIT}), *parts):
        state = apply(state, event)
    return state


def op(kind, run=None, outcome="applied", **data):
    return "op", run, {"kind": kind, "args": {}, "by": "cell", "outcome": outcome, **data}


LIFE = [
    ("fit_started", None, {"runs": SPECS, "fit": FIT}),
    ("run_prepared", 1, READY),
    ("run_prepared", 2, READY),
    ("slice_started", 1, {"step": 0}),
    ("logged", 1, {"row": {"loss": math.nan, "step": 1}, "source": "trainer"}),
    ("advanced", 1, {"step": 3, "chunks": 1.0}),
    ("checkpoint", 1, {"step": 3, "rows": 1}),
    op("boost", 2, weight=3.0),
    ("slice_started", 2, {"step": 0}),
    ("advanced", 2, {"step": 3, "chunks": 1.0}),
    op("clone", 1, created={**SPECS[0], "id": 4, "parent": 1, "warm": True, "clone_step": 3}),
    op("stop", 3),
    op("pause_all"),
    op("resume_all"),
    ("run_failed", 2, {"error": "RuntimeError: no", "trace": "..."}),
    op("resume", 2, config={"peft_config.r": 4, "training_args.num_train_epochs": 3}),
    ("run_inexact", 1, {"reason": "a cell ran beside step 3"}),
    ("run_recovered", 1, {"step": 3, "rows": 1, "skipped": []}),
    ("advanced", 1, {"step": 6, "chunks": 1.0}),
    ("run_completed", 1, {"step": 6}),
    op("delete", 3),
    op("undelete", 3),
    ("ended", None, {}),
    ("attached", None, {}),
]


def test_the_events_of_a_log_file_give_the_state_again(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    live = State()
    for kind, run, data in LIFE:
        live = apply(live, log.append(kind, run, **data))
    log.close()

    again = State()
    for event in EventLog(tmp_path / "events.jsonl", read_only=True).events:
        again = apply(again, event)

    assert again == live
    assert [run.status for run in again.runs.values()] == [
        "completed", "queued", "stopped", "queued",
    ]  # fmt: skip
    assert again.runs[1].inexact == ("a cell ran beside step 3",)


@given(cut=st.integers(0, len(LIFE)))
def test_replaying_in_two_parts_is_replaying_at_once(cut):
    whole = first = State()
    for event in events(*LIFE):
        whole = apply(whole, event)

    for event in events(*LIFE)[:cut]:
        first = apply(first, event)
    for event in events(*LIFE)[cut:]:
        first = apply(first, event)

    assert first == whole


def test_applying_an_event_changes_no_state_that_was_there_before():
    before = replay(("run_prepared", 1, READY))
    kept = State(dict(before.runs), before.fit, before.paused, before.ended)

    for event in events(*LIFE[3:]):
        apply(before, event)

    assert before == kept
    with pytest.raises(FrozenInstanceError):
        before.runs[1].step = 9


@pytest.mark.parametrize(
    "event",
    [
        ("telemetry", None, {"x": 1}),
        ("telemetry", 1, {"x": 1}),
        ("logged", 1, {"row": {"loss": 1.0, "step": 1}, "source": "trainer"}),
        ("alert", None, {"text": "..."}),
        ("advanced", 99, {"step": 3, "chunks": 1.0}),
        op("sample", 1),
        op("sample"),
        op("stop", 1, outcome="refused"),
        op("stop", 1, outcome="already"),
    ],
)
def test_what_is_unknown_or_did_not_act_changes_nothing(event):
    state = replay(("run_prepared", 1, READY))

    assert apply(state, events(event)[0]) == state


def test_a_recovery_takes_a_run_back_and_gives_it_the_lost_chunks():
    state = replay(
        ("run_prepared", 1, READY),
        ("advanced", 1, {"step": 3, "chunks": 1.0}),
        ("checkpoint", 1, {"step": 3, "rows": 3}),
        ("advanced", 1, {"step": 6, "chunks": 1.0}),
        ("run_recovered", 1, {"step": 3, "rows": 3, "skipped": ["checkpoint-6: it was cut"]}),
    )
    run = state.runs[1]

    assert (run.step, run.checkpoint_step, run.served, run.chunk) == (3, 3, 1.0, 1)


def test_a_recovery_to_the_start_leaves_no_checkpoint_and_no_negative_service():
    state = replay(
        ("run_prepared", 1, READY),
        op("boost", 1, weight=4.0),
        ("advanced", 1, {"step": 6, "chunks": 2.0}),
        op("boost", 1, weight=0.5),
        ("run_recovered", 1, {"step": 0, "rows": 0, "skipped": []}),
    )

    assert state.runs[1].checkpoint_step is None and state.runs[1].step == 0
    assert state.runs[1].served == 0.0


def test_rows_past_a_recovery_are_dropped_and_those_trained_again_are_kept_once():
    rows = [{"loss": float(n), "step": n} for n in (1, 2, 3, 4)]
    again = [{"loss": -float(n), "step": n} for n in (3, 4, 5)]
    log = events(
        *[("logged", 1, {"row": row, "source": "trainer"}) for row in rows[:2]],
        ("logged", 2, {"row": {"loss": 9.0, "step": 1}, "source": "trainer"}),
        *[("logged", 1, {"row": row, "source": "trainer"}) for row in rows[2:]],
        ("run_recovered", 2, {"step": 0, "rows": 0, "skipped": []}),
        ("run_recovered", 1, {"step": 2, "rows": 2, "skipped": []}),
        *[("logged", 1, {"row": row, "source": "trainer"}) for row in again],
    )

    assert history(log, 1) == [*rows[:2], *again]
    assert history(log, 2) == history(log, 3) == []


def test_two_recoveries_in_a_row_drop_nothing_more():
    log = events(
        ("logged", 1, {"row": {"loss": 1.0, "step": 1}, "source": "trainer"}),
        ("logged", 1, {"row": {"loss": 2.0, "step": 2}, "source": "trainer"}),
        ("run_recovered", 1, {"step": 1, "rows": 1, "skipped": []}),
        ("run_recovered", 1, {"step": 1, "rows": 1, "skipped": []}),
    )

    assert [row["step"] for row in history(log, 1)] == [1]


def test_a_caller_cannot_change_the_log_through_its_history():
    log = events(("logged", 1, {"row": {"loss": 1.0, "step": 1}, "source": "trainer"}))

    history(log, 1)[0]["loss"] = 5.0

    assert history(log, 1) == [{"loss": 1.0, "step": 1}]


def test_steps_with_a_chunk_evaluation_forget_those_lost_in_a_recovery():
    log = events(
        ("logged", 1, {"row": {"eval_loss": 1.0, "step": 3}, "source": "chunk"}),
        ("logged", 1, {"row": {"loss": 1.0, "step": 4}, "source": "trainer"}),
        ("logged", 1, {"row": {"eval_loss": 1.0, "step": 6}, "source": "chunk"}),
        ("run_recovered", 1, {"step": 3, "rows": 1, "skipped": []}),
    )

    assert observed_steps(log, 1) == {3}


@pytest.mark.parametrize(
    ("ends", "step", "done"),
    [
        ((3, 6), 0, 0.0),
        ((3, 6), 2, 2 / 3),
        ((3, 6), 3, 1.0),
        ((3, 6), 6, 2.0),
        ((3, 3, 6), 3, 2.0),
        ((3, 3, 6), 4, 2 + 1 / 3),
        ((3, 6), 9, 2.0),
        ((), 4, 0.0),
    ],
)
def test_chunks_done_counts_the_share_of_the_chunk_a_run_is_in(ends, step, done):
    assert chunks_done(ends, step) == pytest.approx(done)


def test_a_clone_and_a_resumed_run_join_at_the_least_service_of_the_active():
    parts = [
        ("advanced", 1, {"step": 3, "chunks": 5.0}),
        ("advanced", 2, {"step": 3, "chunks": 4.0}),
        op("stop", 3),
        op("resume", 3),
        op("clone", 1, created={**SPECS[0], "id": 4, "parent": 1}),
    ]
    state = replay(*parts)

    assert state.runs[3].served == 4.0 and state.runs[4].served == 4.0


@pytest.mark.parametrize("status", ["completed", "failed", "stopped"])
def test_an_undone_delete_gives_back_what_was_deleted(status):
    ended = {
        "completed": ("run_completed", 1, {"step": 6}),
        "failed": ("run_failed", 1, {"error": "RuntimeError: no", "trace": "..."}),
        "stopped": op("stop", 1),
    }
    before = replay(("run_prepared", 1, READY), ended[status]).runs[1]

    after = replay(
        ("run_prepared", 1, READY), ended[status], op("delete", 1), op("undelete", 1)
    ).runs[1]

    assert (after.status, after.error) == (before.status, before.error)
    assert (after.step, after.chunk_ends) == (before.step, before.chunk_ends)


# ---- verdicts ----


def world(**changed):
    """Runs 1 to 7, one in each status, in the order of the names below."""
    statuses = ("queued", "running", "stopped", "completed", "failed", "deleted", "paused")
    runs = {
        i: Run(
            i, f"run {i}", "MTL", {"mixture.weights": [0.5, 0.5]}, status=status, step=6,
            total_steps=6, checkpoint_step=6,
            deleted_at=1000.0,
        )
        for i, status in enumerate(statuses, start=1)
    }  # fmt: skip
    runs[1] = replace(runs[1], step=0, checkpoint_step=None)
    return State(runs, {}, **changed)


GONE = "run 6 is deleted; undelete it within 30 s, or clone another"
VERDICTS = [
    (Op("stop", 1), "applied", ""),
    (Op("stop", 2), "applied", ""),
    (Op("stop", 3), "already", ""),
    (Op("stop", 4), "refused", "run 4 is completed; only an active run can be stopped"),
    (Op("stop", 5), "refused", "run 5 is failed; only an active run can be stopped"),
    (Op("stop", 6), "refused", GONE),
    (Op("stop", 7), "applied", ""),
    (Op("stop", 9), "refused", "there is no run 9; runs: 1, 2, 3, 4, 5, 6, 7"),
    (Op("stop"), "refused", "there is no run None; runs: 1, 2, 3, 4, 5, 6, 7"),
    (Op("resume", 1), "already", ""),
    (Op("resume", 2), "already", ""),
    (Op("resume", 3), "applied", ""),
    (
        Op("resume", 4),
        "refused",
        "run 4 has finished, at step 6; give num_train_epochs= or max_steps= to train longer, "
        "or clone it",
    ),
    (Op("resume", 4, {"max_steps": 9}), "applied", ""),
    (
        Op("resume", 2, {"max_steps": 9}),
        "refused",
        "run 2 is running; stop it before it is extended",
    ),
    (Op("resume", 5), "applied", ""),
    (Op("resume", 6), "refused", GONE),
    (Op("resume", 7), "refused", "run 7 is paused with the experiment; use resume_all"),
    (Op("boost", 1, {"weight": 2.0}), "applied", ""),
    (Op("boost", 2, {"weight": 1.0}), "already", ""),
    (Op("boost", 3, {"weight": 2.0}), "applied", ""),
    (
        Op("boost", 4, {"weight": 2.0}),
        "refused",
        "run 4 is completed; it gets no more slices to weigh",
    ),
    (
        Op("boost", 5, {"weight": 2.0}),
        "refused",
        "run 5 is failed; it gets no more slices to weigh",
    ),
    (Op("boost", 6, {"weight": 2.0}), "refused", GONE),
    *[(Op("mix", i, {"weights": [0.8, 0.2]}), "applied", "") for i in (1, 2, 3, 7)],
    (Op("mix", 4, {"weights": [0.5, 0.5]}), "already", ""),
    (
        Op("mix", 4, {"weights": [0.8, 0.2]}),
        "refused",
        "run 4 is completed; only a run that goes on can change its weights, or clone it with "
        '{"mixture.weights": ...}',
    ),
    (Op("mix", 6, {"weights": [0.8, 0.2]}), "refused", GONE),
    (
        Op("clone", 1, {"warm": True}),
        "refused",
        "run 1 has no trained step yet to start warm from; use warm=False",
    ),
    (Op("clone", 1, {"warm": False}), "applied", ""),
    *[(Op("clone", i, {"warm": True}), "applied", "") for i in (2, 3, 4, 5, 7)],
    (Op("clone", 6, {"warm": False}), "refused", GONE),
    *[(Op("delete", i), "applied", "") for i in (1, 2, 3, 4, 5, 7)],
    (Op("delete", 6), "already", ""),
    *[(Op("undelete", i), "already", "") for i in (1, 2, 3, 4, 5, 7)],
    (Op("undelete", 6), "applied", ""),
    (Op("pause_all"), "applied", ""),
    (Op("resume_all"), "already", ""),
]


@pytest.mark.parametrize(("op", "outcome", "reason"), VERDICTS, ids=lambda v: str(v)[:40])
def test_an_op_is_judged_by_the_status_of_its_run(op, outcome, reason):
    judged = verdict(world(), op, now=1010.0)

    assert (judged.outcome, judged.reason) == (outcome, reason)


def test_an_undelete_is_allowed_for_30_seconds():
    in_time = verdict(world(), Op("undelete", 6), now=1030.0)
    late = verdict(world(), Op("undelete", 6), now=1030.5)

    assert in_time.outcome == "applied"
    assert (late.outcome, late.reason) == ("refused", "run 6 was deleted more than 30 s ago")


def test_pausing_what_is_paused_is_already_so():
    assert verdict(world(paused=True), Op("pause_all"), 0.0).outcome == "already"
    assert verdict(world(paused=True), Op("resume_all"), 0.0).outcome == "applied"


def test_an_empty_experiment_knows_no_runs():
    judged = verdict(State(), Op("stop", 1), 0.0)

    assert judged.reason == "there is no run 1; runs: none yet"


def test_a_refused_handle_raises_its_reason_and_a_pending_one_says_that_it_is():
    handle = OpHandle(Op("stop", 2))

    with pytest.raises(TimeoutError, match=r"op 'stop' is still pending after 0\.0 s"):
        handle.wait(0.0)
    handle.settle("refused", "run 2 is failed; only an active run can be stopped", 3, 2)
    with pytest.raises(OpError, match="run 2 is failed; only an active run can be stopped"):
        handle.wait(1)
    assert repr(handle).startswith("<stop run 2 refused at step 3: run 2 is failed")


def test_a_handle_of_a_clone_shows_the_new_run():
    handle = OpHandle(Op("clone", 2, {"warm": True}))

    handle.settle("applied", "", 6, 8)

    assert repr(handle.wait(0)) == "<clone run 2 applied at step 6 -> run 8>"
