"""Monitors: silent on healthy runs, and what they find in sick ones, with remedies that are ops."""

import json
import math
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from replay import Replay, grid

from rapidfire_jupyter.alerts import op_of, to_dict
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.learning_faults import (
    Deviation,
    EmptyBatches,
    NonFinite,
    Overfitting,
    Plateau,
    Spike,
)
from rapidfire_jupyter.machine_faults import IdleDevice, LowDisk, MemoryGrowth, Slowdown
from rapidfire_jupyter.measures import Disk, Measures, Slice
from rapidfire_jupyter.monitors import DEFAULT, check, look, look_meanwhile, new
from rapidfire_jupyter.ops import verdict
from rapidfire_jupyter.state import Run, State

STEPS, CHUNKS = 320, 8
MIB = 2**20
CONFIG = {
    "training_args.learning_rate": 1e-3,
    "training_args.per_device_train_batch_size": 4,
    "peft_config.r": 8,
    "peft_config.lora_dropout": 0.1,
}


def run_of(status="running", trainer="SFT", step=STEPS, **config):
    ends = tuple(STEPS * k // CHUNKS for k in range(1, CHUNKS + 1))
    return Run(
        1,
        "one",
        trainer,
        {**CONFIG, **config},
        status,
        step=step,
        total_steps=STEPS,
        chunk_ends=ends,
    )


def rate_at(share, schedule, warm):
    if share < warm:
        return 1e-3 * share / warm
    left = (share - warm) / (1 - warm)
    if schedule == "constant":
        return 1e-3
    return 1e-3 * (1 - left if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * left)))


def curve(seed, *, noise=None, jitter=0.003, eval_on=True, loss=None, schedule=None, end=STEPS):
    """Rows of a run that learns as it should: falling, with noise, a schedule and a warm-up."""
    draw = Random(f"curve {seed}")
    noise = draw.choice([0.02, 0.1, 0.3]) if noise is None else noise
    schedule = schedule or draw.choice(["constant", "linear", "cosine"])
    warm = draw.choice([0.0, 0.05, 0.1])
    floor, height = draw.uniform(0.4, 2.0), draw.uniform(0.5, 2.0)
    power, fast = draw.uniform(0.3, 1.0), draw.uniform(0.02, 0.3)
    rows = []
    for step in range(1, end + 1):
        share = step / STEPS
        pure = floor + height * (1 + max(0.0, share - warm / 2) / fast) ** -power
        if loss is not None:
            pure = loss(share)
        value = pure * math.exp(draw.gauss(0, noise))
        rate = rate_at(share, schedule, warm)
        grad = 0.5 * math.exp(draw.gauss(0, 0.3))
        rows.append({"step": step, "loss": value, "learning_rate": rate, "grad_norm": grad})
        if eval_on and step % (STEPS // CHUNKS) == 0:
            rows.append({"step": step, "eval_loss": pure * math.exp(draw.gauss(0, jitter))})
    return rows


def healthy_slices(seed, count=8):
    draw = Random(f"slices {seed}")
    return [
        Slice(
            run=1,
            end=10.0 * k,
            step=k * STEPS // count,
            steps=STEPS // count,
            seconds=4.0 * math.exp(draw.gauss(0, 0.15)),
            tokens=40_000 * math.exp(draw.gauss(0, 0.1)),
            rss_bytes=(900 + 40 * min(k, 2)) * MIB * math.exp(draw.gauss(0, 0.02)),
            device_bytes=4000 * MIB + draw.choice([0, 0, 200 * MIB]),
            utilisation=draw.uniform(0.85, 0.99),
        )
        for k in range(1, count + 1)
    ]


def seen(rows, monitors=DEFAULT, run=None, measures=None):
    run = run or run_of()
    return look(monitors, State({1: run}), {1: rows}, measures)


def falls(share):
    return 1.0 + math.exp(-3 * share)


# ----------------------------------------------------------------------------------- false alarms


def test_healthy_runs_raise_next_to_no_alerts():
    """240 curves: the false alarms of each kind, per run."""
    alarms: Counter[str] = Counter()
    count = 240
    for seed in range(count):
        rows = curve(seed, eval_on=seed % 3 > 0)
        measures = Measures(tuple(healthy_slices(seed)), (Disk(0.0, 1e12, 1e10),))
        alarms.update({alert.kind for alert in seen(rows, measures=measures)})

    assert set(alarms) <= {"plateau", "overfitting"}
    assert all(number <= 0.01 * count for number in alarms.values()), alarms


def test_healthy_simulated_grids_raise_no_alerts():
    for seed in range(2):
        replay = Replay(grid((0.0, 0.1))[:48], seed=seed, steps=32).run()

        found = look(DEFAULT, replay.state, replay.rows, replay.measures)

        assert Counter(alert.kind for alert in found if alert.kind != "plateau") == {}
        assert sum(alert.kind == "plateau" for alert in found) <= 2


def test_heavy_noise_of_small_batches_is_no_spike_and_no_deviation():
    found = [
        alert
        for seed in range(60)
        for alert in seen(curve(seed, noise=0.5), (Spike(), Deviation()))
    ]

    assert found == []


def test_noise_that_stays_while_the_loss_falls_to_nothing_is_no_deviation():
    def additive(seed):
        draw = Random(seed)
        return [
            {"step": s, "loss": max(1e-3, 2 * math.exp(-s / 60) + draw.gauss(0, 0.02))}
            for s in range(1, STEPS + 1)
        ]

    assert [a for seed in range(30) for a in seen(additive(seed), (Deviation(),))] == []


def test_jittery_evaluations_at_a_flat_end_are_no_overfitting():
    flat = [
        alert
        for seed in range(200)
        for alert in seen(
            curve(seed, jitter=0.006, loss=lambda share: 1 + math.exp(-20 * share)),
            (Overfitting(),),
        )
    ]

    assert len(flat) <= 2


def test_decay_of_the_learning_rate_makes_no_plateau():
    """Flat at the end since the rate is near zero, as it should be."""
    flat = [
        alert
        for seed in range(40)
        for alert in seen(
            curve(seed, schedule="cosine", loss=lambda share: 3 - 4 * min(share, 0.3)),
            (Plateau(),),
        )
    ]

    assert flat == []
    held = curve(1, schedule="constant", loss=lambda share: 3 - 4 * min(share, 0.3))
    assert len(seen(held, (Plateau(),))) == 1


def test_evaluations_that_swing_on_their_way_down_make_few_plateaus():
    """It falls by 2 % over the window; evaluations, at a high rate, are 1 % off."""
    found = [
        bool(seen(curve(s, jitter=0.01, loss=lambda share: 3 - 0.16 * share), (Plateau(),)))
        for s in range(40)
    ]

    assert sum(found) <= 4


# ------------------------------------------------------------------------------------- what is told


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_stops_the_run_at_once(value):
    rows = curve(1, end=40)
    rows[12]["loss"] = value
    rows[13]["loss"] = value

    (alert,) = seen(rows, run=run_of(step=40))

    assert (alert.kind, alert.level, alert.step) == ("non-finite", "error", 13)
    assert alert.text.startswith(f"loss is {value} at step 13 (rows 49 to 52 ")
    assert op_of(alert).kind == "stop" and op_of(alert).run == 1
    # Its weights are lost, so clones start from step 0.
    clones = [op_of(alert, i).args for i in (1, 2)]
    assert [c["warm"] for c in clones] == [False, False]
    assert clones[0]["changes"] == {"training_args.learning_rate": 0.000333}
    assert clones[1]["changes"] == {"training_args.max_grad_norm": 0.5}


def test_an_evaluation_that_is_not_finite_is_told_but_stops_nothing():
    rows = curve(1)
    place = next(i for i, row in enumerate(rows) if "eval_loss" in row)
    rows[place]["eval_loss"] = math.nan

    (alert,) = seen(rows, (NonFinite(),))

    assert (alert.level, alert.remedies) == ("warning", ())
    assert "eval rows may have no token that counts" in alert.text


def test_a_spike_names_its_rows_and_offers_a_lower_rate_and_clipping():
    rows = curve(3, noise=0.1, eval_on=False)
    rows[199]["loss"] *= 4

    (alert,) = seen(rows, (Spike(),))

    assert (alert.step, alert.level) == (200, "warning")
    assert "(rows 797 to 800 in the order it met them)" in alert.text
    assert [op_of(alert, i).args for i in range(2)] == [
        {
            "changes": {"training_args.learning_rate": 0.0005},
            "warm": True,
            "again": False,
            "name": None,
        },
        {
            "changes": {"training_args.max_grad_norm": 0.5},
            "warm": True,
            "again": False,
            "name": None,
        },
    ]


@pytest.mark.parametrize(
    ("given", "new_value"), [(0, 1.0), (5.0, 1.0), (1.0, 0.5), (None, 0.5), (0.5, 0.25)]
)
def test_clipping_is_harder_than_before(given, new_value):
    rows = curve(3, noise=0.1)
    rows[199]["loss"] *= 4
    run = run_of(**{"training_args.max_grad_norm": given})

    (alert,) = seen(rows, (Spike(),), run)

    assert op_of(alert, 1).args["changes"] == {"training_args.max_grad_norm": new_value}


def test_spikes_close_together_are_one_episode():
    rows = curve(3, noise=0.1, eval_on=False)
    for place in (150, 155, 160, 260):
        rows[place]["loss"] *= 4

    found = seen(rows, (Spike(),))

    assert [alert.step for alert in found] == [151, 261]
    assert len({alert.key for alert in found}) == 2


def test_a_run_that_becomes_unstable_deviates():
    draw = Random(5)
    rows = curve(5, noise=0.05, eval_on=False)
    for row in rows[200:]:
        row["loss"] *= math.exp(draw.gauss(0, 0.5))

    (alert,) = seen(rows, (Deviation(),))

    assert 200 < alert.step <= 250
    assert [op_of(alert, i).kind for i in range(len(alert.remedies))] == ["clone", "clone"]


@pytest.mark.parametrize("eval_on", [True, False])
def test_a_plateau_at_a_high_rate_is_told(eval_on):
    def stuck(share):
        return 2.0 + math.exp(-40 * share)

    found = [
        seen(curve(s, noise=0.02, eval_on=eval_on, loss=stuck, schedule="constant"), (Plateau(),))
        for s in range(20)
    ]

    assert sum(bool(alerts) for alerts in found) == 20
    alert = found[0][0]
    assert alert.level == "info"
    assert [(op_of(alert, i).kind) for i in range(3)] == ["boost", "clone", "clone"]
    assert op_of(alert, 0).args == {"weight": 2.0}
    assert op_of(alert, 1).args["changes"] == {"training_args.learning_rate": 0.003}


def test_overfitting_is_told_with_more_dropout_and_weight_decay():
    rows = curve(2, noise=0.02, jitter=0.0, loss=lambda share: 2.0 - share)
    for row in rows:
        if "eval_loss" in row and row["step"] > 120:
            row["eval_loss"] = 1.6 + row["step"] / 400

    found = seen(rows, (Overfitting(),))

    assert len(found) == 1 and found[0].step == 240
    assert "while loss fell to" in found[0].text
    changes = [op_of(found[0], i).args.get("changes") for i in range(3)]
    assert changes == [
        {"peft_config.lora_dropout": 0.3},
        {"training_args.weight_decay": 0.1},
        None,
    ]
    assert found[0].remedies[0][0] == "clone warm with lora_dropout 0.1 → 0.3"


def test_a_full_fine_tuning_has_no_lora_dropout_to_change():
    rows = curve(2, noise=0.02, jitter=0.0, loss=lambda share: 2.0 - share)
    for row in rows:
        if "eval_loss" in row:
            row["eval_loss"] = 1.6 + row["step"] / 400
    full = Run(1, "full", "SFT", {}, "running", step=STEPS, total_steps=STEPS)

    (alert,) = seen(rows, (Overfitting(),), full)

    assert [op_of(alert, i).kind for i in range(len(alert.remedies))] == ["clone", "stop"]


def test_batches_without_a_token_that_counts_are_told_once():
    rows = curve(4, eval_on=False)
    for place in (9, 50, 51):
        rows[place] |= {"loss": 0.0, "grad_norm": 0.0}

    (alert,) = seen(rows, (EmptyBatches(),))

    assert alert.step == 10
    assert "(rows 37 to 40 in the order it met them) and in 3 logged rows" in alert.text


@pytest.mark.parametrize("trainer", ["GRPO", "RLOO"])
def test_the_loss_of_rewarded_trainers_is_not_judged_but_for_nan(trainer):
    draw = Random(1)
    rows = [
        {"step": s, "loss": draw.gauss(0, 1e-3) * draw.choice([0, 1, 50])} for s in range(1, 200)
    ]
    rows[150]["loss"] = math.nan

    found = seen(rows, run=run_of(trainer=trainer))

    assert [alert.kind for alert in found] == ["non-finite"]


# ---------------------------------------------------------------------------------------- machine


def slices(**columns):
    """Slices of a run, one for each value of the columns."""
    count = len(next(iter(columns.values())))
    return tuple(
        Slice(
            **{"run": 1, "end": 0.0, "step": 40 * (k + 1), "steps": 40, "seconds": 4.0}
            | {name: values[k] for name, values in columns.items()}
        )
        for k in range(count)
    )


def test_memory_that_grows_in_each_slice_is_told():
    leak = [1000 * MIB, 1300 * MIB, *(1300 * MIB * 1.07**k for k in range(8))]

    (alert,) = seen([], (MemoryGrowth(),), measures=Measures(slices(rss_bytes=leak)))

    assert (alert.kind, alert.step) == ("memory", 320)
    assert alert.text.startswith("memory of the kernel grew from 1300 to 1823 MiB over 5 slices")


def test_memory_of_first_slices_and_one_step_up_is_no_leak():
    grows = [MIB * v for v in (500, 700, 800, 850, 900, 950, 950, 1400, 1400, 1390)]

    assert seen([], (MemoryGrowth(),), measures=Measures(slices(rss_bytes=grows))) == []


def test_a_slowdown_names_its_cause():
    seconds = [4.0, 4.1, 3.9, 4.0, 4.0, 9.0, 9.5, 9.4]
    waits = [0.1] * 5 + [5.0] * 3

    (alert,) = seen(
        [], (Slowdown(),), measures=Measures(slices(seconds=seconds, fetch_seconds=waits))
    )

    assert alert.step == 280
    assert alert.text.startswith("4.21 steps/s, 10 before; waiting for batches took 53 %")


def test_one_slow_slice_is_no_slowdown():
    seconds = [4.0, 4.1, 3.9, 4.0, 30.0, 4.0, 4.0, 30.0]

    assert seen([], (Slowdown(),), measures=Measures(slices(seconds=seconds))) == []


def shared(seconds, **columns):
    """Runs 1 to 4 in turns; each slice of a turn takes these seconds, run 1's ones its own."""
    found, now = [], 1000.0
    for k, took in enumerate(seconds):
        for run in (1, 2, 3, 4):
            mine = took if isinstance(took, tuple) else (took, took)
            spent = mine[0] if run == 1 else mine[1]
            now += spent
            more = {name: values[k] for name, values in columns.items()}
            found.append(Slice(run, now, 40 * (k + 1), 40, spent, **more))
    return Measures(tuple(found))


def seen_by_all(measures):
    runs = {n: replace(run_of(), id=n) for n in (1, 2, 3, 4)}
    return new(look((Slowdown(),), State(runs=runs), {}, measures), ())


def test_all_runs_slow_at_once_is_the_machine_and_told_once():
    (alert,) = seen_by_all(shared([4.0, 4.1, 3.9, 4.0, 4.0, 9.0, 9.5, 9.4]))

    assert (alert.run, alert.level, alert.kind) == (None, "info", "slowdown: shared machine")
    assert "the other runs lost as much" in alert.text


def test_a_run_that_is_slow_beside_others_that_are_not_is_told_of_itself():
    usual, slow = [4.0, 4.1, 3.9, 4.0, 4.0], [(9.0, 4.0), (9.5, 4.0), (9.4, 4.1)]
    (alert,) = seen_by_all(shared([*usual, *slow]))

    assert (alert.run, alert.kind, alert.level) == (1, "slowdown", "warning")


def test_a_kernel_that_got_less_of_the_processor_is_not_a_slow_run():
    seconds = [4.0, 4.1, 3.9, 4.0, 4.0, 9.0, 9.5, 9.4]
    waits = [0.1] * 5 + [5.0] * 3

    def told(**columns):
        known = Measures(slices(seconds=seconds, **columns))
        return seen([], (Slowdown(),), measures=known)

    starved, worked = told(cpu_seconds=[4] * 8), told(cpu_seconds=seconds)
    fetches = told(cpu_seconds=[4] * 8, fetch_seconds=waits)

    assert [a.run for a in starved] == [None]
    assert "this kernel had 43 % of a processor, 100 % before" in starved[0].text
    assert [a.run for a in worked] == [1]
    assert "waiting for batches" in fetches[0].text


def test_a_slice_that_does_not_end_is_told():
    known = Measures(slices(seconds=[40.0, 41.0]))

    early = look_meanwhile((Slowdown(),), run_of(), known, 150.0)
    (alert,) = look_meanwhile(DEFAULT, run_of(), known, 210.0)

    assert early == []
    assert alert.kind == "slowdown: stall"
    assert alert.text == "its slice has trained for 210 s, the longest before took 41 s"


@pytest.mark.parametrize(
    ("columns", "cause"),
    [
        ({"eval_seconds": [2.0] * 4}, "evaluation took 50 % of the time"),
        ({"fetch_seconds": [1.0] * 4}, "waiting for batches took 25 %"),
        ({"moving_seconds": [1.0] * 4}, "moving weights and states took 25 %"),
        ({"seconds": [1.0] * 4}, "steps are short"),
        ({}, "something else may be using the machine"),
    ],
)
def test_an_idle_device_is_told_once_with_its_likely_cause(columns, cause):
    known = Measures(slices(utilisation=[0.1, 0.5, 0.6, 0.4], **columns))

    (alert,) = seen([], (IdleDevice(),), measures=known)

    assert alert.text.startswith("the device computed 50 % of the time; ")
    assert cause in alert.text


def test_what_was_not_measured_is_not_judged():
    known = Measures(slices(seconds=[4.0] * 8))

    assert seen([], measures=known) == []


def test_each_time_the_disk_runs_low_is_told():
    low, fine = 1000 * MIB, 9000 * MIB
    history = [fine, low, low, fine, low]
    known = Measures(disk=tuple(Disk(10.0 * k, b, 2000 * MIB) for k, b in enumerate(history)))

    found = seen([], (LowDisk(),), measures=known)

    assert [(a.run, a.episode, a.level) for a in found] == [
        (None, 10, "error"),
        (None, 40, "error"),
    ]
    assert found[0].text.startswith("1000 MiB are free, and checkpoints may take 2000 MiB more")
    assert op_of(found[0]).kind == "pause_all" and op_of(found[0]).run is None


# --------------------------------------------------------------------------------------- contracts


def sick():
    """Rows and measures of a run that has everything."""
    rows = curve(2, noise=0.02, jitter=0.0, loss=lambda share: 2.0 - share)
    for row in rows:
        if "eval_loss" in row and row["step"] > 120:
            row["eval_loss"] = 1.6 + row["step"] / 400
    rows[100]["loss"] *= 5
    rows[60] |= {"loss": 0.0, "grad_norm": 0.0}
    return rows, Measures(slices(utilisation=[0.5] * 8), (Disk(0.0, 1.0, 2.0),))


def test_alerts_keep_their_keys_as_a_run_goes_on():
    rows, known = sick()
    told: set[str] = set()
    times = []
    for end in range(40, STEPS + 1, 40):
        part = [row for row in rows if row["step"] <= end]
        fresh = new(seen(part, run=run_of(step=end), measures=known), told)
        told |= {alert.key for alert in fresh}
        times += [(alert.kind, end) for alert in fresh]

    assert {alert.key for alert in seen(rows, measures=known)} == told
    assert sorted(times) == [
        ("disk", 40),
        ("empty batches", 80),
        ("idle device", 40),
        ("overfitting", 240),
        ("spike", 120),
    ]


def test_remedies_are_ops_that_are_allowed_and_alerts_are_plain_data():
    rows, known = sick()
    state = State({1: run_of(step=STEPS // 2)})

    found = look(DEFAULT, state, {1: rows}, known)

    assert len(found) >= 4
    for alert in found:
        for remedy in range(len(alert.remedies)):
            assert verdict(state, op_of(alert, remedy, by="panel"), 0.0).outcome == "applied"
    again = json.loads(json.dumps([to_dict(alert) for alert in found]))
    assert [one["key"] for one in again] == [alert.key for alert in found]


def test_a_run_that_has_ended_is_not_offered_to_stop():
    rows = curve(1, end=40)
    rows[12]["loss"] = math.nan

    (alert,) = seen(rows, (NonFinite(),), run_of("stopped", step=40))

    assert {op_of(alert, i).kind for i in range(len(alert.remedies))} == {"clone"}


def test_deleted_runs_and_runs_without_rows_are_not_looked_at():
    rows = curve(1, end=40)
    rows[12]["loss"] = math.nan

    assert seen(rows, run=run_of("deleted")) == []
    assert seen([], run=run_of("queued", step=0)) == []


@pytest.mark.parametrize(
    ("monitors", "message"),
    [
        ([Spike(), Spike()], "got 'spike' twice; set kind="),
        (["spike"], r"got 'spike'; write monitors=\[Spike\(\)\]"),
    ],
)
def test_monitors_are_checked(monitors, message):
    with pytest.raises(ConfigError, match=message):
        check(monitors)


def test_two_of_a_kind_may_have_other_names():
    both = check([Spike(), Spike(sigmas=4.0, kind="small spike")])
    rows = curve(3, noise=0.1)
    rows[199]["loss"] *= 4

    assert [alert.kind for alert in seen(rows, both)] == ["spike", "small spike"]
