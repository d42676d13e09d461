"""Policies on simulated experiments: what they stop, clone and boost, and what it costs."""

import copy
import json
import math
from dataclasses import replace
from random import Random
from statistics import median

import pytest
from replay import Replay, grid

from rapidfire_jupyter.bandit import BanditBoost, beliefs
from rapidfire_jupyter.breeding import RATE, CloneBest, cross
from rapidfire_jupyter.decisions import Memory, Seen, recall, remember, to_data, unanswered
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.events import EventLog
from rapidfire_jupyter.halving import Halving, bands_of, rungs
from rapidfire_jupyter.measures import measured, seconds_by_run
from rapidfire_jupyter.ops import Op
from rapidfire_jupyter.policies import Phase, Phases, check, decide, decide_all, in_words
from rapidfire_jupyter.scheduler import next_run
from rapidfire_jupyter.screening import Budget, Outliers, SlowLearners, Threshold, tokens
from rapidfire_jupyter.state import State, apply

WARM = "training_args.warmup_steps"
BATCH = "training_args.per_device_train_batch_size"
# What looks good early is bad late, and half of the runs are still warming up then.
ADVERSARIAL = [
    config for config in grid((0.0, 0.3), (3e-4, 1e-3, 1e-2)) if config["model_name"] == "large"
]


class Naive:
    """Successive halving by rank alone, at 1/8, 1/4 and 1/2."""

    def __init__(self, replay):
        self.done = set()
        self.replay = replay

    def __call__(self, replay):
        for at in (0.125, 0.25, 0.5):
            active = [replay.state.runs[i] for i in replay.active()]
            if at in self.done or any(run.step < at * run.total_steps for run in active):
                continue
            self.done.add(at)
            order = sorted(active, key=lambda run: replay.rows[run.id][-1]["eval_loss"])
            for run in order[math.ceil(len(order) / 2) :]:
                replay.act(Op("stop", run.id))


def naive(configs, seed, **how):
    replay = Replay(configs, seed=seed, **how)
    replay.people = Naive(replay)
    return replay.run()


def flat(values, **config):
    """Configs of runs whose floors are set apart by their luck, one for each value."""
    return [
        {RATE: 1e-3, BATCH: 8, "note": i, "floor": value, **config}
        for i, value in enumerate(values)
    ]


def staged(values, policies=(), *, chunks=8, jitter=0.0, noise=0.02, **how):
    """A replay whose runs end near the given losses: floors are shifted by these values."""
    replay = Replay(
        flat(values), tuple(policies), chunks=chunks, jitter=jitter, noise=noise, luck=0.0, **how
    )
    for learner, value in zip(replay.learners.values(), values, strict=True):
        learner.luck = value
    return replay


def reasons(replay, policy):
    return [one.reason for one in replay.log if one.policy == policy and one.op is not None]


# ---------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Halving(eta=1), "eta must be > 1, got 1"),
        (lambda: Halving(first=1.5), "must be shares over 0, got 1.5"),
        (lambda: Halving(least=0), "must be >= 1, got 0"),
        (lambda: Threshold(after=0), "after must be >= 1, got 0"),
        (lambda: Outliers(peers=1), "peers must be >= 2, got 1"),
        (lambda: Outliers(sigmas=math.nan), "sigmas must be >= 0, got nan"),
        (lambda: SlowLearners(share=1.0), "must be shares over 0 and under 1, got 1.0"),
        (lambda: Budget(), "needs seconds= or tokens="),
        (lambda: Budget(seconds=-1), "seconds must be > 0, got -1"),
        (lambda: CloneBest(top=1, crossed=1), "top must be >= 1, and >= 2 for crossed"),
        (lambda: CloneBest(spread=1.0), "spread must be >= 0 and < 1"),
        (lambda: BanditBoost(rule="luck"), "rule must be 'thompson' or 'ucb', got 'luck'"),
        (lambda: BanditBoost(most=1.0), "most must be > 1"),
        (lambda: Phases(()), "phases need names"),
        (lambda: Phases((Phase("a"), Phase("b"))), "phase 'b' needs clone="),
        (lambda: Phases((Phase("a", clone=CloneBest()),)), "phase 'a' takes no clone="),
        (
            lambda: Phases((Phase("a"), Phase("b", clone=CloneBest()))),
            "a warm clone has nothing left to train",
        ),
        (lambda: check([Halving(), Halving()]), "got 'halving' twice"),
        (lambda: check(["halving"]), r"got 'halving'; write policies=\[Halving\(\)\]"),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_one_line(make, message):
    with pytest.raises(ConfigError, match=message) as caught:
        make()

    assert "\n" not in str(caught.value)


def test_rungs_double_and_are_at_chunk_ends():
    assert [at for at, doubled in rungs(Halving(), 1 / 8).items() if doubled] == [
        0.125,
        0.25,
        0.5,
        0.75,
    ]
    assert list(rungs(Halving(), 1 / 8)) == [k / 8 for k in range(1, 8)]
    assert [at for at, doubled in rungs(Halving(), 1 / 10).items() if doubled] == [0.2, 0.4, 0.8]
    assert list(rungs(Halving(), 1.0)) == []


def test_bands_part_where_neighbours_are_far_from_each_other():
    assert bands_of([1e-5, 1.2e-5, 1e-4, 2e-4, 1e-3], 2.0) == [
        (1e-5, 1.2e-5),
        (1e-4, 2e-4),
        (1e-3, 1e-3),
    ]


# ----------------------------------------------------------------------------------------- halving


def outcomes(configs, seeds, run, **how):
    """Cost and regret of each seed."""
    found = []
    for seed in seeds:
        whole = Replay(configs, seed=seed, **how).run()
        one = run(configs, seed, **how)
        found.append((one.cost, one.regret(whole)))
    return [cost for cost, _ in found], [regret for _, regret in found]


def guarded(configs, seed, **how):
    return Replay(configs, (Halving(),), seed=seed, **how).run()


def test_halving_finds_the_best_of_a_benign_grid_for_little():
    costs, regrets = outcomes(grid(), range(10), guarded, steps=32)

    assert max(costs) < 0.30
    assert median(regrets) == 0
    assert max(regrets) <= 0.01


def test_halving_holds_where_ranks_alone_go_wrong():
    costs, regrets = outcomes(ADVERSARIAL, range(10), guarded, steps=32)
    _, naive_regrets = outcomes(ADVERSARIAL, range(10), naive, steps=32)

    assert max(costs) <= 0.45
    assert median(regrets) == 0
    assert max(regrets) <= 0.01
    assert max(naive_regrets) > 0.01
    assert sum(naive_regrets) > 2 * sum(regrets)


def test_first_cut_spares_the_best_of_each_band_of_learning_rates():
    slow = {RATE: 1e-5, BATCH: 8}
    configs = [{RATE: 1e-3, BATCH: 8, "note": i} for i in range(6)]
    replay = Replay([*configs, slow, {**slow, "note": 9}], (Halving(first=0.125),)).run()

    stops = {one.op.run: one.key for one in replay.log if one.op is not None}
    assert stops[7] != "rung 0.125" or stops[8] != "rung 0.125"
    assert {stops[7], stops[8]} == {"rung 0.125", "rung 0.25"}
    kept = next(one.reason for one in replay.log if one.op is None)
    assert "best of their learning rates: " in kept


def test_ties_are_kept_up_to_a_limit_and_named():
    close = staged([0.0, 0.0005, 0.001, 0.0015, 0.5, 0.6, 0.7, 0.8], [Halving()])
    apart = staged([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], [Halving(first_keep=0.25)])

    close.run()
    apart.run()

    ties = next(one for one in close.log if one.op is None and one.key == "rung 0.25")
    assert ties.reason == "2 of 4 go on at 0.25; ties: 2"
    assert [one.op.run for one in apart.log if one.op and one.key == "rung 0.125"] == [
        *(3, 4, 5, 6, 7, 8)
    ]


def test_a_run_is_not_judged_in_its_warm_up():
    configs = [{RATE: 1e-3, BATCH: 8, WARM: 0.3 if i < 4 else 0.0, "note": i} for i in range(8)]
    replay = Replay(configs, (Halving(),), luck=0.05).run()

    first = next(one for one in replay.log if one.key == "rung 0.125" and one.op is None)
    early = {one.op.run for one in replay.log if one.op and one.key in ("rung 0.125", "rung 0.25")}
    assert "not judged yet: 1, 2, 3, 4" in first.reason
    assert early and early <= {5, 6, 7, 8}
    # 0.3 is in the third chunk, and what is longer than others' warm-up is waited for a little.
    later = [one for one in replay.log if one.key == "rung 0.375" and one.op is None]
    assert len(later) == 1 and set(later[0].runs) <= {1, 2, 3, 4}


def test_runs_that_share_a_warm_up_are_judged_at_its_end():
    configs = [{RATE: 1e-3, BATCH: 8, WARM: 0.125, "note": i} for i in range(8)]

    replay = Replay(configs, (Halving(),)).run()

    assert any(one.op and one.key == "rung 0.125" for one in replay.log)


def test_a_warm_up_that_others_do_not_have_is_followed_by_some_training():
    mixed = [{RATE: 1e-3, BATCH: 8, WARM: 0.125 * (i < 2), "note": i} for i in range(8)]
    replay = Replay(mixed, (Halving(),)).run()

    first = {one.key: one.runs for one in replay.log[::-1] if 1 in one.runs or 2 in one.runs}
    assert "rung 0.125" not in first and "rung 0.25" in first
    assert not replay.memory.judged["halving", "rung 0.125"] & {1, 2}


def second_rung(best, second):
    """Who stops at the second rung, of four runs; evaluations of the first two, by chunk."""
    replay = staged([0.0, 0.1, 0.2, 0.3])
    for run in (1, 2, 3, 4) * 2:
        replay.train_chunk(run)
    for run, values in ((1, best), (2, second), (3, (2.5, 2.5)), (4, (2.5, 2.5))):
        evals = [row for row in replay.rows[run] if "eval_loss" in row]
        for row, value in zip(evals, values, strict=True):
            row["eval_loss"] = value
    memory = Memory({("halving", "rung 0.125"): frozenset({1, 2, 3, 4})})
    found = decide(Halving(certainty=0.0), replay.state, replay.rows, memory)
    return [one.op.run for one in found if one.op], found[-1].reason


def test_a_run_that_was_not_behind_a_chunk_ago_is_kept():
    assert second_rung(best=(2.0, 1.5), second=(2.1, 1.9))[0] == [2, 3, 4]
    assert second_rung(best=(2.0, 1.5), second=(1.9, 1.9))[0] == [3, 4]


def test_a_run_that_would_lead_at_the_next_rung_is_kept():
    """Two chunks on: it gains 0.4 a chunk and is 0.1 behind, or 0.03 a chunk."""
    stopped, reason = second_rung(best=(2.0, 1.9), second=(2.5, 2.0))

    assert stopped == [3, 4] and reason.endswith("; catching up: 2")
    assert second_rung(best=(2.0, 1.9), second=(2.13, 2.0))[0] == [2, 3, 4]


def test_a_diverged_run_stops_at_once_and_before_any_rung():
    configs = [{RATE: 1e-3, BATCH: 8, "note": i} for i in range(4)]
    configs[2]["diverges"] = 0.05

    replay = Replay(configs, (Halving(first=0.5),)).run()

    first = next(one for one in replay.log if one.op is not None)
    assert (first.op.run, first.reason) == (3, "its loss is not finite")
    assert replay.trained[3] == 1


def test_if_all_diverge_none_is_stopped():
    configs = [{RATE: 1e-3, BATCH: 8, "note": i, "diverges": 0.05} for i in range(3)]

    replay = Replay(configs, (Halving(),)).run()

    assert reasons(replay, "halving") == []


def uneven(policies, people=None):
    """One run diverges, one fails, one is stopped by a person, one has half the batch size."""
    configs = [{RATE: 1e-3, BATCH: 16, "note": i} for i in range(6)]
    configs[0]["diverges"], configs[3][BATCH] = 0.3, 8
    return Replay(configs, policies, people=people, luck=0.0, jitter=0.0)


@pytest.mark.parametrize(
    "policy",
    [
        Halving(first=0.25),
        SlowLearners(share=0.5),
        Threshold(1.4, after=3),
        Outliers(peers=2),
        CloneBest(top=1),
        BanditBoost(),
    ],
    ids=lambda policy: policy.name,
)
def test_an_uneven_field_is_compared_and_always_ends(policy):
    def people(replay):
        if replay.trained[2] == 1 and replay.state.runs[2].status != "stopped":
            replay.act(Op("stop", 2))
        if replay.trained[5] == 1 and replay.state.runs[5].status != "failed":
            replay.emit("run_failed", 5, error="out of memory", trace="")

    replay = uneven((policy,), people).run()

    assert replay.active() == set()
    assert replay.state.runs[2].status == "stopped"
    assert replay.state.runs[5].status == "failed"
    judged = {i for one in replay.log for i in one.runs if one.op and one.op.kind == "stop"}
    assert not judged & {2, 5}
    if isinstance(policy, Halving):
        assert 1 in judged


def test_runs_of_other_batch_sizes_meet_at_the_same_fraction():
    replay = uneven((Halving(first=0.25),))
    replay.learners[4].luck = 0.4  # 64 steps; the others take 32

    replay.run()

    reason = next(one.reason for one in replay.log if one.op and one.op.run == 4)
    assert "at 0.25 of its schedule is behind" in reason


def test_nothing_is_decided_before_all_are_at_the_barrier():
    replay = staged([0.0, 0.1, 0.2, 0.3])
    for run in (1, 2, 3):
        replay.train_chunk(run)

    before = decide(Halving(), replay.state, replay.rows)
    replay.train_chunk(4)

    assert before == []
    assert [one.op.run for one in decide(Halving(), replay.state, replay.rows) if one.op] == [3, 4]


def test_a_run_of_one_chunk_is_left_out_and_does_not_keep_others_from_being_judged():
    replay = staged([0.0, 0.1, 0.2, 0.3, 0.0])
    for run in (1, 2, 3, 4, 5):
        replay.train_chunk(run)
    short = replace(replay.state.runs[5], chunk_ends=(8,), step=8, total_steps=8)
    runs = {**replay.state.runs, 5: replace(short, status="completed")}
    rows = {**replay.rows, 5: [{"step": 8, "loss": 0.1, "eval_loss": 0.1}]}

    found = decide(Halving(), replace(replay.state, runs=runs), rows)

    assert [one.op.run for one in found if one.op] == [3, 4]


def test_nothing_is_decided_while_paused():
    replay = staged([0.0, 0.1, 0.2, 0.3])
    for run in (1, 2, 3, 4):
        replay.train_chunk(run)
    replay.act(Op("pause_all"))

    assert decide(Halving(), replay.state, replay.rows) == []


def test_a_decision_is_taken_once_and_a_person_has_the_last_word():
    def people(replay):
        if 4 in replay.stopped() and 4 not in replay.memory.kept:
            replay.act(Op("resume", 4, by="panel"))

    replay = staged([0.0, 0.1, 0.2, 0.3], [Halving()], people=people).run()

    asked = [one.op.run for one in replay.log if one.op is not None]
    assert replay.state.runs[4].status == "completed"
    assert asked.count(4) == 1
    assert len({(one.key, one.op.run) for one in replay.log if one.op}) == len(asked)


def test_memory_is_the_same_after_a_restart(tmp_path):
    replay = Replay(grid()[:12], (Halving(), CloneBest(top=1)), steps=16).run()
    log = EventLog(tmp_path / "events.jsonl")
    for event in replay.events:
        log.append(event.kind, event.run, **event.data)
    log.close()

    again = EventLog(tmp_path / "events.jsonl").events
    state = State()
    for event in again:
        state = apply(state, event)

    assert remember(again) == replay.memory
    assert decide_all(replay.policies, state, replay.rows, remember(again)) == []


def test_a_clone_that_comes_later_is_judged_against_those_that_went_on():
    def people(replay):
        if replay.trained[1] == 3 and len(replay.state.runs) == 4:
            replay.act(Op("clone", 1, {"changes": {"note": "good"}, "warm": False}))
            replay.act(Op("clone", 1, {"changes": {"note": "bad"}, "warm": False}))
            replay.learners[6].luck = 1.0

    replay = staged([0.0, 0.1, 0.2, 0.3], [Halving()], people=people).run()

    assert replay.state.runs[6].status == "stopped"
    assert replay.trained[6] == 1
    assert replay.state.runs[5].status == "completed"
    assert "behind all runs that went on" in next(
        one.reason for one in replay.log if one.op and one.op.run == 6
    )


def test_without_evaluations_the_training_loss_of_the_chunk_is_compared():
    replay = staged([0.0, 0.1, 0.2, 0.3], [Halving()], evaluate=False)

    for _ in range(4):
        replay.train_chunk(1 + _)
    replay.decide()

    assert replay.stopped() == {3, 4}
    assert reasons(replay, "halving")[0].startswith("loss ")


# ----------------------------------------------------------------------------------------- screens


def test_threshold_stops_what_is_above_it_after_its_chunk():
    replay = staged([0.0, 0.05, 1.5, 1.6], [Threshold(2.5, after=3)]).run()

    assert replay.stopped() == {3, 4}
    assert replay.trained[3] == replay.trained[4] == 3
    assert reasons(replay, "threshold")[0].endswith("is above 2.5 after chunk 3")


def test_threshold_judges_the_mean_of_the_chunk_not_its_last_row():
    replay = staged([0.0, 0.0])
    for run in (1, 2):
        replay.train_chunk(run)
    for run, losses in ((1, [1.0] * 7 + [9.0]), (2, [9.0] * 7 + [1.0])):
        for row, loss in zip(replay.rows[run], losses, strict=False):
            row["loss"] = loss

    found = decide(Threshold(2.5, keep_best=False), replay.state, replay.rows)

    assert [one.op.run for one in found] == [2]


def test_threshold_keeps_the_best_unless_told_otherwise():
    assert staged([0.0, 0.1], [Threshold(0.1)]).run().stopped() == {2}
    assert staged([0.0, 0.1], [Threshold(0.1, keep_best=False)]).run().stopped() == {1, 2}


def test_threshold_of_a_score_of_which_more_is_better():
    replay = staged([0.0, 0.1, 0.2])
    for run, bleu in ((1, 30.0), (2, 12.0), (3, 25.0)):
        replay.train_chunk(run)
        replay.rows[run].append({"step": replay.state.runs[run].step, "eval_bleu": bleu})

    found = decide(Threshold(20.0, metric="eval_bleu"), replay.state, replay.rows)

    assert [one.op.run for one in found] == [2]
    assert found[0].reason == "eval_bleu 12 is below 20 after chunk 1"


def test_outliers_leave_themselves_out_of_their_peers():
    """Among five, no value can be more than 1.79 deviations from a mean that it is part of."""
    replay = staged([0.0, 0.02, 0.04, 0.06, 0.6], [Outliers()]).run()

    assert replay.stopped() == {5}
    assert replay.trained[5] == 2
    assert "the mean of its peers and 2 standard deviations" in reasons(replay, "outliers")[0]


def test_outliers_need_peers():
    assert staged([0.0, 0.01, 0.02, 2.0], [Outliers()]).run().stopped() == set()


def test_healthy_runs_are_no_outliers():
    stops = [
        len(Replay(grid()[:12], (Outliers(),), seed=seed, steps=16).run().stopped())
        for seed in range(6)
    ]

    assert stops == [0] * 6


def test_slow_learners_spare_a_good_run_that_has_converged():
    """Run 1 is at its end at once: by its rate alone it would go first."""
    replay = staged([0.0, 0.3, 0.3, 0.3, 0.3, 0.3], [SlowLearners()])
    replay.learners[1].loss = 1.4
    replay.learners[6].config[RATE] = 1e-5

    replay.run()

    assert replay.stopped() == {6}
    assert "the least of those behind the median" in reasons(replay, "slow learners")[0]


def test_wrong_stops_of_each_screen():
    """How often the run that would have won was stopped, over seeds of both grids."""
    wrong = dict.fromkeys(("threshold", "outliers", "slow learners"), 0)
    stops = dict(wrong)
    for configs in (grid()[:24], ADVERSARIAL[:24]):
        for seed in range(4):
            whole = Replay(configs, seed=seed, steps=16).run()
            best = min(whole.learners, key=lambda i: whole.learners[i].loss)
            for policy in (Threshold(1.9, after=3), Outliers(), SlowLearners()):
                one = Replay(configs, (policy,), seed=seed, steps=16).run()
                wrong[policy.name] += best in one.stopped()
                stops[policy.name] += len(one.stopped())

    assert wrong == dict.fromkeys(wrong, 0)
    assert stops["threshold"] > 40 and stops["slow learners"] > 20


def test_budget_of_seconds_leaves_the_best_run_what_it_needs():
    replay = staged([0.3, 0.2, 0.1, 0.0], [Budget(seconds=120)]).run()  # chunks of 10 s

    assert replay.state.runs[4].status == "completed"
    assert replay.stopped() == {1, 2, 3}
    assert sum(seconds_by_run(replay.measures).values()) <= 120
    assert "are what finishing run 4 takes" in reasons(replay, "budget")[0]


def test_budget_of_tokens_stops_all_once_it_is_spent():
    replay = staged([0.0, 0.1], [Budget(tokens=64 * 512, finish=0)]).run()

    spent = sum(tokens(replay.state, replay.rows).values())
    assert replay.stopped() == {1, 2}
    assert 64 * 512 <= spent <= 64 * 512 * 9 / 8
    assert reasons(replay, "budget")[0].endswith("tokens are spent")


def test_a_warm_clone_is_charged_its_own_tokens_only():
    replay = staged([0.0, 0.1])
    for run in (1, 1, 2):
        replay.train_chunk(run)
    replay.act(Op("clone", 1, {"changes": {RATE: 5e-4}, "warm": True}))
    replay.train_chunk(3)

    spent = tokens(replay.state, replay.rows)

    assert spent == {1: 2 * spent[2], 2: spent[2], 3: spent[2]}


# ------------------------------------------------------------------------------------------ clones


def test_the_best_are_cloned_warm_with_rates_around_theirs():
    replay = staged([0.2, 0.0, 0.1, 0.3], [CloneBest(top=2)]).run()

    made = [r for r in replay.state.runs.values() if r.parent is not None]
    assert [(r.parent, r.warm, r.config[RATE]) for r in made] == [
        (2, True, 8e-4),
        (2, True, 1.2e-3),
        (3, True, 8e-4),
        (3, True, 1.2e-3),
    ]
    assert all(r.clone_step == 32 for r in made)
    assert replay.stopped() == set()
    assert reasons(replay, "clone best")[0].startswith("run 2 is number 1 by eval_loss")


def test_clones_may_take_the_place_of_the_worst():
    policy = CloneBest(top=1, replace=True, at=(0.25, 0.5))
    replay = staged([0.0, 0.1, 0.2, 0.3, 0.4, 0.5], [policy]).run()

    assert replay.stopped() >= {6, 5}
    assert len(replay.state.runs) == 6 + 4
    assert 1 not in replay.stopped()


def test_one_way_is_drawn_by_the_seed():
    def rates(seed):
        policy = CloneBest(top=4, both=False)
        replay = staged([0.0, 0.1, 0.2, 0.3], [policy], seed=seed).run()
        return [r.config[RATE] for r in replay.state.runs.values() if r.parent]

    drawn = [rates(seed) for seed in range(6)]

    assert rates(0) == drawn[0]
    assert {rate for some in drawn for rate in some} == {8e-4, 1.2e-3}


def test_crossed_children_take_something_from_both_and_blocks_whole():
    configs = [
        {"model_name": "a", RATE: 1e-3, "peft_config.r": 8, "peft_config.lora_alpha": 16, BATCH: 8},
        {
            "model_name": "b",
            RATE: 3e-4,
            "peft_config.r": 32,
            "peft_config.lora_alpha": 64,
            BATCH: 8,
        },
    ]
    replay = Replay(configs)
    first, second = replay.state.runs[1], replay.state.runs[2]
    children = [cross(first, second, Random(seed)) for seed in range(40)]

    assert all(0 < len(child) < 4 for child in children)
    assert all(("peft_config.r" in c) == ("peft_config.lora_alpha" in c) for c in children)
    assert {name for child in children for name in child} == {
        "model_name",
        RATE,
        "peft_config.r",
        "peft_config.lora_alpha",
    }
    assert cross(first, first, Random(0)) == {}


def test_crossed_children_start_cold_unless_all_they_take_can_be_kept():
    configs = [
        {RATE: 1e-3, "peft_config.r": 8, BATCH: 8},
        {RATE: 3e-4, "peft_config.r": 32, BATCH: 8},
    ]
    found = set()
    for seed in range(8):
        policy = CloneBest(top=2, crossed=2, spread=0.0, changes={"note": 1})
        replay = Replay(configs, (policy,), seed=seed, steps=16).run()
        crossed = [r for r in replay.state.runs.values() if len(r.changes) > 1]
        found |= {("peft_config.r" in r.changes, r.warm) for r in crossed}

    assert found == {(True, False), (False, True)}


# ------------------------------------------------------------------------------------------ bandit


@pytest.mark.parametrize("rule", ["thompson", "ucb"])
def test_a_bandit_gives_the_better_runs_more_and_stops_none(rule):
    replay = staged([0.0, 0.1, 0.2, 0.3, 0.4, 0.5], [BanditBoost(rule=rule)])
    while replay.state.runs[1].status != "completed" and len(replay.events) < 2000:
        replay.decide()
        replay.train_chunk(next_run(replay.state, replay.state.runs))

    weights = [run.weight for run in replay.state.runs.values()]
    assert replay.trained[1] == 8
    assert replay.trained[6] <= 5
    assert weights[0] > 1 > weights[5]
    assert all(0.25 <= weight <= 4 for weight in weights)
    assert replay.stopped() == set()


def test_newer_chunks_count_more_to_a_bandit():
    replay = staged([0.0, 0.0, 0.0, 0.0])
    for run in (1, 2, 3, 4) * 3:
        replay.train_chunk(run)
    # Run 1 is last, last, first; run 2 first, first, last.
    for run, values in ((1, (4, 4, 1)), (2, (1, 1, 4)), (3, (2, 2, 2)), (4, (3, 3, 3))):
        evals = [row for row in replay.rows[run] if "eval_loss" in row]
        for row, value in zip(evals, values, strict=True):
            row["eval_loss"] = value

    seen = Seen(replay.state, replay.rows)
    runs = list(replay.state.runs.values())
    means = {arm.run: arm.mean for arm in beliefs(BanditBoost(), seen, runs)}
    newest = {arm.run: arm.mean for arm in beliefs(BanditBoost(decay=0.0), seen, runs)}
    (even,) = beliefs(BanditBoost(decay=1.0), seen, runs[:1])

    assert means[1] > means[4] and means[2] < means[3]
    assert max(newest, key=newest.get) == 1
    assert even.error == pytest.approx(3**-0.5)


def test_a_bandit_draws_by_its_seed():
    def asked(seed):
        replay = staged([0.0, 0.02, 0.04, 0.06], [BanditBoost()], seed=0)
        for run in (1, 2, 3, 4):
            replay.train_chunk(run)
        found = decide(BanditBoost(), replay.state, replay.rows, seed=seed)
        return {one.op.run: one.op.args["weight"] for one in found if one.op}

    assert asked(1) == asked(1)
    assert any(asked(seed) != asked(1) for seed in range(2, 6))


# ------------------------------------------------------------------------------------------ phases


def support_case():
    """Screen broadly, refine the five best, train the winner alone."""
    refine = {"training_args.max_grad_norm": 1.0, WARM: 0.1}
    return Phases(
        (
            Phase("screening", (Threshold(2.0, after=4),)),
            Phase("refining", (Halving(),), clone=CloneBest(5, changes=refine, warm=False)),
            Phase(
                "winner",
                clone=CloneBest(1, spread=0.0, warm=False, changes={"training_args.rdrop": 0.5}),
            ),
        )
    )


def test_phases_screen_refine_and_train_the_winner():
    replay = Replay(grid(), (support_case(),), steps=16).run()

    runs = replay.state.runs
    second = [r for r in runs.values() if "training_args.max_grad_norm" in r.changes]
    third = [r for r in runs.values() if "training_args.rdrop" in r.changes]
    grid_done = [i for i in range(1, 49) if runs[i].status == "completed"]
    five = sorted(grid_done, key=lambda i: replay.rows[i][-1]["eval_loss"])[:5]
    assert replay.stopped() & set(range(1, 49))
    assert sorted({r.parent for r in second}) == sorted(five)
    assert len(second) == 10 and all(r.config[WARM] == 0.1 for r in second)
    assert any(one.policy == "refining: halving" and one.op for one in replay.log)
    completed = [r.id for r in second if r.status == "completed"]
    best = min(completed, key=lambda i: replay.rows[i][-1]["eval_loss"])
    assert [(r.parent, r.status) for r in third] == [(best, "completed")]
    assert replay.active() == set()


def test_a_phase_may_end_early_and_go_on_warm():
    phases = Phases(
        (Phase("broad", until=0.25), Phase("deep", clone=CloneBest(2, spread=0.1, both=False)))
    )
    replay = staged([0.0, 0.1, 0.2, 0.3], [phases]).run()

    assert replay.stopped() == {1, 2, 3, 4}
    assert [(r.parent, r.status) for r in replay.state.runs.values() if r.parent] == [
        (1, "completed"),
        (2, "completed"),
    ]


def test_a_phase_waits_for_its_clones_to_be_there():
    phases = Phases(
        (
            Phase("a", until=0.125),
            Phase("b", until=0.25, clone=CloneBest(2, spread=0.0)),
            Phase("c", clone=CloneBest(1, spread=0.0)),
        )
    )
    replay = staged([0.0, 0.1, 0.2, 0.3])
    for run in (1, 2, 3, 4):
        replay.train_chunk(run)
    asked = decide(phases, replay.state, replay.rows)

    again = decide(phases, replay.state, replay.rows, recall(Memory(), asked))

    assert [one.op.kind for one in asked if one.op] == ["clone"] * 2 + ["stop"] * 4
    assert again == []


# ------------------------------------------------------------------------------- purity and memory


def test_deciding_changes_nothing_and_repeats():
    replay = Replay(grid()[:12], steps=16)
    policies = (
        Halving(),
        Threshold(),
        Outliers(),
        SlowLearners(),
        CloneBest(at=(0.125,), crossed=1),
        BanditBoost(),
        Budget(seconds=1.0),
        Phases((Phase("all", until=0.125), Phase("few", clone=CloneBest(1)))),
    )
    for run in list(replay.state.runs):
        replay.train_chunk(run)
    before = copy.deepcopy((replay.state, replay.rows))

    for policy in policies:
        args = replay.state, replay.rows, Memory(), replay.measures, 7
        first = decide(policy, *args)
        assert first == decide(policy, *args)
        assert decide(policy, *args[:2], recall(Memory(), first), *args[3:]) == [] or isinstance(
            policy, Budget | Threshold | Phases
        )
    assert (replay.state, replay.rows) == before


def test_later_policies_know_what_earlier_ones_stop():
    replay = staged([0.0, 0.1, 0.2, 0.3])
    for run in (1, 2, 3, 4):
        replay.train_chunk(run)

    both = decide_all([Halving(), Threshold(0.1)], replay.state, replay.rows)

    stops = [one.op.run for one in both if one.op]
    assert sorted(stops) == [2, 3, 4]  # each once; the best stays


def test_decisions_are_plain_data_and_read_as_lines():
    replay = staged([0.0, 0.1, 0.2, 0.3])
    for run in (1, 2, 3, 4):
        replay.train_chunk(run)

    found = decide_all(
        [Halving(), CloneBest(1, at=(0.125,)), BanditBoost()], replay.state, replay.rows
    )

    lines = [in_words(one) for one in found]
    assert all(one.op.by == f"policy:{one.policy}" for one in found if one.op)
    assert json.loads(json.dumps(to_data(found)))["decisions"][0]["op"] == {
        "kind": "stop",
        "run": 3,
        "args": {},
    }
    assert lines[0].startswith("halving (rung 0.125): stop run 3: eval_loss ")
    assert any(": clone run 1 warm with training_args.learning_rate=0.0008: " in x for x in lines)
    assert all("\n" not in line for line in lines)


def test_ops_that_a_dead_kernel_never_asked_for_are_found():
    replay = staged([0.0, 0.1, 0.2, 0.3])
    for run in (1, 2, 3, 4):
        replay.train_chunk(run)
    found = decide(Halving(), replay.state, replay.rows)
    replay.emit("decisions", None, **to_data(found))

    before = unanswered(replay.events)
    replay.act(before[0].op)

    assert before == [one for one in found if one.op]
    assert unanswered(replay.events) == before[1:]


def test_measures_are_read_from_the_log():
    replay = staged([0.0, 0.1])
    replay.train_chunk(1)
    replay.emit("disk", None, free_bytes=5, needed_bytes=7)

    known = measured(replay.events)

    assert [(s.run, s.steps, s.seconds, s.tokens) for s in known.slices] == [(1, 8, 10.0, None)]
    assert (known.disk[0].free_bytes, known.disk[0].needed_bytes) == (5, 7)
