"""From events to what a view shows: folds, heads, rows, curves, times left, lines."""

import json
import math
import sys

import logs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapidfire_jupyter import verbs
from rapidfire_jupyter.state import Run, history
from rapidfire_jupyter.ui import device, panel
from rapidfire_jupyter.ui.curves import (
    LEAST_ROWS,
    MOST_ROWS,
    Point,
    pack,
    quotas,
    thin,
    thin_all,
    unpack,
)
from rapidfire_jupyter.ui.delta import Known, all_known, changes
from rapidfire_jupyter.ui.eta import etas
from rapidfire_jupyter.ui.fold import Fold
from rapidfire_jupyter.ui.lines import magic_line
from rapidfire_jupyter.ui.metrics import best_run, by_use, columns, ranks
from rapidfire_jupyter.ui.view import Facts, differing, head, rows, snapshot, whole_progress

RUNNING = Facts("exp", "running")


def fold(log):
    return Fold().read(log.since(0))


def point(step, value, metrics=("loss",)):
    return Point(float(step), 0.0, 0.0, metrics, (float(value),) * len(metrics))


# ------------------------------------------------------------------------------------------- folds


def test_a_fold_moved_on_bit_by_bit_equals_one_that_read_all_at_once(tmp_path):
    log = logs.started(tmp_path, 3)
    part = fold(log)
    for first in range(1, 30, 7):
        logs.sliced(log, 1, 7, 1.0, first - 1)
        logs.rows(log, 1, 7, first)
        logs.op(log, "boost", 2, weight=2.0 + first)
        part.read(log.since(part.next_seq))

    whole = fold(log)

    assert snapshot(part, RUNNING, 0, 9.0) == snapshot(whole, RUNNING, 0, 9.0)
    assert part.state == whole.state and part.next_seq == len(log.events)


def test_curves_hold_what_the_runs_history_holds(tmp_path):
    log = logs.started(tmp_path, 2)
    logs.rows(log, 1, 20)
    logs.rows(log, 2, 5, eval_loss=2.0)
    log.append("run_recovered", 1, step=8, rows=8, skipped=[])
    logs.rows(log, 1, 4, 9, seed=1)

    known = fold(log)

    for run in (1, 2):
        expected = [(r["step"], r["loss"]) for r in history(log.events, run)]
        assert [(p.step, p.values[0]) for p in known.curves[run]] == expected
    assert known.last[1]["loss"] == history(log.events, 1)[-1]["loss"]
    assert known.dropped == {1: 1}


def test_a_chunk_evaluation_without_epoch_has_the_epoch_of_its_step(tmp_path):
    log = logs.started(tmp_path, 1)
    log.append("logged", 1, row={"eval_loss": 2.0, "step": 150}, source="chunk")

    assert fold(log).curves[1][0].epoch == 150 / logs.LENGTH


def test_values_that_are_not_finite_are_kept_and_named(tmp_path):
    log = logs.started(tmp_path, 1)
    logs.rows(log, 1, 1, loss=math.nan, grad_norm=math.inf, learning_rate=-math.inf)
    log.append("logged", 1, row={"step": 2, "eval_loss": 10**400, "note": "text"}, source="trainer")

    message, numbers = snapshot(fold(log), RUNNING, 0, 9.0)

    last = message["rows"][0]["last"]
    assert last == {"loss": "NaN", "grad_norm": "Infinity", "learning_rate": "-Infinity",
                    "eval_loss": "Infinity"}  # fmt: skip
    values = unpack(message["blocks"], numbers)[1][0].values
    assert math.isnan(values[0]) and values[1:] == (math.inf, -math.inf)
    json.dumps(message, allow_nan=False)


def test_slices_are_measured_also_when_an_op_or_a_crash_cut_them(tmp_path):
    log = logs.started(tmp_path, 3)
    logs.sliced(log, 1, 10, 4.0)
    log.append("slice_started", 2, step=0)
    logs.op(log, "boost", 2, weight=3.0)
    logs.rows(log, 2, 3)
    logs.op(log, "stop", 2)
    log.append("slice_started", 3, step=0)
    logs.rows(log, 3, 2)
    log.append("attached")

    known = fold(log)

    assert [(s["run"], s["steps"]) for s in known.slices] == [(1, 10), (2, 3), (3, 2)]
    assert known.slices[0]["end"] - known.slices[0]["start"] == pytest.approx(4.0, abs=0.01)
    assert known.seconds_per_step()[1] == pytest.approx(0.4)
    assert known.open_slice is None


# ------------------------------------------------------------------------------------ head and rows


def test_the_head_tells_how_the_experiment_stands(tmp_path):
    log = logs.started(tmp_path, 3)
    logs.sliced(log, 1, 300, 30.0)
    logs.rows(log, 1, 1, eval_loss=2.0)
    logs.rows(log, 2, 1, eval_loss=1.0)
    logs.op(log, "delete", 3)
    log.append("alert", text="disk is nearly full\nmore")

    top = head(fold(log), RUNNING, log.events[-1].time)

    assert top["counts"] == {"queued": 1, "running": 1, "deleted": 1}
    assert top["progress"] == pytest.approx(301 / 1200, abs=0.01)
    assert top["elapsed_s"] == pytest.approx(30, abs=0.1)
    assert top["eta_s"] == pytest.approx(90, rel=0.01)
    assert top["metrics"] == ["loss", "eval_loss", "grad_norm", "learning_rate"]
    assert top["best"]["eval_loss"] == 2 and "learning_rate" not in top["best"]
    assert top["lower_is_better"] == {"loss": True, "eval_loss": True}
    assert top["varying"] == ["peft_config.r", "training_args.learning_rate"]
    assert top["constants"] == {"model_name": "tiny"}
    assert top["alerts"] == 1 and top["rows_per_epoch"] == 4 * logs.LENGTH


def test_a_row_has_the_step_of_its_newest_logged_row_while_it_runs(tmp_path):
    log = logs.started(tmp_path, 1)
    log.append("slice_started", 1, step=0)
    logs.rows(log, 1, 80)

    row = rows(fold(log))[0]

    assert (row["step"], row["chunk"], row["status"]) == (80, 1, "running")
    assert row["progress"] == pytest.approx(80 / 600, abs=1e-3)
    assert row["params"] == {}


def test_an_empty_experiment_has_a_head_and_no_rows(tmp_path):
    message, numbers = snapshot(Fold(), Facts("exp", "empty"), 0, 9.0)

    assert message["rows"] == [] and message["head"]["progress"] == 0.0 and numbers == b""


def test_the_best_run_is_never_one_with_nan_and_ties_go_to_the_lower_id():
    last = {3: {"eval_loss": 1.0}, 1: {"eval_loss": math.nan}, 2: {"eval_loss": 1.0}}

    assert best_run(last, "eval_loss") == 2
    assert best_run({1: {"bleu": 1.0}, 2: {"bleu": 2.0}}, "bleu") == 2
    assert best_run({1: {"loss": math.nan}}, "loss") is None


# What TRL 1.x logs in this order, with its evaluations.
DPO = [
    "loss",
    "grad_norm",
    "learning_rate",
    "entropy",
    "num_tokens",
    "mean_token_accuracy",
    "logits/chosen",
    "logits/rejected",
    "rewards/chosen",
    "rewards/rejected",
    "rewards/accuracies",
    "rewards/margins",
    "logps/chosen",
    "logps/rejected",
    "epoch",
]
GRPO = [
    "loss",
    "grad_norm",
    "learning_rate",
    "num_tokens",
    "completions/mean_length",
    "completions/clipped_ratio",
    "rewards/length_reward/mean",
    "rewards/length_reward/std",
    "reward",
    "reward_std",
    "frac_reward_zero_std",
    "kl",
    "entropy",
    "clip_ratio/low_mean",
    "step_time",
]


def test_the_goal_of_each_trainer_comes_first_and_what_only_describes_last():
    dpo = by_use([*DPO, *(f"eval_{name}" for name in DPO)])
    grpo = by_use(GRPO)

    assert dpo[:4] == ["loss", "eval_loss", "rewards/accuracies", "eval_rewards/accuracies"]
    assert dpo[4] == "rewards/margins" and dpo.index("mean_token_accuracy") < dpo.index("entropy")
    assert grpo[:3] == ["reward", "loss", "rewards/length_reward/mean"]
    assert sorted(dpo) == sorted([*DPO, *(f"eval_{name}" for name in DPO)])
    assert columns(GRPO) == ["reward", "loss"]
    assert columns(DPO) == ["loss", "rewards/accuracies", "rewards/margins"]


def test_what_describes_the_schedule_the_data_or_the_machine_ranks_no_run():
    ranking = {name for name in [*DPO, *GRPO] if ranks(name)}

    assert ranking == {"loss", "mean_token_accuracy", "rewards/accuracies", "rewards/margins",
                       "rewards/length_reward/mean", "reward"}  # fmt: skip
    assert not ranks("eval_runtime") and not ranks("eval_logps/chosen") and ranks("eval_bleu")


def test_one_run_alone_is_not_the_best(tmp_path):
    log = logs.started(tmp_path, 3)
    logs.rows(log, 1, 2, eval_loss=1.0)

    assert head(fold(log), RUNNING, 9.0)["best"] == {}
    logs.rows(log, 3, 2)

    best = head(fold(log), RUNNING, 9.0)["best"]
    assert set(best) == {"loss"}


def test_progress_is_the_share_of_the_steps_that_were_meant():
    stopped = Run(1, "a", "SFT", {}, status="stopped", step=2, total_steps=100)
    done = Run(2, "b", "SFT", {}, status="completed", step=100, total_steps=100)
    unknown = Run(3, "c", "SFT", {})
    steps = {1: 2, 2: 100, 3: 0}.__getitem__

    assert whole_progress([stopped], steps) == 0.02
    assert whole_progress([stopped, done], steps) == 0.51
    assert whole_progress([stopped, done, unknown], steps) == pytest.approx(102 / 300)
    assert whole_progress([done], steps) == 1.0 and whole_progress([], steps) == 0.0


def test_hyperparameters_of_deleted_runs_do_not_make_columns(tmp_path):
    log = logs.started(tmp_path, 2)
    logs.op(log, "delete", 2)

    constants, varying = differing(fold(log).state)

    assert varying == [] and constants["peft_config.r"] == 1


def test_entries_say_what_happened_in_words(tmp_path):
    log = logs.started(tmp_path, 2)
    logs.op(log, "stop", 1, step=7)
    logs.op(log, "resume", 2, outcome="refused", reason="run 2 is paused", by="cell")
    logs.op(log, "boost", 2, weight=3.0)
    created = {"id": 3, "name": "c", "trainer_type": "SFT", "config": {}, "parent": 1, "warm": True}
    logs.op(log, "clone", 1, args={"warm": True, "changes": {"r": 8}}, created=created)
    log.append("run_failed", 2, error="CUDA out of memory", trace="Traceback ...")
    log.append("run_completed", 1, step=9, note="")

    found = [(e["level"], e["text"]) for e in fold(log).entries]

    assert found == [
        ("info", "training of 2 runs started"),
        ("info", "run 1 stopped at step 7 (panel)"),
        ("alert", "run 2 resume was refused: run 2 is paused (cell)"),
        ("info", "run 2 boosted to weight 3 (panel)"),
        ("info", "run 1 cloned warm as run 3 with r=8 (panel)"),
        ("error", "run 2 failed: CUDA out of memory"),
        ("info", "run 1 is completed, at step 9"),
    ]


# ------------------------------------------------------------------------------------ times left


def run(number, step, total=80, weight=1.0, served=0.0, status="queued"):
    ends = tuple(total * k // 8 for k in range(1, 9))
    return Run(number, "", "SFT", {}, status, weight=weight, step=step, total_steps=total,
               chunk_ends=ends, served=served)  # fmt: skip


def test_equal_runs_in_turns_end_together_after_the_sum_of_their_times():
    left = etas([run(1, 0), run(2, 0)], {1: 1.0, 2: 3.0})

    assert left.whole == pytest.approx(80 + 240)
    assert left.runs == {1: pytest.approx(320), 2: pytest.approx(320)}


def test_a_boosted_run_ends_sooner_and_the_whole_takes_as_long():
    left = etas([run(1, 0), run(2, 0, weight=4.0)], {1: 1.0, 2: 1.0})

    assert left.runs[2] == pytest.approx(80 + 20)
    assert left.runs[1] == left.whole == pytest.approx(160)


def test_a_run_that_is_nearly_done_does_not_wait_for_the_others():
    left = etas([run(1, 70, served=7.0), run(2, 0, served=7.0)], {1: 1.0})

    assert left.runs[1] == pytest.approx(10 + 10)
    assert left.runs[2] == pytest.approx(90)


def test_time_left_is_unknown_before_a_slice_and_zero_when_all_rest():
    assert etas([run(1, 0)], {}).whole is None
    assert etas([run(1, 80, status="completed"), run(2, 3, status="stopped")], {}).whole == 0.0


# ------------------------------------------------------------------------------------------ curves


FLOATS = st.floats(width=32)


@given(
    st.lists(
        st.tuples(st.sampled_from([("loss",), ("eval_loss", "bleu"), ()]), FLOATS, FLOATS),
        max_size=30,
    )
)
def test_packed_points_are_read_back_as_they_were(items):
    points = [Point(float(i), 0.5, 2.0, m, (a, b)[: len(m)]) for i, (m, a, b) in enumerate(items)]

    blocks, numbers = pack(7, points)

    assert repr(unpack(blocks, numbers).get(7, [])) == repr(points)
    assert len(numbers) == 4 * sum(b["n"] * (3 + len(b["metrics"])) for b in blocks)


@given(st.lists(st.floats(allow_nan=True), min_size=1, max_size=400), st.integers(12, 100))
def test_thinned_points_are_few_and_in_order_with_both_ends_and_extremes(values, most):
    points = [point(i, v) for i, v in enumerate(values)]

    kept = thin(points, most)

    steps = [p.step for p in kept]
    assert len(kept) <= most and steps == sorted(set(steps))
    assert steps[0] == 0 and steps[-1] == len(values) - 1
    finite = [v for v in values if math.isfinite(v)]
    if finite:
        found = {p.values[0] for p in kept}
        assert {min(finite), max(finite)} <= found


def test_rows_of_evaluations_are_kept_first():
    points = [point(i, 1.0) for i in range(1000)]
    points[100:900:100] = [point(i, 1.0, ("eval_loss",)) for i in range(100, 900, 100)]

    kept = thin(points, 40)

    assert sum(p.evaluated for p in kept) == 8


def test_a_spike_of_nan_is_seen_after_thinning():
    points = [point(i, 1.0) for i in range(5000)]
    points[3210] = point(3210, math.nan)

    assert any(math.isnan(p.values[0]) for p in thin(points, 200))


@given(st.dictionaries(st.integers(1, 60), st.integers(1, 5000), min_size=1, max_size=60))
def test_a_snapshot_has_at_most_its_rows_and_every_run_its_share(counts):
    found = quotas(counts, dict.fromkeys(counts, 6.0))

    assert sum(found.values()) <= MOST_ROWS
    assert all(found[i] >= min(counts[i], LEAST_ROWS) for i in counts)
    if sum(counts.values()) <= MOST_ROWS:
        assert found == counts


def test_a_snapshot_of_48_runs_is_small(tmp_path):
    log = logs.started(tmp_path, 48)
    for i in range(1, 49):
        logs.rows(log, i, 600)

    message, numbers = snapshot(fold(log), RUNNING, 0, 9.0)

    scripts = len(panel._ESM.encode()) + len(panel._CSS.encode())
    size = scripts + len(json.dumps(message)) + len(numbers)
    assert size <= 400_000, (scripts, size)
    assert all(len(p) >= LEAST_ROWS for p in unpack(message["blocks"], numbers).values())


def test_few_points_are_not_thinned(tmp_path):
    log = logs.started(tmp_path, 3)
    logs.rows(log, 1, 500)
    logs.rows(log, 2, 3)

    curves = fold(log).curves

    assert thin_all(curves) == {run: list(points) for run, points in curves.items()}


# ------------------------------------------------------------------------------------------ deltas


def test_deltas_after_a_snapshot_add_up_to_everything(tmp_path):
    log = logs.started(tmp_path, 3)
    logs.rows(log, 1, 5)
    part = fold(log)
    message, numbers = snapshot(part, RUNNING, 0, 9.0)
    known = all_known(part, message["rows"], message["head"], 0)
    curves = unpack(message["blocks"], numbers)
    table = {row["id"]: row for row in message["rows"]}
    entries, slices = list(message["entries"]), list(message["slices"])

    for first in range(1, 40, 3):
        logs.rows(log, 2, 3, first)
        logs.sliced(log, 2, 3, 1.0, first - 1)
        if first == 19:
            log.append("run_recovered", 2, step=10, rows=10, skipped=[])
        if first == 22:
            logs.op(log, "boost", 3, weight=5.0)
        part.read(log.since(part.next_seq))
        told = changes(part, RUNNING, known, first, 9.0, beat=True)
        assert told is not None
        delta, packed = told
        for run_id in delta["reset"]:
            curves[run_id] = []
        for run_id, points in unpack(delta["blocks"], packed).items():
            curves.setdefault(run_id, []).extend(points)
        table.update({row["id"]: row for row in delta["rows"]})
        entries, slices = entries + delta["entries"], slices + delta["slices"]

    final, packed = snapshot(fold(log), RUNNING, 0, 9.0)
    assert curves == unpack(final["blocks"], packed)
    assert [{**r, "eta_s": 0} for r in table.values()] == [{**r, "eta_s": 0} for r in final["rows"]]
    assert entries == final["entries"] and slices == final["slices"]


def test_nothing_new_is_nothing_to_tell(tmp_path):
    log = logs.started(tmp_path, 2)
    known, part = Known(), fold(log)
    first = changes(part, RUNNING, known, 1, 9.0, beat=False)

    assert first is not None and len(first[0]["rows"]) == 2
    assert changes(part, RUNNING, known, 2, 10.0, beat=False) is None
    beat = changes(part, RUNNING, known, 2, 10.0, beat=True)
    assert beat is not None and beat[0]["head"] and beat[0]["rows"] == []


def test_rows_that_only_moved_on_take_turns_and_changed_ones_do_not_wait(tmp_path):
    log = logs.started(tmp_path, 30)
    known, part = Known(), fold(log)
    changes(part, RUNNING, known, 0, 9.0, beat=True)
    for i in range(1, 31):
        logs.rows(log, i, 1)
    logs.op(log, "stop", 30)
    part.read(log.since(part.next_seq))

    told = [changes(part, RUNNING, known, seq, 9.0, beat=True) for seq in range(1, 7)]

    rows_told = [[row["id"] for row in delta["rows"]] for delta, _ in told]
    assert rows_told[0][0] == 30 and all(len(ids) <= 9 for ids in rows_told)
    assert sorted(i for ids in rows_told for i in ids) == list(range(1, 31))


# ------------------------------------------------------------------------------------ the machine


def test_memory_is_that_of_this_process_until_a_gpu_is_in_use(monkeypatch):
    psutil = pytest.importorskip("psutil")
    used = psutil.Process().memory_info().rss

    found = device.memory()

    assert found["used_bytes"] == pytest.approx(used, rel=0.1)
    assert used < found["total_bytes"] <= psutil.virtual_memory().total
    assert device.device() == "cpu"

    class Cuda:
        @staticmethod
        def mem_get_info():
            return 30, 80

        @staticmethod
        def get_device_name():
            return "NVIDIA H200"

    monkeypatch.setattr(device, "_cuda", lambda: Cuda)
    assert device.memory() == {"used_bytes": 50.0, "total_bytes": 80.0}
    assert device.device() == "NVIDIA H200"


def test_a_gpu_that_nobody_uses_is_not_woken(monkeypatch):
    class Torch:
        class cuda:  # noqa: N801  # as torch calls it
            @staticmethod
            def is_initialized():
                return False

    monkeypatch.setitem(sys.modules, "torch", Torch)

    assert device._cuda() is None and device.device() == "cpu"


# ------------------------------------------------------------------------------------------- lines


@pytest.mark.parametrize(
    ("kind", "run_id", "args", "text"),
    [
        ("stop", 2, {}, "%rapidfire stop 2"),
        ("pause_all", None, {}, "%rapidfire pause"),
        ("resume_all", None, {}, "%rapidfire resume-all"),
        ("boost", 1, {"weight": 3.0}, "%rapidfire boost 1 3"),
        ("resume", 4, {"num_train_epochs": 2}, "%rapidfire resume 4 num_train_epochs=2"),
        ("mix", 1, {"weights": {"support": 4, "b": 0.5}}, "%rapidfire mix 1 support=4 b=0.5"),
        (
            "clone",
            1,
            {"changes": {"training_args.learning_rate": 5e-4}, "warm": True},
            "%rapidfire clone 1 training_args.learning_rate=0.0005 --warm",
        ),
    ],
)
def test_an_op_has_its_line(kind, run_id, args, text):
    assert magic_line(kind, run_id, args) == text


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["a", "b.c", "d_e"]), VALUES, max_size=3), st.booleans())
def test_the_line_of_a_clone_reads_back_as_the_clone(changes, warm):
    line = magic_line("clone", 5, {"changes": changes, "warm": warm}, "my 'exp\" [1]")

    command = verbs.parse(line.removeprefix("%rapidfire "))

    assert (command.verb, command.words) == ("clone", ("5",))
    assert command.pairs == changes and ("--warm" in command.options) == warm
