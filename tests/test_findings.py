"""What the user is told of real runs: rankings, effects, comparisons, the noise floor."""

import pytest
import tiny

from rapidfire_jupyter import (
    Experiment,
    Halving,
    RFGridSearch,
    RFLoraConfig,
    RFModelConfig,
    RFSFTConfig,
)
from rapidfire_jupyter.choices import List
from rapidfire_jupyter.errors import ConfigError, OpError
from rapidfire_jupyter.repeats import calibrated, noise_floor
from rapidfire_jupyter.ui.fold import Fold
from rapidfire_jupyter.ui.view import Facts, head
from rapidfire_jupyter.waiting import until


def search():
    lora = {"lora_alpha": 8, "lora_dropout": 0.1, "target_modules": ["q_proj", "v_proj"]}
    config = RFModelConfig(
        "tiny",
        peft_config=List([RFLoraConfig(r=4, **lora), RFLoraConfig(r=8, **lora)]),
        training_args=RFSFTConfig(
            learning_rate=List([1e-3, 1e-2, 3e-2]),
            per_device_train_batch_size=4,
            num_train_epochs=1,
            logging_steps=1,
        ),
    )
    return RFGridSearch(config, "SFT")


def last(rows):
    return [row["eval_loss"] for row in rows if "eval_loss" in row][-1]


def train(exp, **given):
    return exp.run_fit(
        search(),
        tiny.create_model,
        tiny.sft_rows(48),
        tiny.sft_rows(60)[48:],
        num_chunks=4,
        **given,
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished grid of rank and learning rate."""
    import torch

    torch.set_num_threads(1)
    exp = Experiment("exp", root=tmp_path_factory.mktemp("done"))
    train(exp).wait(300)
    yield exp
    exp.end()


@pytest.fixture(scope="module")
def halved(tmp_path_factory):
    """The same grid, with most of it stopped."""
    import torch

    torch.set_num_threads(1)
    exp = Experiment("halved", root=tmp_path_factory.mktemp("halved"))
    train(exp, policies=[Halving(eta=2, first=0.25)]).wait(300)
    yield exp
    exp.end()


def test_effects_of_a_real_grid_are_differences_of_otherwise_equal_runs(done):
    found = done.effects()
    table = found.to_frame()

    rates = table[table.hyperparameter == "learning_rate"]
    assert list(rates["from"] + " " + rates["to"]) == ["0.001 0.01", "0.001 0.03", "0.01 0.03"]
    finals = {run.id: last(run.rows) for run in done.runs}
    by_config = {
        (r.config["peft_config.r"], r.config["training_args.learning_rate"]): finals[r.id]
        for r in done.runs
    }
    mean = sum(by_config[r, 0.03] - by_config[r, 0.001] for r in (4, 8)) / 2
    assert rates.iloc[1].difference == pytest.approx(mean) and rates.iloc[1].pairs == 2
    assert "assumed; see exp.repeatability" in repr(found)
    assert "<table" in found._repr_html_() and "learning_rate" in found._repr_html_()


def test_plots_of_findings_show_what_the_tables_have(done):
    forest = done.effects().figure()
    ranked = done.ranking().figure()
    both = done.compare(1, 3).figure()

    assert sum(len(trace.y) for trace in forest.data) == len(done.effects().to_frame())
    assert len(ranked.data[0].y) == 6 and ranked.data[0].y[-1].startswith(f"{done.best().id}: ")
    assert [trace.name[0] for trace in both.data] == ["1", "3"]


def test_two_runs_are_compared_with_what_differs_and_a_verdict(done):
    found = done.compare(1, 3)

    assert found.result.differences == (("training_args.learning_rate", 0.001, 0.03),)
    assert found.result.better == 3 and "run 3 is better: eval_loss differs by -" in repr(found)
    with pytest.raises(OpError, match="there is no run 99"):
        done.compare(1, 99)


def test_a_stopped_run_is_partial_and_never_the_best_of_those_that_finished(halved):
    stopped = [run for run in halved.runs if run.status == "stopped"]
    table = halved.ranking().to_frame()

    assert stopped and halved.best().status == "completed"
    assert set(table[table["rank"].isna()].run) == {run.id for run in stopped}
    assert table[table.partial]["why not"].str.contains("stopped at .* % of its schedule").all()
    early = halved.ranking(at=0.25).to_frame()
    assert early["rank"].notna().all() and early.partial.sum() == len(stopped)
    assert halved.effects().result.at == 0.25 and "partial: runs" in repr(halved.effects())
    best = head(Fold().read(halved.events), Facts("exp"), 0.0)["best"]["eval_loss"]
    assert halved.run(best).status == "completed"


def test_while_runs_train_the_best_is_that_at_the_same_fraction(experiment):
    exp = experiment()
    train(exp)
    until(exp, lambda: sum(r.chunk >= 1 for r in exp.state.runs.values()) == 6, 120)
    exp.pause_all().wait(60)

    found = exp.ranking().result

    assert 0 < found.at < 1 and found.best == exp.best().id
    assert all(place.partial for place in found.places)


def test_importance_says_what_to_install(done):
    try:
        import optuna  # noqa: F401
        import sklearn  # noqa: F401
    except ImportError:
        with pytest.raises(OpError, match=r"rapidfire-jupyter\[optuna\]"):
            done.importance()
    else:
        assert set(done.importance().to_frame().hyperparameter) == {"learning_rate", "r"}


@pytest.mark.slow
def test_the_spread_over_seeds_is_the_noise_that_effects_and_policies_use(experiment):
    exp = experiment()
    train(exp).wait(300)
    before = exp.effects().result

    repeated = exp.repeatability(exp.runs[2], k=3).wait(120)
    again = exp.repeatability(3, k=3)

    assert repeated.runs == again.runs == (3, 7, 8)
    assert list(repeated.to_frame().seed) == [42, 43, 44]
    values = list(repeated.to_frame().eval_loss)
    assert len(set(values)) == 3 and 0 < repeated.spread < 0.05
    floor, runs = noise_floor(exp.state, {r.id: r.rows for r in exp.runs})
    after = exp.effects().result
    assert (floor, runs) == (pytest.approx(repeated.spread), 3)
    assert (before.noise, after.noise) == (0.005, floor)
    assert calibrated([Halving()], floor)[0].noise == floor
    assert calibrated([Halving(noise=0.02)], floor)[0].noise == 0.02
    assert "a tie to effects, rankings and policies" in repr(repeated)
    with pytest.raises(ConfigError, match="k must be a whole number >= 2, got 1"):
        exp.repeatability(3, k=1)


def test_magics_show_the_same_tables(halved):
    from rapidfire_jupyter.magics import run_magic

    names = {"exp": halved}

    assert repr(run_magic("ranking eval_loss --exp halved", None, names)) == repr(
        halved.ranking("eval_loss")
    )
    assert repr(run_magic("effects --exp halved", None, names)) == repr(halved.effects())
    assert repr(run_magic("compare 2 3 --exp halved", None, names)) == repr(halved.compare(2, 3))
    assert run_magic("decisions --exp halved", None, names).equals(halved.decisions())
    assert run_magic("alerts --exp halved", None, names).equals(halved.alerts())
