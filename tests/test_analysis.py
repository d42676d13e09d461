"""Analysis: rankings, comparisons, effects and importance, on runs whose truth is known."""

import json
import math
import sys
from itertools import product
from random import Random

import pytest
from replay import Replay, grid

from rapidfire_jupyter.analysis import effects, importance
from rapidfire_jupyter.comparison import lower_is_better
from rapidfire_jupyter.effects import _t_quantile, bootstrap, factors
from rapidfire_jupyter.errors import ConfigError, OpError
from rapidfire_jupyter.measures import Measures
from rapidfire_jupyter.ops import Op
from rapidfire_jupyter.ranking import compare, rank
from rapidfire_jupyter.state import Run, State
from rapidfire_jupyter.ui import view

RATE, RANK, ALPHA = "training_args.learning_rate", "peft_config.r", "peft_config.lora_alpha"
SEED, BATCH = "training_args.seed", "training_args.per_device_train_batch_size"
CHUNKS = 4


def experiment(configs, value, *, steps=40, trained=None):
    """Runs whose eval_loss at each chunk end is given by `value(config, fraction)`.

    `trained` gives the chunks of runs that were stopped, by id.
    """
    runs, rows = {}, {}
    for i, config in enumerate(configs, start=1):
        chunks = (trained or {}).get(i, CHUNKS)
        ends = tuple(steps * k // CHUNKS for k in range(1, CHUNKS + 1))
        done = steps * chunks // CHUNKS
        status = "completed" if chunks == CHUNKS else "stopped"
        runs[i] = Run(
            i, f"run {i}", "SFT", config, status, step=done, total_steps=steps, chunk_ends=ends
        )
        draw = Random(i)
        rows[i] = []
        for step in range(1, done + 1):
            share = step / steps
            loss = value(config, share) + 0.1 * math.sin(step) + draw.gauss(0, 0.01)
            rows[i].append({"step": step, "loss": loss, "learning_rate": 1e-3})
            if step in ends:
                rows[i].append({"step": step, "eval_loss": value(config, share)})
    return State(runs), rows


def full(**levels):
    """All combinations; names are short, as in LEVELS."""
    names = {"lr": RATE, "r": RANK, "alpha": ALPHA, "seed": SEED, "batch": BATCH, "base": "base"}
    return [
        {names[k]: v for k, v in zip(levels, values, strict=True)}
        for values in product(*levels.values())
    ]


def noisy(seed, size, **by):
    """A loss with given effects of hyperparameters, and noise of a config."""

    def value(config, share):
        draw = Random(f"{seed} {sorted(config.items(), key=str)}")
        total = 2.0 + 1.0 * (1 - share) + draw.gauss(0, size)
        return total + sum(by[name](config) for name in by)

    return value


def one(found, factor, before=None):
    (effect,) = [
        e for e in found.effects if e.factor == factor and (before is None or e.before == before)
    ]
    return effect


# ----------------------------------------------------------------------------------------- effects


def test_effects_of_a_designed_experiment_are_found_and_signed():
    configs = full(lr=[1e-4, 1e-3], r=[8, 32], base=["a", "b"], batch=[4, 8])
    value = noisy(
        1,
        0.005,
        lr=lambda c: -0.20 * (c[RATE] == 1e-3),
        base=lambda c: 0.10 * (c["base"] == "b"),
        r=lambda c: -0.001 * (c[RANK] == 32),
    )

    found = effects(*experiment(configs, value))

    rate, base, rank_ = one(found, "learning_rate"), one(found, "base"), one(found, "r")
    assert (rate.before, rate.after, rate.verdict, len(rate.pairs)) == (
        *("0.0001", "0.001"),
        "better",
        8,
    )
    assert rate.difference.mean == pytest.approx(-0.20, abs=0.006)
    assert rate.difference.low < -0.19 and rate.difference.high > -0.21
    assert (base.verdict, base.relative) == ("worse", pytest.approx(0.05, abs=0.01))
    assert rank_.verdict == "tie"
    assert found.confounded == ()
    assert not any(i.clear for i in found.interactions)


def test_each_pair_differs_in_one_thing_only():
    configs = full(lr=[1e-4, 3e-4, 1e-3], r=[8, 32], base=["a", "b"])
    state, rows = experiment(configs, noisy(1, 0.01))

    found = effects(state, rows, draws=100)

    assert len([e for e in found.effects if e.factor == "learning_rate"]) == 3
    for effect in found.effects:
        for before, after in effect.pairs:
            a, b = state.runs[before].config, state.runs[after].config
            assert len([k for k in a if a[k] != b[k]]) == 1


def test_intervals_hold_the_truth_as_often_as_they_say():
    draw = Random(0)
    for count, least in ((3, 0.92), (4, 0.92), (8, 0.92), (16, 0.92)):
        held = 0
        for trial in range(400):
            values = [draw.gauss(1.0, 2.0) for _ in range(count)]
            interval = bootstrap(values, Random(trial), draws=400)
            held += interval.low <= 1.0 <= interval.high
        assert least <= held / 400 <= 0.985, (count, held / 400)


def test_effects_of_nothing_are_seldom_called_effects():
    """24 grids without any effect: what is called better or worse by mistake."""
    configs = full(lr=[1e-4, 1e-3], r=[8, 32], base=["a", "b"], batch=[4, 8])
    wrong = total = clear = cells = 0
    for seed in range(24):
        found = effects(*experiment(configs, noisy(seed, 0.03)), draws=300, noise=0.0)
        wrong += sum(e.verdict in ("better", "worse") for e in found.effects)
        total += len(found.effects)
        clear += sum(i.clear for i in found.interactions)
        cells += len(found.interactions)

    assert wrong <= 0.12 * total
    assert clear <= 0.12 * cells


def test_quantiles_of_students_t():
    """From the usual table."""
    assert _t_quantile(0.975, 2) == pytest.approx(4.303, abs=1e-3)
    assert _t_quantile(0.975, 3) == pytest.approx(3.182, abs=0.02)
    assert _t_quantile(0.975, 7) == pytest.approx(2.365, abs=1e-3)
    assert _t_quantile(0.95, 30) == pytest.approx(1.697, abs=1e-3)


def test_one_or_two_pairs_give_no_interval_and_no_verdict():
    found = effects(*experiment(full(lr=[1e-4, 1e-3], r=[8, 32]), noisy(1, 0.01)))

    assert {e.difference.count for e in found.effects} == {2}
    assert {e.verdict for e in found.effects} == {"unclear"}
    assert all(e.difference.low is None and e.difference.high is None for e in found.effects)


def test_what_always_changes_together_is_one_factor():
    configs = [
        {RATE: lr, RANK: r, ALPHA: 2 * r, "peft_config.target_modules": ["q", "v"]}
        for lr in (1e-4, 3e-4, 1e-3)
        for r in (8, 32)
    ]

    found = effects(*experiment(configs, noisy(1, 0.0, r=lambda c: 0.1 * (c[RANK] == 8))))

    effect = one(found, "r + lora_alpha")
    assert (effect.before, effect.after, effect.verdict) == ("8, 16", "32, 64", "better")
    assert {e.factor for e in found.effects} == {"r + lora_alpha", "learning_rate"}


def test_what_has_no_pair_is_confounded_and_not_guessed():
    """Three bases, each with learning rates of its own."""
    configs = [
        *({"base": "a", RATE: lr} for lr in (1e-4, 2e-4)),
        *({"base": "b", RATE: lr} for lr in (1e-3, 2e-3)),
    ]

    found = effects(*experiment(configs, noisy(1, 0.01)))

    assert [(c.factor, c.changes_with) for c in found.confounded] == [("base", ("learning_rate",))]
    assert {(e.before, e.after) for e in found.effects} == {
        ("0.0001", "0.0002"),
        ("0.001", "0.002"),
    }


def test_an_interaction_is_found_where_there_is_one():
    configs = full(lr=[1e-4, 1e-3], r=[8, 32], base=["a", "b"], batch=[2, 4, 8])

    def both(config):
        return -0.2 * (config[RATE] == 1e-3 and config[RANK] == 32)

    found = effects(*experiment(configs, noisy(3, 0.005, both=both)))

    clear = [i for i in found.interactions if i.clear]
    clear.sort(key=lambda i: -abs(i.difference.mean))
    assert (clear[0].first, clear[0].second) == ("learning_rate", "r")
    assert clear[0].levels == ("0.0001", "0.001", "8", "32")
    assert clear[0].difference.mean == pytest.approx(-0.2, abs=0.01)
    assert clear[0].difference.count == 6
    # Of twenty intervals of nothing one misses 0.
    assert len(clear[1:]) <= 0.1 * len(found.interactions)
    assert all(abs(i.difference.mean) < 0.03 for i in clear[1:])


def test_repetitions_give_the_noise_floor_and_are_paired_by_seed():
    configs = full(lr=[1e-4, 1e-3], r=[8, 32], seed=[1, 2, 3])

    def value(config, share):
        shared = {1: 0.0, 2: 0.3, 3: -0.3}[config[SEED]]  # luck of a seed, the same for all
        return 2.0 + shared - 0.05 * (config[RATE] == 1e-3)

    found = effects(*experiment(configs, value))

    rate = one(found, "learning_rate")
    assert len(rate.pairs) == 6
    assert (rate.difference.low, rate.difference.high) == pytest.approx((-0.05, -0.05))
    assert found.noise == pytest.approx(0.3 / (2.0 - 0.025), rel=0.01)
    assert found.noise_runs == 12
    assert rate.verdict == "tie"  # within the noise floor, though its interval does not hold 0
    assert "seed" not in {e.factor for e in found.effects}


def test_a_given_noise_floor_stands():
    state, rows = experiment(full(lr=[1e-4, 1e-3], r=[8, 32], seed=[1, 2]), noisy(1, 0.01))

    found = effects(state, rows, noise=0.25)

    assert (found.noise, found.noise_runs) == (0.25, 0)
    assert {e.verdict for e in found.effects} == {"tie"}


def test_a_metric_of_which_more_is_better_turns_the_verdict():
    configs = full(lr=[1e-4, 1e-3], r=[8, 16, 32], base=["a", "b"])
    state, rows = experiment(configs, noisy(1, 0.001, lr=lambda c: 0.5 * (c[RATE] == 1e-3)))
    for own in rows.values():
        for row in own:
            if "eval_loss" in row:
                row["eval_bleu"] = 10 * row["eval_loss"]

    assert one(effects(state, rows, "eval_loss"), "learning_rate").verdict == "worse"
    assert one(effects(state, rows, "eval_bleu"), "learning_rate").verdict == "better"
    assert one(effects(state, rows, "eval_bleu", "min"), "learning_rate").verdict == "worse"


def test_stopped_runs_count_only_where_all_are_compared_and_are_marked():
    configs = full(lr=[1e-4, 1e-3], r=[8, 32], base=["a", "b"])
    state, rows = experiment(configs, noisy(1, 0.01), trained={1: 1, 2: 1})

    at_end, at_first = effects(state, rows), effects(state, rows, at=0.25)

    assert (at_end.used, at_end.partial, at_end.left_out) == ((3, 4, 5, 6, 7, 8), (), (1, 2))
    assert not any({1, 2} & set(pair) for e in at_end.effects for pair in e.pairs)
    assert at_first.used == tuple(range(1, 9)) and at_first.partial == (1, 2)
    assert at_first.at == 0.25


def test_warm_clones_and_values_that_are_not_finite_are_left_out():
    configs = full(lr=[1e-4, 1e-3], r=[8, 32], base=["a", "b"])
    state, rows = experiment(configs, noisy(1, 0.01))
    rows[3][-1]["eval_loss"] = math.nan
    warm = Run(
        9, "clone", "SFT", {**configs[0], RATE: 5e-4}, "completed", parent=1, warm=True, step=40
    )

    found = effects(State({**state.runs, 9: warm}), {**rows, 9: rows[1]})

    assert found.left_out == (3,)
    assert 9 not in found.used


def test_effects_of_the_simulated_grid_have_the_right_signs():
    replay = Replay(grid(), steps=32, seed=2).run()

    found = effects(replay.state, replay.rows, draws=500)

    base = one(found, "model_name")
    rates = {(e.before, e.after): e for e in found.effects if e.factor == "learning_rate"}
    assert (base.before, base.verdict) == ("large", "worse")
    assert base.difference.low < 0.12 < base.difference.high + 0.02
    assert one(found, "target_modules", "all-linear").verdict == "worse"
    assert rates["0.0001", "0.001"].verdict == "better"
    assert rates["0.0001", "0.001"].difference.mean < rates["0.0001", "0.0003"].difference.mean < 0
    # A fast run gains less from a smaller batch: the simulation has this interaction.
    assert any(i.clear and i.second == "learning_rate" for i in found.interactions)


def test_the_same_seed_gives_the_same_intervals():
    state, rows = experiment(full(lr=[1e-4, 1e-3], r=[8, 16, 32]), noisy(1, 0.05))

    assert effects(state, rows, seed=3) == effects(state, rows, seed=3)
    assert effects(state, rows, seed=3).effects[0].difference.mean == pytest.approx(
        effects(state, rows, seed=4).effects[0].difference.mean
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s, r: effects(s, r, "eval_rouge"), "no run has logged 'eval_rouge'; logged: eval_"),
        (lambda s, r: rank(s, r, "bleu"), "no run has logged 'bleu'"),
        (lambda s, r: rank(s, r, at=0), "at a fraction over 0 and at most 1, got 0"),
        (lambda s, r: effects(s, r), "there are 1; wait, or give at=, a fraction that more"),
        (lambda s, r: compare(s, r, 1, 7), "there is no run 7; runs: 1, 2"),
    ],
)
def test_questions_without_an_answer_are_refused_in_one_line(make, message):
    state, rows = experiment(full(lr=[1e-4, 1e-3]), noisy(1, 0.01), trained={2: 1})

    with pytest.raises(OpError, match=message) as caught:
        make(state, rows)

    assert "\n" not in str(caught.value)


def test_places_and_modes_that_are_none_are_refused():
    state, rows = experiment(full(lr=[1e-4, 1e-3]), noisy(1, 0.01))

    with pytest.raises(ConfigError, match="at is 'end', 'same_fraction' or a fraction, got 'now'"):
        rank(state, rows, at="now")
    with pytest.raises(ConfigError, match=r"mode is 'min' or 'max', .* got 'minimize'"):
        rank(state, rows, mode="minimize")


def test_levels_are_in_the_order_of_numbers():
    runs = [
        Run(i, "", "SFT", {RATE: rate, "tm": modules})
        for i, (rate, modules) in enumerate([(1e-3, ["q"]), (2e-4, None), (1e-2, ["q", "v"])])
    ]

    assert factors(runs)[0].levels == ("0.0002, None", "0.001, q", "0.01, q+v")


# ----------------------------------------------------------------------------------------- ranking


def staircase(config, share):
    return config["end"] + 2 * (1 - share)


def test_finished_runs_are_ranked_and_partial_ones_are_not():
    configs = [{"end": end} for end in (1.0, 1.2, 0.5, 1.001)]
    state, rows = experiment(configs, staircase, trained={3: 2})

    found = rank(state, rows, noise=0.005)

    assert [(p.run, p.rank, p.tie) for p in found.places] == [
        (1, 1, False),
        (4, 2, True),
        (2, 3, False),
        (3, None, False),
    ]
    assert found.best == 1
    partial = found.places[-1]
    assert partial.partial and partial.reason == "stopped at 50 % of its schedule: partial"
    assert partial.value == pytest.approx(1.5)


def test_at_the_same_fraction_all_that_got_there_are_ranked():
    configs = [{"end": end} for end in (1.0, 1.2, 0.5, 0.1)]
    state, rows = experiment(configs, staircase, trained={3: 2, 4: 1})

    half = rank(state, rows, at=0.5)
    end = rank(state, rows, at="same_fraction")

    assert [(p.run, p.rank, p.partial) for p in half.places] == [
        (3, 1, True),
        (1, 2, False),
        (2, 3, False),
        (4, None, True),
    ]
    assert half.places[-1].reason == "it has trained 25 % of its schedule"
    assert (end.at, end.best) == (1.0, 1)


def test_the_same_fraction_is_that_of_the_run_that_is_behind():
    configs = [{RATE: 1e-3, BATCH: batch, "note": i} for i, batch in enumerate((8, 16, 8))]
    replay = Replay(configs)
    for run in (1, 1, 1, 2, 2, 3):
        replay.train_chunk(run)

    found = rank(replay.state, replay.rows, at="same_fraction")

    assert found.at == 0.125
    assert {p.rank for p in found.places} == {1, 2, 3}
    first = {i: rows[-1]["eval_loss"] for i, rows in replay.rows.items() if i == 3}
    assert {p.run: p.value for p in found.places}[3] == first[3]


def test_a_value_that_is_not_finite_has_no_rank():
    state, rows = experiment([{"end": 1.0}, {"end": 0.5}], staircase)
    rows[2][-1]["eval_loss"] = math.nan

    found = rank(state, rows)

    assert [(p.run, p.rank, p.value) for p in found.places] == [(1, 1, 1.0), (2, None, None)]
    assert found.places[1].reason == "its value is not finite"


def test_more_may_be_better():
    state, rows = experiment([{"end": 1.0}, {"end": 0.5}], staircase)

    assert rank(state, rows).best == 2
    assert rank(state, rows, mode="max").best == 1
    assert rank(state, rows, mode="max").places[0].value == 1.0


def test_a_run_whose_last_evaluation_is_long_ago_is_ranked_by_it():
    state, rows = experiment([{"end": 1.0}, {"end": 0.5}], staircase)
    rows[2] = [row for row in rows[2] if "eval_loss" not in row or row["step"] == 10]

    assert [(p.run, p.value) for p in rank(state, rows).places] == [(1, 1.0), (2, 2.0)]


def test_both_ways_of_naming_what_is_better_agree():
    names = ["loss", "eval_loss", "eval_perplexity", "word_error_rate", "eval_bleu", "reward"]

    assert [lower_is_better(n) for n in names] == [view.lower_is_better(n) for n in names]


# -------------------------------------------------------------------------------------- comparison


def test_two_runs_are_compared_at_the_fraction_both_have_reached():
    configs = [{"end": 1.0, RATE: 1e-3}, {"end": 0.8, RATE: 3e-4}]
    state, rows = experiment(configs, staircase, trained={2: 2})

    found = compare(state, rows, 1, 2)

    assert (found.at, found.values) == (0.5, (2.0, pytest.approx(1.8)))
    assert found.difference == pytest.approx(-0.2)
    assert found.low < -0.2 < found.high < 0
    assert (found.better, found.partial, found.pairs) == (2, (2,), 8)
    assert found.differences == (("end", 1.0, 0.8), (RATE, 1e-3, 3e-4))
    back = compare(state, rows, 2, 1)
    assert (back.better, back.difference) == (2, pytest.approx(0.2))


def test_runs_that_cannot_be_told_apart_are_a_tie():
    state, rows = experiment([{"end": 1.0, "n": 1}, {"end": 1.002, "n": 2}], staircase)

    assert compare(state, rows, 1, 2).better is None
    assert compare(state, rows, 1, 2, noise=0.0).better is None  # by the error of its pairs


def test_losses_of_single_rows_decide_where_they_are_known():
    state, rows = experiment([{"end": 1.0, "n": 1}, {"end": 1.002, "n": 2}], staircase)
    base = [1.0 + 0.5 * math.sin(k) for k in range(64)]
    shifted = [value + 0.002 + 1e-4 * math.cos(k) for k, value in enumerate(base)]
    known = Measures(examples={(1, 40): base, (2, 40): shifted})

    found = compare(state, rows, 1, 2, noise=0.0, measures=known)

    assert (found.better, found.pairs) == (1, 64)
    assert found.low > 0


def test_a_comparison_says_what_is_unfair_about_it():
    replay = Replay([{RATE: 1e-3, BATCH: 8}, {RATE: 1e-3, BATCH: 16}])
    for run in (1, 2):
        replay.train_chunk(run)
    replay.act(Op("clone", 1, {"changes": {RATE: 5e-4}, "warm": True}))
    replay.train_chunk(3)
    replay.train_chunk(1)

    sizes = compare(replay.state, replay.rows, 1, 2)
    clone = compare(replay.state, replay.rows, 1, 3)

    assert sizes.notes == ("the same rows took 64 and 32 steps",)
    assert clone.notes == ("run 3 is a warm clone of the other",)
    with pytest.raises(OpError, match="have no eval_loss at a same fraction yet"):
        compare(replay.state, replay.rows, 2, 3)


def test_all_results_are_plain_data():
    state, rows = experiment(full(lr=[1e-4, 1e-3], r=[8, 32]), noisy(1, 0.01), trained={1: 2})

    for result in (effects(state, rows, at=0.5), rank(state, rows), compare(state, rows, 1, 2)):
        assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["metric"] == "eval_loss"


# -------------------------------------------------------------------------------------- importance


def test_importance_says_what_to_install(monkeypatch):
    state, rows = experiment(full(lr=[1e-4, 1e-3], r=[8, 32]), noisy(1, 0.01))
    monkeypatch.setitem(sys.modules, "optuna", None)

    with pytest.raises(OpError, match=r"package optuna, .*rapidfire-jupyter\[optuna\]"):
        importance(state, rows)


def test_importance_is_greatest_for_what_matters_most():
    pytest.importorskip("optuna")
    pytest.importorskip("sklearn")
    configs = full(lr=[1e-4, 1e-3], r=[8, 32], base=["a", "b"], batch=[2, 4, 8])
    value = noisy(
        1, 0.005, lr=lambda c: 0.3 * (c[RATE] == 1e-3), b=lambda c: 0.1 * (c["base"] == "b")
    )
    state, rows = experiment(configs, value, trained={1: 2})

    found = importance(state, rows)

    names = [name for name, _ in found.shares]
    shares = dict(found.shares)
    assert names[:2] == ["learning_rate", "base"]
    assert shares["learning_rate"] > 0.7 and sum(shares.values()) == pytest.approx(1.0)
    assert 1 not in found.used and found.partial == ()
    assert importance(state, rows, at=0.5).partial == (1,)
    assert importance(state, rows) == found


def test_importance_of_too_few_runs_is_refused():
    pytest.importorskip("optuna")
    pytest.importorskip("sklearn")
    state, rows = experiment(full(lr=[1e-4, 1e-3]), noisy(1, 0.01))

    with pytest.raises(OpError, match="needs four runs whose configs and eval_loss differ"):
        importance(state, rows)
