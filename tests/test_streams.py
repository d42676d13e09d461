"""Streams: exact beside neighbours, over stops, kills and passes; what cannot be is told first."""

import multiprocessing
import os
import random
import signal
import sys
from itertools import islice

import numpy as np
import pytest
import tiny
from datasets import Dataset, IterableDataset, concatenate_datasets, interleave_datasets
from oracle import assert_same, plain, sliced

from rapidfire_jupyter import Experiment, RFLoraConfig, RFModelConfig, RFSFTConfig
from rapidfire_jupyter.errors import DataError
from rapidfire_jupyter.training import streams
from rapidfire_jupyter.waiting import until

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "transformers", "trl", "peft", "datasets", "tiny"])


def shards(parts):
    """Rows of several shards; each begins where the place in it is 0."""
    for part in parts:
        yield from tiny.sft_rows(48)[part * 8 : part * 8 + 8]


def sharded(parts=6):
    return IterableDataset.from_generator(shards, gen_kwargs={"parts": list(range(parts))})


def arrow(rows=48):
    return Dataset.from_list(tiny.sft_rows(rows)).to_iterable_dataset(num_shards=4)


KINDS = {
    "shards": sharded,
    "buffer": lambda: sharded().shuffle(seed=7, buffer_size=10),
    "arrow buffer": lambda: arrow().shuffle(seed=7, buffer_size=10),
    "mixed": lambda: interleave_datasets(
        [sharded(), arrow().map(lambda row: {**row, "completion": " sorry"})],
        probabilities=[0.6, 0.4],
        seed=3,
    ),
    "joined": lambda: concatenate_datasets([sharded(3), arrow(24)]),
    "passes": lambda: arrow(10).shuffle(seed=7, buffer_size=4),
}


def config(**given):
    args = {"learning_rate": 1e-2, "per_device_train_batch_size": 2, "logging_steps": 1}
    args |= {"max_steps": 8, "gradient_accumulation_steps": 2, **given}
    return RFModelConfig(
        "tiny",
        peft_config=RFLoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj"]),
        training_args=RFSFTConfig(**args),
    )


def configs():
    return [config(), config(per_device_train_batch_size=3, learning_rate=1e-3)]


def started(exp, kind, **given):
    exp.run_fit(configs(), tiny.create_model, KINDS[kind](), num_chunks=4, slice_steps=1, **given)
    return exp


def assert_as_plain(exp, kind, folder):
    stream = f"import test_streams; train_dataset = test_streams.KINDS[{kind!r}]()"
    for run in exp.runs:
        assert run.status == "completed", run.trace
        assert run.exact, exp.events
        assert_same(sliced(run), plain(run, folder / f"plain{run.id}", stream), run.name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_stopped_beside_its_neighbours_equals_plain_trl(experiment, tmp_path, kind):
    exp = experiment()
    stopped = []

    def listen(event):
        step = (event.data.get("row") or {}).get("step")
        if event.kind == "logged" and event.run == 1 and step in (2, 5) and step not in stopped:
            stopped.append(step)
            exp.stop(1)

    exp._opened.log.subscribe(listen)
    started(exp, kind)
    for _ in range(2):
        exp.run(1).wait(120)
        exp.resume(1).wait(30)
    exp.wait(120)

    assert stopped == [2, 5]
    assert_as_plain(exp, kind, tmp_path)


def test_runs_that_read_one_stream_in_turns_equal_plain_trl(experiment, tmp_path):
    assert_as_plain(started(experiment(), "joined", block=True), "joined", tmp_path)


def _killed(root, path, kind, step):
    sys.path[:] = path
    import torch

    torch.set_num_threads(1)
    exp = Experiment("exp", root=root)
    exp._opened.log.subscribe(
        lambda event: (
            (event.data.get("row") or {}).get("step") == step
            and event.run == 2
            and os.kill(os.getpid(), signal.SIGKILL)
        )
    )
    started(exp, kind)
    exp.wait(120)


@pytest.mark.parametrize(("kind", "step"), [("buffer", 4), ("mixed", 7), ("passes", 6)])
def test_a_run_that_was_killed_equals_plain_trl(experiment, tmp_path, kind, step):
    process = _context.Process(target=_killed, args=(str(tmp_path), sys.path, kind, step))
    process.start()
    process.join(180)
    assert process.exitcode == -signal.SIGKILL

    exp = started(experiment(), kind, block=True)

    assert any(event.kind == "run_recovered" for event in exp.events)
    assert_as_plain(exp, kind, tmp_path)


def test_two_readers_of_one_stream_do_not_move_each_other():
    def in_turns(first, second):
        """What two readers get, one of them three times as fast."""
        readers, got = (iter(first), iter(second)), ([], [])
        for turn in range(400):
            which = int(turn % 4 == 3)
            got[which].extend(row["prompt"] for row in islice(readers[which], 1))
        return got

    stream = KINDS["joined"]()
    alone = [row["prompt"] for row in KINDS["joined"]()]

    assert in_turns(streams._own(stream), streams._own(stream)) == (alone, alone)
    assert in_turns(stream, stream) != (alone, alone)  # else no copies are needed


def test_a_place_brought_back_to_a_passes_end_is_in_that_pass():
    place = streams.Place(rows=8, step=2)

    place.begin_pass(1, 4, 4)

    assert place.at(4, 4) == {"passes": 0, "rows": 16, "began": ""}
    assert place.at(5, 4) == {"passes": 1, "rows": 4, "began": ""}


def test_a_finished_run_on_a_stream_is_made_longer_and_goes_on_in_it(experiment):
    exp = experiment()
    short, whole = (
        config(lr_scheduler_type="constant", max_steps=steps, run_name=str(steps))
        for steps in (4, 8)
    )

    exp.run_fit([short, whole], tiny.create_model, KINDS["passes"](), num_chunks=2, block=True)
    exp.resume(1, max_steps=8).wait(60)
    exp.wait(120)

    rows = [[(r["step"], r["loss"]) for r in run.rows if "loss" in r] for run in exp.runs]
    assert rows[0] == rows[1] and len(rows[0]) == 8


def test_a_warm_clone_of_another_batch_goes_on_in_the_stream(experiment):
    exp = experiment()
    exp.run_fit([config(max_steps=6)], tiny.create_model, sharded(), num_chunks=3, slice_steps=1)
    until(exp, lambda: len(exp.run(1).rows) >= 2, 60)
    exp.pause_all().wait(30)
    at = exp.state.runs[1].step
    clone = exp.clone(1, {"per_device_train_batch_size": 4}, warm=True)
    exp.resume_all()
    clone.wait(60)
    exp.wait(120)

    assert exp.run(2).status == "completed", exp.run(2).trace
    told = f"goes on from step {at} of its parent as step {at // 2} of 8 rows each"
    assert any(told in str(event.data) for event in exp.events)


class Moody:
    """A stream that draws from a generator of its own, without a seed."""

    def __call__(self):
        rows = tiny.sft_rows(48)
        np.random.default_rng().shuffle(rows)
        return iter(rows)


def drawn():
    """A stream that draws from Python's global generator."""
    for _ in range(64):
        yield tiny.sft_rows(48)[random.randrange(48)]


@pytest.mark.parametrize(("stream", "reason"), [
    (lambda: IterableDataset.from_generator(Moody()), "gives other rows each time it is read"),
    (lambda: sharded().shuffle(buffer_size=10), "is shuffled without a seed; give shuffle(seed="),
    (lambda: sharded().shuffle(generator=np.random.default_rng()), "shuffled without a seed"),
])  # fmt: skip
def test_a_stream_that_cannot_be_repeated_is_told_before_the_first_step(experiment, stream, reason):
    exp = experiment()

    exp.run_fit([config(max_steps=2)], tiny.create_model, stream(), num_chunks=1, block=True)

    assert exp.run(1).status == "completed", exp.run(1).trace
    told = next(e.seq for e in exp.events if reason in str(e.data))
    assert told < next(e.seq for e in exp.events if e.kind == "logged")
    assert not exp.run(1).exact and reason in str(exp.run(1).exact)


def test_a_stream_that_draws_from_the_runs_own_generator_is_exact_until_a_restart(
    experiment, tmp_path
):
    exp = experiment()

    exp.run_fit(
        [config(max_steps=2)], tiny.create_model, IterableDataset.from_generator(drawn),
        num_chunks=1, block=True,
    )  # fmt: skip

    told = "a restart will not be exact: its batches are made with random numbers"
    assert any(told in str(event.data) for event in exp.events)
    stream = "import test_streams as t; train_dataset = t.IterableDataset.from_generator(t.drawn)"
    assert_same(sliced(exp.run(1)), plain(exp.run(1), tmp_path / "plain", stream))


def test_another_stream_after_a_restart_is_told(experiment, tmp_path):
    process = _context.Process(target=_killed, args=(str(tmp_path), sys.path, "buffer", 5))
    process.start()
    process.join(180)
    exp = experiment()

    other = sharded().shuffle(seed=8, buffer_size=10)
    exp.run_fit(configs(), tiny.create_model, other, num_chunks=4, slice_steps=1, block=True)

    assert exp.run(1).status == "completed"
    assert not exp.run(1).exact and "other rows than when the run began" in str(exp.events[-99:])


def test_a_stream_that_can_be_read_only_once_is_refused_in_the_cell(experiment):
    rows = iter(tiny.sft_rows(30))
    once = IterableDataset.from_generator(lambda: rows)

    with pytest.raises(DataError, match="train_dataset gave no row when it was read again"):
        experiment().run_fit([config()], tiny.create_model, once, num_chunks=2)


def test_the_script_of_a_run_on_a_stream_says_where_the_stream_goes(experiment):
    exp = experiment()
    exp.run_fit([config(max_steps=1)], tiny.create_model, sharded(), num_chunks=1, block=True)

    assert "train_dataset = ...  # a stream has no copy" in exp.run(1).script()
