"""RFOptuna: what it suggests from which results, the same in any kernel, and in the engine."""

import math
import sys
from dataclasses import replace

import pytest
import tiny

from rapidfire_jupyter import (
    Experiment,
    Linked,
    List,
    Range,
    RFLoraConfig,
    RFModelConfig,
    RFOptuna,
    RFSFTConfig,
)
from rapidfire_jupyter import (
    state as states,
)
from rapidfire_jupyter.changes import modify
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.space import coordinates
from rapidfire_jupyter.suggestions import Asked, Told, changes_between, history, suggest

pytest.importorskip("optuna")


def space(**args):
    return RFModelConfig(
        "tiny",
        peft_config=List(
            [
                RFLoraConfig(r=4, target_modules=["q_proj"]),
                RFLoraConfig(r=List([4, 8]), lora_alpha=Linked(lambda c: 2 * c["r"])),
            ]
        ),
        training_args=RFSFTConfig(learning_rate=Range(1e-5, 1e-1, log=True), **args),
    )


def rates_only():
    return RFModelConfig(
        "tiny",
        training_args=RFSFTConfig(
            learning_rate=Range(1e-5, 1e-1, log=True), weight_decay=Range(0.0, 0.5)
        ),
    )


def loss(config):
    """Best at a learning rate of 1e-3 and no weight decay."""
    args = config.model.training_args
    return 1.0 + (math.log10(args.learning_rate) + 3) ** 2 + args.weight_decay


def played(search, count, judge=loss):
    """Ask and tell one after the other; gives the configs and the steps."""
    steps, configs = [], []
    for number in range(1, count + 1):
        config = suggest(search, steps, ("eval_loss",), configs)
        configs.append(config)
        steps.append(Asked(number, coordinates(search.configs, config.model)))
        steps.append(Told(number, (judge(config),)))
    return configs, steps


@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "random"])
def test_samplers_suggest_the_same_from_the_same_results(sampler):
    search = RFOptuna(rates_only(), num_runs=30, sampler=sampler, seed=3)

    first, steps = played(search, 12)

    assert [c.model for c in played(search, 12)[0]] == [c.model for c in first]
    assert suggest(search, steps, ("eval_loss",), []) == suggest(search, steps, ("eval_loss",), [])
    other = played(replace(search, seed=4), 12)[0]
    assert [c.model for c in other] != [c.model for c in first]


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", "cmaes"])
def test_samplers_that_learn_get_nearer_than_random_ones(sampler):
    def late(kind, seed):
        configs, _ = played(RFOptuna(rates_only(), num_runs=40, sampler=kind, seed=seed), 40)
        return sorted(map(loss, configs[-10:]))[5]

    assert sum(late(sampler, s) for s in range(3)) < 0.7 * sum(late("random", s) for s in range(3))


def test_stopped_runs_teach_and_failed_ones_do_not():
    search = RFOptuna(rates_only(), num_runs=30, seed=1)
    configs, steps = played(search, 12)
    known = [step for step in steps if isinstance(step, Asked)]
    stopped = [
        *known,
        *(Told(a.run, (loss(c),), 0.25) for a, c in zip(known, configs, strict=True)),
    ]
    failed = [*known, *(Told(a.run, None) for a in known)]
    nan = [*known, *(Told(a.run, (math.nan,)) for a in known)]

    after = [suggest(search, s, ("eval_loss",), []) for s in (known, stopped, failed, nan)]

    assert after[0] == after[2] == after[3]
    assert after[1] != after[0]


def test_several_metrics_are_a_front_with_a_way_each():
    search = RFOptuna(
        rates_only(), metric=["eval_loss", "eval_bleu"], num_runs=30, seed=1, sampler="tpe"
    )
    steps = []
    for number in range(1, 13):
        config = suggest(search, steps, search.metrics, [])
        steps.append(Asked(number, coordinates(search.configs, config.model)))
        steps.append(Told(number, (loss(config), 30 - loss(config))))

    assert suggest(search, steps, search.metrics, []) is not None


def test_no_config_is_suggested_twice_and_where_holds():
    search = RFOptuna(
        RFModelConfig("tiny", training_args=RFSFTConfig(max_steps=List([1, 2, 3, 4]))),
        where=lambda c: c["max_steps"] != 3,
        at_once=9,
        num_runs=9,
    )

    assert sorted(c.model.training_args.max_steps for c in search.runs()) == [1, 2, 4]
    with pytest.raises(ConfigError, match="where leaves no config of 100 suggested ones"):
        replace(search, where=lambda c: False).runs()


@pytest.mark.parametrize("seed", range(3))
def test_a_sampler_that_is_sure_still_suggests_what_is_left(seed):
    rates = List([1e-4, 3e-4, 1e-3, 3e-3, 1e-2])
    few = RFModelConfig("tiny", training_args=RFSFTConfig(learning_rate=rates, weight_decay=0.0))

    configs, _ = played(RFOptuna(few, num_runs=5, sampler="tpe", seed=seed), 5)

    assert {c.model.training_args.learning_rate for c in configs} == set(rates.values)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_runs": 0}, "RFOptuna: num_runs must be a whole number >= 1, got 0"),
        ({"sampler": "grid"}, "sampler must be one of tpe, cmaes, random, got 'grid'"),
        ({"sampler": "cmaes", "metric": ["a", "b"]}, "needs a Range and one metric"),
        ({"metric": ["a", "b"], "mode": ["min"]}, "mode must have one entry for each metric"),
        (
            {"configs": RFModelConfig("tiny", formatting_func=List([str, repr]))},
            "choices of formatting_func must be values that can be written down",
        ),
    ],
)
def test_what_cannot_be_searched_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        RFOptuna(**{"configs": space(), **given})


def test_without_optuna_the_way_to_install_it_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)

    with pytest.raises(ConfigError, match=r"pip install 'rapidfire-jupyter\[optuna\]'"):
        RFOptuna(space())


def test_changes_make_a_clone_the_suggested_config():
    search = RFOptuna(space(weight_decay=0.1), at_once=8)
    runs = search.runs()

    for run in runs:
        assert modify(runs[0], changes_between(runs[0].model, run.model)).model == run.model
    assert changes_between(runs[0].model, runs[0].model) == {}


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """Six runs, two at a time, one of them stopped by hand."""
    root = tmp_path_factory.mktemp("search")
    exp = Experiment("exp", root=root)
    exp.run_fit(search(), tiny.create_model, tiny.sft_rows(16), tiny.sft_rows(20)[16:], **FIT)
    exp.stop(2).wait(60)
    exp.wait(120)
    yield exp
    exp.end()


FIT = {"num_chunks": 2, "seed": 3}


def search():
    return RFOptuna(space(per_device_train_batch_size=4), num_runs=6, at_once=2, seed=5)


@pytest.mark.slow
def test_slots_are_refilled_until_all_runs_were_made(searched):
    assert len(searched.runs) == 6
    assert sorted(run.status for run in searched.runs) == ["completed"] * 5 + ["stopped"]
    asked = [e for e in searched.events if e.kind == "op" and e.data["by"] == "search:optuna"]
    assert len(asked) == 4
    assert all(not e.data["created"]["warm"] for e in asked)
    assert asked[-1].data["reason"].endswith("number 6 of 6")
    assert "learning_rate=" in searched.runs[-1].name
    active = most = 0
    for event in searched.events:
        created = event.kind == "op" and event.data["kind"] == "clone"
        stops = event.kind == "op" and event.data["kind"] == "stop"
        active += 2 * (event.kind == "fit_started") + created
        active -= (event.kind == "run_completed") + stops
        most = max(most, active)
    assert most == 2


@pytest.mark.slow
def test_the_log_alone_gives_each_suggestion_again(searched):
    configs = dict(searched._fit.configs)
    events = list(searched.events)
    checked = 0

    for place, event in enumerate(events):
        if event.kind != "op" or event.data["by"] != "search:optuna":
            continue
        before = events[:place]
        state = states.State()
        for one in before:
            state = states.apply(state, one)
        rows = {run: states.history(before, run) for run in state.runs}
        known = {run: configs[run] for run in state.runs}
        steps = history(search(), state, known, rows, before, ("eval_loss",))
        again = suggest(search(), steps, ("eval_loss",), list(known.values()))
        assert again.model == configs[event.data["created"]["id"]].model
        checked += 1
    assert checked == 4


@pytest.mark.slow
def test_the_same_cells_in_a_later_kernel_make_no_further_run(searched):
    searched.end()

    again = Experiment("exp", root=searched.folder.parent)
    again.run_fit(search(), tiny.create_model, tiny.sft_rows(16), tiny.sft_rows(20)[16:], **FIT)
    again.wait(120)

    assert len(again.runs) == 6
    assert [r.status for r in again.runs].count("completed") == 5
    again.end()


YAML = """\
experiment: exp
root: {root}
model_name: tiny
create_model_fn: create_model
train_dataset: rows
eval_dataset: eval_rows
peft_config: {{r: 4, target_modules: [q_proj]}}
training_args: {{learning_rate: {{range: [1e-5, 1e-1], log: true}}, num_train_epochs: 1}}
num_chunks: 2
{search}
"""


def yaml_names():
    return {
        "create_model": tiny.create_model,
        "rows": tiny.sft_rows(16),
        "eval_rows": tiny.sft_rows(20)[16:],
    }


def body(root, search):
    return YAML.format(root=root, search=search)


@pytest.mark.slow
def test_a_yaml_body_lets_optuna_suggest_its_runs(tmp_path):
    from rapidfire_jupyter.magics import run_magic

    names = yaml_names()
    asked = "num_runs: 3\noptuna: {at_once: 2, metric: eval_loss, sampler: random, seed: 5}"
    run_magic("run", body(tmp_path, asked), names)
    exp = names["exp"].wait(120)

    assert exp._fit.search.num_runs == 3 and exp._fit.search.seed == 5
    assert [run.status for run in exp.runs] == ["completed"] * 3
    assert [run.parent for run in exp.runs] == [None, None, 1]
    exp.end()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            "optuna: {at_onc: 2}",
            "line 11 of the cell: optuna has no setting 'at_onc'; did you",
        ),
        ("optuna: {where: x}", "line 11 of the cell: optuna has no setting 'where'"),
        (
            "optuna: tpe",
            "line 11 of the cell: optuna takes settings of RFOptuna: {at_once: 4}",
        ),
        ("optuna: {sampler: grid}", "line 11 of the cell: sampler must be one of tpe, cmaes"),
        ("optuna: {at_once: 0}", "line 11 of the cell: RFOptuna: at_once must be"),
        ("optuna: {num_runs: 3}\nnum_runs: 3", "line 11 of the cell: num_runs is given twice"),
    ],
)
def test_a_wrong_search_in_yaml_is_refused_with_its_line(tmp_path, asked, said):
    from IPython.core.error import UsageError

    from rapidfire_jupyter.magics import run_magic

    with pytest.raises(UsageError) as caught:
        run_magic("run", body(tmp_path, asked), yaml_names())

    assert said in str(caught.value) and "\n" not in str(caught.value)
