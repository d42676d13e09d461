"""Nothing is lost: killed at any point, the same cells end where an uninterrupted run ends."""

import errno
import json
import multiprocessing
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
import tiny
from oracle import assert_same, sliced

from rapidfire_jupyter import Experiment, RFLoraConfig, RFModelConfig, RFSFTConfig
from rapidfire_jupyter.training import checkpoints
from rapidfire_jupyter.waiting import until

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "transformers", "trl", "peft", "datasets", "tiny"])


def configs():
    lora = RFLoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj"])
    args = {"per_device_train_batch_size": 2, "logging_steps": 3, "num_train_epochs": 2}
    return [
        RFModelConfig(
            "tiny",
            peft_config=lora,
            training_args=RFSFTConfig(learning_rate=lr, rdrop_alpha=alpha, **args),
            **more,
        )
        for lr, alpha, more in ((1e-2, 0.0, {}), (1e-3, 0.5, {"model_kwargs": {"dropout": 0.1}}))
    ]


def cells(root, end=True):
    """The notebook: training, a warm clone, waiting."""
    exp = Experiment("exp", root=root)
    data = (tiny.sft_rows(12), tiny.sft_rows(24)[20:])
    exp.run_fit(configs(), tiny.create_model, *data, num_chunks=3, eval_budget=1.0)
    exp.run(1).wait(120)
    exp.clone(1, {"learning_rate": 2e-3, "num_train_epochs": 3}, warm=True).wait(60)
    exp.wait(120)
    if end:
        exp.end()
    return exp


def _child(root, path, point, count, power_loss):
    sys.path[:] = path
    import torch

    torch.set_num_threads(1)
    from rapidfire_jupyter import storage

    seen = 0
    synced: dict[int, int] = {}  # inode -> size in bytes that the disk is known to have

    def watch(here, target):
        nonlocal seen
        if here == "fsync:after" and target.is_file():
            synced[target.stat().st_ino] = target.stat().st_size
        if point in (here, "any"):
            seen += 1
            if seen == count:
                if power_loss:
                    for file in Path(root).rglob("*"):
                        if file.is_file():
                            os.truncate(file, synced.get(file.stat().st_ino, 0))
                Path(root, "reached").write_text(here)
                os.kill(os.getpid(), signal.SIGKILL)

    storage.watcher = watch
    cells(root)


def kill_at(root, point, count, power_loss=False):
    """Run the cells in a process that is killed at the `count`-th time it comes to a point."""
    root.mkdir(exist_ok=True)
    process = _context.Process(target=_child, args=(str(root), sys.path, point, count, power_loss))
    process.start()
    process.join(180)
    assert process.exitcode in (-signal.SIGKILL, 0)
    return process.exitcode != 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The same cells, never interrupted."""
    exp = cells(tmp_path_factory.mktemp("whole"))
    return {run.id: (sliced(run), run.rows) for run in exp.runs}


def assert_as_whole(exp, whole):
    assert [run.status for run in exp.runs] == ["completed"] * 3, [run.trace for run in exp.runs]
    for run in exp.runs:
        ended, rows = whole[run.id]
        assert_same(sliced(run), ended, f"run {run.id}")
        steps = [(row["step"], *sorted(row)) for row in run.rows]
        assert steps == [(row["step"], *sorted(row)) for row in rows]


POINTS = [
    f"{what}:{when}"
    for what in ("append", "fsync", "rename", "write")
    for when in ("before", "after")
]


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("count", [3, 7, 12])
def test_killed_at_each_point_the_same_cells_end_the_same(tmp_path, whole, point, count):
    reached = kill_at(tmp_path, point, count)

    exp = cells(tmp_path, end=False)

    assert reached and (tmp_path / "reached").read_text() == point
    assert_as_whole(exp, whole)
    exp.end()


@pytest.mark.slow
@pytest.mark.parametrize("count", [17, 40, 77])
def test_after_a_power_loss_unsynced_files_are_passed_over(tmp_path, whole, count):
    reached = kill_at(tmp_path, "any", count, power_loss=True)

    exp = cells(tmp_path, end=False)

    assert reached
    assert_as_whole(exp, whole)
    exp.end()


def test_killed_once_the_same_cells_end_the_same_and_a_second_recovery_changes_nothing(
    tmp_path, whole
):
    assert kill_at(tmp_path, "rename:after", 8)

    exp = cells(tmp_path)
    events = (exp.folder / "events.jsonl").read_bytes()
    again = cells(tmp_path, end=False)
    new = (exp.folder / "events.jsonl").read_bytes()[len(events) :].decode().splitlines()

    assert_as_whole(again, whole)
    assert [run.id for run in again.runs] == [1, 2, 3]
    assert {json.loads(line)["kind"] for line in new} <= {"attached", "op", "ended"}
    again.end()


FILES = [
    "trainer_state.json",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "adapter_model.safetensors",
    "trainer_extra.json",
    checkpoints.MANIFEST,
]


def test_a_damaged_newest_checkpoint_is_passed_over_and_named(tmp_path, whole):
    assert kill_at(tmp_path, "rename:after", 20)
    kept = tmp_path / "kept"
    shutil.copytree(tmp_path / "exp", kept)
    run_dir = kept / "runs" / "1"
    newest = checkpoints.listed(run_dir)[-1][1]

    for name in FILES:
        for damage in ("missing", "cut"):
            shutil.rmtree(run_dir)
            shutil.copytree(tmp_path / "exp" / "runs" / "1", run_dir)
            file = newest / name
            if damage == "missing":
                file.unlink()
            else:
                os.truncate(file, file.stat().st_size // 2)
            good, skipped = checkpoints.newest_good(run_dir)
            assert good is not None and good.step < int(newest.name.rpartition("-")[2])
            assert len(skipped) == 1 and newest.name in skipped[0] and name in skipped[0]

    os.truncate(tmp_path / "exp" / "runs" / "1" / "checkpoints" / newest.name / "optimizer.pt", 10)
    exp = cells(tmp_path, end=False)
    recovered = [e for e in exp.events if e.kind == "run_recovered" and e.data["skipped"]]

    assert "optimizer.pt" in recovered[0].data["skipped"][0]
    assert_as_whole(exp, whole)
    exp.end()


def _full_disk(root, path, limit):
    sys.path[:] = path
    import resource

    import torch

    torch.set_num_threads(1)
    exp = Experiment("exp", root=root)
    data = (tiny.sft_rows(12), tiny.sft_rows(24)[20:])
    exp.run_fit(configs(), tiny.create_model, *data, num_chunks=3, eval_budget=1.0)
    exp._opened.log.subscribe(
        lambda e: (
            e.kind == "slice_ended" and resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        )
    )
    try:
        exp.wait(120)
    except Exception as error:
        Path(root, "error").write_text(str(error))
    os._exit(0)


@pytest.mark.parametrize("limit", [2_000, 12_000])
def test_a_full_disk_halts_training_and_the_same_cells_go_on_later(tmp_path, whole, limit):
    process = _context.Process(target=_full_disk, args=(str(tmp_path), sys.path, limit))
    process.start()
    process.join(180)
    error = (tmp_path / "error").read_text()

    exp = cells(tmp_path, end=False)

    assert "disk failed" in error and "free space" in error
    assert_as_whole(exp, whole)
    exp.end()


def test_a_torn_last_line_is_cut_and_damage_elsewhere_is_named(tmp_path):
    from rapidfire_jupyter.errors import ExperimentError
    from rapidfire_jupyter.events import EventLog

    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    for number in range(3):
        log.append("alert", None, text=f"number {number} é \u2028")
    log.close()
    whole = path.read_bytes()

    path.write_bytes(whole[:-5])
    again = EventLog(path)
    again.append("alert", None, text="new")
    again.close()
    assert [e.data["text"][:8] for e in EventLog(path).events] == ["number 0", "number 1", "new"]

    path.write_bytes(whole.replace(b"number 1", b"number 7"))
    with pytest.raises(ExperimentError, match=r"events.jsonl line 2 is damaged"):
        EventLog(path)


def test_a_poisoned_checkpoint_file_is_refused_and_nothing_is_executed(tmp_path, experiment):
    import pickle

    class Evil:
        def __reduce__(self):
            return (os.system, (f"touch {tmp_path / 'pwned'}",))

    exp = experiment()
    exp.run_fit(configs()[:1], tiny.create_model, tiny.sft_rows(12), num_chunks=2)
    exp.stop(1).wait(60)
    folder = exp.run(1).checkpoint
    if folder is None:
        exp.resume(1).wait(60)
        exp.wait(60)
        folder = exp.run(1).checkpoint
    for name in ("rng_state.pth", "optimizer.pt"):
        (folder / name).write_bytes(pickle.dumps(Evil()))
    (folder / checkpoints.MANIFEST).unlink()
    checkpoints.seal(folder, 0)

    if exp.run(1).status == "completed":
        exp.resume(1, num_train_epochs=3).wait(60)
    else:
        exp.resume(1).wait(60)
    exp.wait(60)

    assert exp.run(1).status == "failed" and not (tmp_path / "pwned").exists()


def test_other_configs_or_data_under_the_same_name_are_refused_with_the_difference(experiment):
    from rapidfire_jupyter.errors import ExperimentError

    exp = experiment()
    exp.run_fit(configs(), tiny.create_model, tiny.sft_rows(12), num_chunks=3, block=True)

    with pytest.raises(ExperimentError, match="train_fingerprint"):
        exp.run_fit(configs(), tiny.create_model, tiny.sft_rows(12)[::-1], num_chunks=3)
    with pytest.raises(ExperimentError, match="has 2 configurations, not 1"):
        exp.run_fit(configs()[:1], tiny.create_model, tiny.sft_rows(12), num_chunks=3)
    with pytest.raises(ExperimentError, match="num_chunks=3, not 4"):
        exp.run_fit(configs(), tiny.create_model, tiny.sft_rows(12), num_chunks=4)
    assert len(exp.runs) == 2


def test_a_moved_experiment_goes_on_and_its_results_are_readable_without_training(tmp_path, whole):
    assert kill_at(tmp_path, "rename:after", 8)
    other = tmp_path / "elsewhere"
    other.mkdir()
    shutil.move(tmp_path / "exp", other / "exp")

    reader = Experiment("exp", root=other)
    assert len(reader.results()) > 0 and reader.status == "ended"
    reader.end()
    exp = cells(other, end=False)

    assert_as_whole(exp, whole)
    exp.end()


def test_an_event_that_the_disk_did_not_take_leaves_the_log_as_it_was(tmp_path, monkeypatch):
    from rapidfire_jupyter import storage
    from rapidfire_jupyter.events import EventLog

    log = EventLog(tmp_path / "events.jsonl")
    log.append("alert", None, text="first")

    def broken(fd, path):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(storage, "sync", broken)
        with pytest.raises(OSError, match="Input/output"):
            log.append("alert", None, sync=True, text="lost")
    log.append("alert", None, sync=True, text="second")
    log.close()

    again = EventLog(tmp_path / "events.jsonl")
    assert [(e.seq, e.data["text"]) for e in again.events] == [(0, "first"), (1, "second")]


def test_what_a_crash_left_of_a_warm_clone_does_not_stop_the_next_one(tmp_path, experiment):
    exp = experiment()
    exp.run_fit(configs()[0], tiny.create_model, tiny.sft_rows(9), num_chunks=3)
    until(exp, lambda: exp.run(1).facts.checkpoint_step, 60)
    left = exp.folder / "runs" / "2" / "source"
    left.mkdir(parents=True)
    (left / "left over").write_text("half of a clone")

    clone = exp.clone(1, {"learning_rate": 1e-3, "num_train_epochs": 9}, warm=True).wait(30)
    exp.wait(60)

    assert clone.run_id == 2 and exp.run(2).status == "completed"


def _no_space(part):
    """A disk that takes nothing more under paths that hold `part`; give it to storage.watcher."""

    def watch(point, path):
        if point in ("append:before", "fsync:before", "write:before") and part in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")

    return watch


def test_a_run_can_be_deleted_on_a_full_disk_which_frees_its_space(tmp_path, monkeypatch):
    from rapidfire_jupyter import storage

    exp = Experiment("exp", root=tmp_path)
    exp.run_fit(configs(), tiny.create_model, tiny.sft_rows(12), num_chunks=3)
    until(exp, lambda: all(run.facts.step for run in exp.runs), 60)
    exp.pause_all().wait(30)
    with monkeypatch.context() as patch:
        patch.setattr(storage, "watcher", _no_space("checkpoint"))
        deleted = exp.delete(1).wait(30)
        folders = [(tmp_path / "exp" / name / "1").exists() for name in ("runs", "trash")]
    exp.resume_all()
    exp.wait(60)

    assert deleted.status == "applied" and folders == [False, False]
    assert [run.status for run in exp.runs] == ["deleted", "completed"]
    exp.end()


def test_a_run_can_be_deleted_after_a_full_disk_has_stopped_training(tmp_path, monkeypatch):
    from rapidfire_jupyter import storage
    from rapidfire_jupyter.errors import ExperimentError, OpError

    exp = Experiment("exp", root=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(storage, "watcher", _no_space("checkpoint"))
        exp.run_fit(configs(), tiny.create_model, tiny.sft_rows(12), num_chunks=3)
        with pytest.raises(ExperimentError, match=r"No space left.*delete\(run\)"):
            exp.wait(60)
        with pytest.raises(OpError, match="disk failed"):
            exp.stop(2).wait(30)
        deleted = exp.delete(1).wait(30)
    exp.run_fit(configs(), tiny.create_model, tiny.sft_rows(12), num_chunks=3)
    exp.wait(60)

    assert deleted.status == "applied"
    assert [run.status for run in exp.runs] == ["deleted", "completed"]
    exp.end()


def test_a_full_disk_refuses_run_fit_in_one_line_and_the_cell_works_later(tmp_path, monkeypatch):
    from rapidfire_jupyter import storage
    from rapidfire_jupyter.errors import ExperimentError

    exp = Experiment("exp", root=tmp_path)
    for part in ("experiment.json", "events.jsonl"):
        with monkeypatch.context() as patch:
            patch.setattr(storage, "watcher", _no_space(part))
            with pytest.raises(ExperimentError, match=r"full or failing.*free space"):
                exp.run_fit(configs(), tiny.create_model, tiny.sft_rows(12), num_chunks=3)
    exp.run_fit(configs(), tiny.create_model, tiny.sft_rows(12), num_chunks=3)
    exp.wait(60)

    assert [run.status for run in exp.runs] == ["completed"] * 2
    exp.end()


def test_a_crash_between_moving_a_folder_and_its_event_leaves_nothing_lost(tmp_path, whole):
    exp = cells(tmp_path, end=False)
    exp.delete(3).wait(30)
    exp.end()
    here = tmp_path / "exp"
    os.rename(here / "trash" / "3", here / "runs" / "3")  # its undelete was not recorded
    os.rename(here / "runs" / "1", here / "trash" / "1")  # nor the delete of run 1

    again = Experiment("exp", root=tmp_path)
    data = (tiny.sft_rows(12), tiny.sft_rows(24)[20:])
    again.run_fit(configs(), tiny.create_model, *data, num_chunks=3, eval_budget=1.0)
    again.wait(60)

    assert [run.status for run in again.runs] == ["completed", "completed", "deleted"]
    assert_same(sliced(again.run(1)), whole[1][0], "run 1")
    assert not (here / "runs" / "3").exists() and not (here / "trash" / "1").exists()
    again.end()
