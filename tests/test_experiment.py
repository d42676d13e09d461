"""What the user holds: tables, results, models, peeks, scripts, and a notebook that runs twice."""

import json
import shutil
import subprocess
import sys

import pandas as pd
import pytest
import tiny
import torch
from IPython.core.interactiveshell import InteractiveShell

from rapidfire_jupyter import (
    Experiment,
    List,
    RFGridSearch,
    RFLoraConfig,
    RFModelConfig,
    RFSFTConfig,
)
from rapidfire_jupyter.errors import ConfigError, ExperimentError, OpError


def grid(**given):
    return RFGridSearch(
        RFModelConfig(
            "tiny",
            peft_config=RFLoraConfig(r=4, target_modules=["q_proj"]),
            training_args=RFSFTConfig(
                **{
                    "learning_rate": List([1e-2, 1e-3]),
                    "per_device_train_batch_size": 4,
                    "num_train_epochs": 1,
                    "logging_steps": 1,
                    **given,
                }
            ),
        ),
        trainer_type="SFT",
    )


@pytest.fixture
def done(experiment):
    """A finished experiment of two runs."""
    exp = experiment()
    exp.run_fit(grid(), tiny.create_model, tiny.sft_rows(16), tiny.sft_rows(30)[20:], num_chunks=2)
    return exp.wait(90)


def test_results_have_every_logged_row_of_every_run(done):
    table = done.results()

    assert list(table.columns[:4]) == ["run", "name", "step", "chunk"]
    losses = table.dropna(subset=["loss"])
    assert losses.groupby("run").step.apply(list).to_dict() == {1: [1, 2, 3, 4], 2: [1, 2, 3, 4]}
    assert losses.groupby("run").chunk.apply(list).to_dict() == {1: [1, 1, 2, 2], 2: [1, 1, 2, 2]}
    assert table.dropna(subset=["eval_loss"]).step.tolist() == [2, 4, 2, 4]
    assert isinstance(done.runs[0].history, pd.DataFrame)


def test_few_rows_and_an_unusual_share_to_evaluate_on_are_told_in_one_line_once(experiment, capsys):
    exp = experiment()
    for _ in range(2):
        exp.run_fit(grid(max_steps=1), tiny.create_model, tiny.sft_rows(8), tiny.sft_rows(8))
    exp.wait(90)

    lines = [line for line in capsys.readouterr().out.splitlines() if "are few" in line]
    assert lines == [
        "data: train: 8 rows are few: under 1,000, runs may differ by chance; "
        "eval: 50.0 % of all rows are for evaluation; 5 % to 20 % is usual"
    ]


def test_the_best_run_is_found_and_its_model_gives_the_trained_adapters_logits(done):
    best = done.best("eval_loss")
    model, tokenizer = best.load_model()
    ids = torch.tensor([tokenizer("how do i")["input_ids"]])

    plain, _ = tiny.create_model({"model_kwargs": {}})
    with torch.no_grad():
        tuned, untuned = model(input_ids=ids).logits, plain(input_ids=ids).logits
    assert best.id == min(done.runs, key=lambda r: r.rows[-2].get("eval_loss", 9)).id
    assert not torch.equal(tuned, untuned)
    with pytest.raises(OpError, match=r"no run has logged 'meteor'; logged: .*eval_loss"):
        done.best("meteor")


def test_peek_shows_the_first_batch_with_masked_tokens_marked(done):
    peek = done.run(1).peek()
    first = done.run(1).folder / "peek.json"

    prompts = [row["prompt"] for row in tiny.sft_rows(16)]
    assert len(peek.rows) == 4
    for row in peek.rows:
        masked, learned = row[0], row[-1]
        assert masked[1] is False and learned[1] is True and masked[0] in prompts
    assert "opacity" in peek._repr_html_() and json.loads(first.read_text()) == peek.rows


def test_text_in_tables_and_peeks_is_escaped(experiment):
    rows = [{"prompt": f"<script>{n}</script>", "completion": " <b>x</b>"} for n in range(8)]
    config = grid().runs()[0].model.copy(name="<img src=x onerror=alert(1)>")
    exp = experiment()
    exp.run_fit(config, tiny.create_model, rows, num_chunks=1, block=True)

    assert "<img" not in exp.runs._repr_html_() and "&lt;img" in exp.runs._repr_html_()
    assert "<script>" not in exp.run(1).peek()._repr_html_()


def test_the_same_call_again_attaches_and_starts_nothing(done):
    before = len(done.events)

    again = Experiment(done.name, root=done.folder.parent)
    again.run_fit(
        grid(), tiny.create_model, tiny.sft_rows(16), tiny.sft_rows(30)[20:], num_shards=2
    )
    again.wait(30)

    assert again is done and len(done.events) == before and len(done.runs) == 2


def test_results_stay_readable_after_the_end_and_in_a_later_kernel(done):
    script = done.run(1).script()
    done.end()
    assert done.best("eval_loss").load_model()[0].peft_config
    code = (
        "from rapidfire_jupyter import Experiment\n"
        f"exp = Experiment({done.name!r}, root={str(done.folder.parent)!r})\n"
        "import sys; assert 'torch' not in sys.modules\n"
        "print(len(exp.results()), exp.best('eval_loss').id, exp.status, exp.stop(1).status)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert out.stdout.split() == [
        str(len(done.results())),
        str(done.best("eval_loss").id),
        "ended",
        "refused",
    ]
    assert "SFTTrainer(" in script and "PlanOrder" in script
    with pytest.raises(ExperimentError, match="make it again"):
        done.run_fit(grid(), tiny.create_model, tiny.sft_rows(16), num_chunks=2)


def test_runs_that_prepare_the_same_share_their_tokenised_data(experiment):
    exp = experiment()
    made = []

    def text(row):
        made.append(1)
        return row["prompt"] + row["completion"]

    configs = [c.model.copy(formatting_func=text) for c in grid().runs()]
    exp.run_fit(configs, tiny.create_model, tiny.sft_rows(16), num_chunks=2, block=True)

    assert [r.status for r in exp.runs] == ["completed"] * 2, exp.run(1).trace
    prepared = [key for key in exp._fit.executor._prepared.kept if key[0] == "SFT"]
    assert len(prepared) == 1
    assert len(made) == 2 + 16 + 16  # tried in the cell, called once for all runs


def test_runs_share_one_base_and_say_which(done):
    assert {run.facts.base for run in done.runs} == {"base-1"}
    assert done._fit.executor.facts() == {"sessions": 0, "bases": 1}


def test_replicates_differ_by_their_seed_only(experiment):
    exp = experiment()
    one = grid().runs()[0].model.copy(seed=List([1, 2, 3]))
    exp.run_fit(one, tiny.create_model, tiny.sft_rows(8), num_chunks=1, block=True)

    assert [run.config["seed"] for run in exp.runs] == [1, 2, 3]
    losses = [run.rows[1]["loss"] for run in exp.runs]
    assert len(set(losses)) == 3 and [run.name for run in exp.runs] == [
        "seed=1",
        "seed=2",
        "seed=3",
    ]


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"num_chunks": 0}, ConfigError, "num_chunks must be a whole number >= 1, got 0"),
        ({"num_chunks": 2, "chunk_size": 3}, ConfigError, "num_chunks or chunk_size"),
        ({"seed": -1}, ConfigError, "seed must be a whole number >= 0, got -1"),
        ({"slice_seconds": 0}, ConfigError, "slice_seconds must be a number over 0, got 0"),
        ({"isolation": "no"}, ConfigError, 'isolation must be "mark" or "cells"'),
    ],
)
def test_bad_arguments_are_refused_in_the_cell_and_nothing_starts(experiment, given, error, text):
    exp = experiment()

    with pytest.raises(error, match=text):
        exp.run_fit(grid(), tiny.create_model, tiny.sft_rows(8), **given)
    assert len(exp.runs) == 0 and exp.events == []


@pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 130, "a\nb"])
def test_an_impossible_name_is_refused(tmp_path, name):
    with pytest.raises(ExperimentError, match="an experiment name is 1 to 120 characters"):
        Experiment(name, root=tmp_path)


def test_slices_of_steps_and_of_seconds_cut_a_chunk(experiment):
    exp = experiment()
    exp.run_fit(
        grid(), tiny.create_model, tiny.sft_rows(32), num_chunks=1, slice_steps=3, block=True
    )
    other = experiment("seconds")
    other.run_fit(
        grid(), tiny.create_model, tiny.sft_rows(32), num_chunks=1, slice_seconds=1e-6, block=True
    )

    steps = [e.data["steps"] for e in exp.events if e.kind == "slice_ended" and e.run == 1]
    assert steps == [3, 3, 2]
    assert [e.data["steps"] for e in other.events if e.kind == "slice_ended" and e.run == 1] == [
        1
    ] * 8


OTHER_KERNEL = """
import sys
from rapidfire_jupyter import Experiment
exp = Experiment("exp", root=sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


def test_a_kernel_that_waited_for_another_takes_over_when_that_is_gone(tmp_path):
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER_KERNEL, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert other.stdout.readline() == "open\n"
    exp = Experiment("exp", root=tmp_path)
    with pytest.raises(ExperimentError, match="open in another kernel"):
        exp.run_fit(grid(), tiny.create_model, tiny.sft_rows(4))

    other.communicate()
    exp.run_fit(grid(), tiny.create_model, tiny.sft_rows(4), num_chunks=1, block=True)

    assert Experiment("exp", root=tmp_path) is exp and not exp.read_only
    assert [run.status for run in exp.runs] == ["completed", "completed"]
    exp.end()


def test_an_experiment_whose_folder_was_deleted_is_made_anew(tmp_path):
    exp = Experiment("exp", root=tmp_path)
    exp.run_fit(grid(num_train_epochs=50), tiny.create_model, tiny.sft_rows(8), num_chunks=1)

    exp.pause_all().wait(30)
    shutil.rmtree(exp.folder)
    with pytest.raises(ExperimentError, match=r"was deleted; make it again: exp = Experiment"):
        exp.run_fit(grid(num_train_epochs=50), tiny.create_model, tiny.sft_rows(8), num_chunks=1)
    new = Experiment("exp", root=tmp_path)
    new.run_fit(grid(), tiny.create_model, tiny.sft_rows(4), num_chunks=1, block=True)

    assert new is not exp and len(new.results()) > 0
    new.end()
    assert [run.status for run in Experiment("exp", root=tmp_path).runs] == ["completed"] * 2


def test_it_is_running_from_its_first_run_on(experiment):
    exp = experiment()
    seen = []
    exp._opened.log.subscribe(lambda event: exp.state.runs and seen.append(exp.status))

    exp.run_fit(grid(), tiny.create_model, tiny.sft_rows(4), num_chunks=1, block=True)

    assert seen[:2] == ["running"] * 2
    assert set(seen) == {"running", "idle"}


def test_a_first_try_in_which_nothing_was_trained_does_not_bind_the_name(experiment):
    def broken(config):
        raise RuntimeError("no such model")

    exp = experiment()
    exp.run_fit(grid(), broken, tiny.sft_rows(4), num_chunks=1, block=True)
    assert {run.status for run in exp.runs} == {"failed"}

    exp.run_fit(grid(num_train_epochs=2), tiny.create_model, tiny.sft_rows(8), num_chunks=1)
    exp.wait(60)

    assert [(run.status, run.error) for run in exp.runs] == [("completed", "")] * 2
    with pytest.raises(ExperimentError, match="was made with"):
        exp.run_fit(grid(num_train_epochs=2), tiny.create_model, tiny.sft_rows(9), num_chunks=1)


@pytest.mark.parametrize("name", ["漢" * 100, "half \ud83d", "a/b", "..", "", 7])
def test_names_that_no_folder_can_have_are_refused_in_one_line(tmp_path, name):
    with pytest.raises(ExperimentError, match="an experiment name is 1 to 120 characters"):
        Experiment(name, root=tmp_path)


def test_a_root_that_is_none_is_refused_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(ExperimentError, match="root is a folder's path, got None"):
        Experiment("exp", root=None)
    with pytest.raises(ExperimentError, match="cannot be made"):
        Experiment("exp", root=tmp_path / "file")


def test_arguments_of_other_names_are_refused_with_the_nearest(experiment):
    exp = experiment()

    with pytest.raises(ConfigError, match=r"run_fit has no argument 'num_chunk'.*'num_chunks'"):
        exp.run_fit(grid(), tiny.create_model, tiny.sft_rows(4), num_chunk=4)
    with pytest.raises(ConfigError, match=r"; write training_args=RFSFTConfig\(max_tokens_per_b"):
        exp.run_fit(grid(), tiny.create_model, tiny.sft_rows(4), max_tokens_per_batch=3)
    with pytest.raises(ConfigError, match=r"seed must be a whole .*, got 7\.0; write 7"):
        exp.run_fit(grid(), tiny.create_model, tiny.sft_rows(4), seed=7.0)
    with pytest.raises(OpError, match=r"no run at position 2 of 0, counted from 0.*exp.run\(2\)"):
        exp.runs[2]
    with pytest.raises(ConfigError, match=r"List takes one list of values; write List\(\[1, 2\]\)"):
        List(1, 2)
    with pytest.raises(OpError, match=r"clone takes its changes as a dict: clone\(1, \{'r': 8\}\)"):
        exp.clone(1, r=8)
    with pytest.raises(OpError, match="a run is named by its number, got 'one'"):
        exp.stop("one")


def test_errors_are_shown_without_the_insides_of_this_package():
    shell = InteractiveShell()

    result = shell.run_cell("from rapidfire_jupyter import List\n1 + 1\nList(1, 2)")
    shown = result.error_in_exec._render_traceback_()

    assert shown[-1] == "ConfigError: List takes one list of values; write List([1, 2])"
    assert len(shown) == 2 and shown[0] == "In line 3 of the cell: List(1, 2)"
