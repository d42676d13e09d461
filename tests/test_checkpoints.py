"""Checkpoints on disk: whole or not at all, the right ones kept, and open to plain TRL."""

import json
import os
import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file

from rapidfire_jupyter import (
    Experiment,
    RFLoraConfig,
    RFModelConfig,
    RFSFTConfig,
    deciding,
    storage,
)
from rapidfire_jupyter.errors import ExperimentError
from rapidfire_jupyter.training import checkpoints
from rapidfire_jupyter.training.checkpoints import (
    MANIFEST,
    Job,
    Writer,
    fault,
    listed,
    newest_good,
    prune,
    put_in_place,
    seal,
)


def write(run_dir, step, text="weights", rows=0, whole=True):
    """A checkpoint folder of small files."""
    folder = run_dir / "checkpoints" / f"checkpoint-{step}"
    (folder / "inner").mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_text(f"{text} {step}")
    (folder / "inner" / "state.json").write_text("{}")
    if whole:
        seal(folder, rows)
    return folder


def steps(run_dir):
    return [step for step, _ in listed(run_dir)]


def test_a_sealed_folder_is_good_and_one_without_a_manifest_is_not(tmp_path):
    folder = write(tmp_path, 5, whole=False)

    before = fault(folder)
    seal(folder, rows=3)

    assert before == f"checkpoint-5: no {MANIFEST} (it was being written)"
    assert fault(folder) == ""
    manifest = json.loads((folder / MANIFEST).read_text())
    assert manifest["rows"] == 3
    assert sorted(manifest["files"]) == ["adapter_model.safetensors", "inner/state.json"]


def test_every_kind_of_damage_is_named(tmp_path):
    folder = write(tmp_path, 5)
    weights, kept = folder / "adapter_model.safetensors", tmp_path / "kept"
    shutil.copytree(folder, kept)

    def after(damage):
        shutil.rmtree(folder)
        shutil.copytree(kept, folder)
        damage()
        return fault(folder)

    assert after(lambda: None) == ""
    assert after(weights.unlink) == "checkpoint-5: adapter_model.safetensors is missing"
    assert after(lambda: weights.write_text("w")) == (
        "checkpoint-5: adapter_model.safetensors has 1 bytes, not 9"
    )
    assert after(lambda: weights.write_text("weightz 5")) == (
        "checkpoint-5: adapter_model.safetensors was changed"
    )
    for text in ("", "{", "[]", "{}", '{"files": {}}', '{"files": {}, "rows": "x"}', "null"):
        damaged = after(lambda text=text: (folder / MANIFEST).write_text(text))
        assert damaged == f"checkpoint-5: {MANIFEST} is damaged", text


def test_a_manifest_that_is_no_text_is_damage_not_an_exception(tmp_path):
    folder = write(tmp_path, 5)

    (folder / MANIFEST).write_bytes(b"\xff\xfe\x00\x80")

    assert fault(folder) == f"checkpoint-5: {MANIFEST} is damaged"


def test_a_checkpoint_that_is_pruned_while_it_is_read_gives_way_to_a_newer_one(
    tmp_path, monkeypatch
):
    write(tmp_path, 1)
    digest = storage.digest

    def pruned(path):
        if "checkpoint-1" in str(path) and path.exists():
            write(tmp_path, 2)
            shutil.rmtree(path.parent)
        return digest(path)

    monkeypatch.setattr(storage, "digest", pruned)

    found, _ = newest_good(tmp_path)

    assert found.step == 2


def test_the_newest_good_checkpoint_is_taken_by_step_and_what_was_passed_over_is_told(tmp_path):
    for step in (9, 10, 100):
        write(tmp_path, step, rows=step)
    (tmp_path / "checkpoints" / "checkpoint-100" / "inner" / "state.json").unlink()
    write(tmp_path, 50, whole=False)
    (tmp_path / "checkpoints" / "checkpoint-abc").mkdir()

    found, skipped = newest_good(tmp_path)

    assert (found.step, found.rows, found.path.name) == (10, 10, "checkpoint-10")
    assert skipped == [
        "checkpoint-100: inner/state.json is missing",
        f"checkpoint-50: no {MANIFEST} (it was being written)",
    ]


def test_a_run_without_checkpoints_has_none(tmp_path):
    assert newest_good(tmp_path) == (None, []) and listed(tmp_path) == []
    prune(tmp_path, 2, set())


# ---- what is kept ----


def test_the_newest_are_kept_by_step_when_all_have_the_same_time(tmp_path):
    for step in (100, 20, 9, 3):  # newest written first
        folder = write(tmp_path, step)
        for path in (folder, *folder.rglob("*")):
            os.utime(path, (1_000_000, 1_000_000))

    prune(tmp_path, keep=2, pinned=set())

    assert steps(tmp_path) == [20, 100]


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_pinned_steps_are_kept_besides_the_newest(tmp_path, keep):
    for step in (2, 4, 6, 8, 10):
        write(tmp_path, step)

    prune(tmp_path, keep, pinned={4})

    assert steps(tmp_path) == sorted({4, *[2, 4, 6, 8, 10][-keep:]})


def test_what_is_no_checkpoint_of_this_run_is_never_touched(tmp_path):
    mine, other = tmp_path / "runs" / "1", tmp_path / "runs" / "2"
    for step in (2, 4, 6):
        write(mine, step)
    foreign = write(other, 1000)
    (mine / "checkpoints" / "checkpoint-6.old").mkdir()
    (mine / "checkpoints" / "notes").mkdir()
    (mine / "checkpoint-1000").mkdir()

    prune(mine, keep=1, pinned=set())

    assert steps(mine) == [6] and fault(foreign) == ""
    assert (mine / "checkpoints" / "notes").is_dir() and (mine / "checkpoint-1000").is_dir()


@pytest.mark.parametrize("keep", [1, 2])
def test_a_damaged_checkpoint_of_a_higher_step_never_takes_a_good_ones_place(tmp_path, keep):
    for step in (2, 4, 6):
        write(tmp_path, step)
    write(tmp_path, 1000, whole=False)  # left by a crash, or by somebody else

    prune(tmp_path, keep, pinned=set())

    good, _ = newest_good(tmp_path)
    assert good is not None and good.step == 6
    assert [step for step, folder in listed(tmp_path) if not fault(folder)] == [2, 4, 6][-keep:]


def test_a_clone_that_is_not_started_keeps_what_it_starts_from(tmp_path):
    from rapidfire_jupyter import folders

    parent = write(tmp_path / "1", 4)
    folders.copy_source(parent, tmp_path / "2" / "source")

    shutil.rmtree(parent)

    assert fault(tmp_path / "2" / "source") == ""


def test_a_source_is_copied_whole_or_not_at_all_and_copying_again_changes_nothing(tmp_path):
    from rapidfire_jupyter import folders

    parent = write(tmp_path / "1", 4)
    torn = tmp_path / "2" / "source.new"
    torn.mkdir(parents=True)
    (torn / "adapter_model.safetensors").write_text("half")

    folders.copy_source(parent, tmp_path / "2" / "source")

    assert fault(tmp_path / "2" / "source") == "" and not torn.exists()


# ---- into place ----


def test_a_staged_folder_takes_the_place_of_one_of_the_same_step(tmp_path):
    old = write(tmp_path, 5, "old")
    staged = write(tmp_path / "staging", 5, "new")

    put_in_place(staged, old)

    assert (old / "adapter_model.safetensors").read_text() == "new 5" and fault(old) == ""
    assert not staged.exists()
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["checkpoint-5"]


@pytest.mark.parametrize("count", [1, 2])
def test_a_replacement_killed_between_its_renames_loses_no_good_checkpoint(
    tmp_path, monkeypatch, count
):
    class Killed(BaseException):
        pass

    seen = []

    def kill(point, path):
        seen.append(point)
        if seen.count("rename:after") + 1 == count and point == "rename:before":
            raise Killed

    old = write(tmp_path, 5, "old")
    staged = write(tmp_path / "staging", 5, "new")
    monkeypatch.setattr(storage, "watcher", kill)
    with suppress(Killed):
        put_in_place(staged, old)

    good, _ = newest_good(tmp_path)
    assert good is not None and good.step == 5


def test_what_an_interrupted_replacement_left_is_cleared_by_the_next(tmp_path):
    old = write(tmp_path, 5, "old")
    shutil.copytree(old, old.with_name("checkpoint-5.old"))
    staged = write(tmp_path / "staging", 5, "new")

    put_in_place(staged, old)

    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["checkpoint-5"]
    assert steps(tmp_path) == [5]


def test_the_writer_makes_folders_durable_in_order_and_tells_what_it_could_not_write(tmp_path):
    done = []
    writer = Writer()
    for step in (2, 4):
        staged = write(tmp_path / "staging" / str(step), step, whole=False)
        target = tmp_path / "checkpoints" / f"checkpoint-{step}"
        writer.accept(Job(staged, target, step, lambda e, s=step: done.append((s, e))))
    writer.accept(Job(tmp_path / "nowhere", tmp_path / "x", 0, lambda e: done.append((0, e))))

    writer.flush()
    writer.close()

    assert [step for step, _ in done] == [2, 4, 0]
    assert done[0][1] is None and done[1][1] is None
    assert isinstance(done[2][1], OSError)
    assert newest_good(tmp_path)[0].rows == 4


# ---- of real runs ----

ARGS = {
    "learning_rate": 1e-2,
    "per_device_train_batch_size": 2,
    "logging_steps": 1,
    "num_train_epochs": 2,
}
ROWS = 8


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run stopped at step 5 of 8, and the same one finished."""
    torch.set_num_threads(1)
    exp = Experiment("exp", root=tmp_path_factory.mktemp("checkpoints"))
    lora = RFLoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj"])
    config = RFModelConfig("tiny", peft_config=lora, training_args=RFSFTConfig(**ARGS))
    best = config.copy(
        training_args=RFSFTConfig(
            **{**ARGS, "learning_rate": 1.0},
            eval_strategy="steps",
            eval_steps=1,
            save_strategy="steps",
            save_steps=1,
            load_best_model_at_end=True,
            metric_for_best_model="eval_loss",
        )
    )
    exp._opened.log.subscribe(
        lambda e: (
            e.kind == "logged" and (e.run, e.data["row"].get("step")) == (1, 5) and exp.stop(1)
        )
    )
    exp.run_fit(
        [config, config.copy(name="whole"), best],
        tiny.create_model,
        tiny.sft_rows(ROWS),
        tiny.sft_rows(30)[26:],
        num_chunks=2,
        keep_checkpoints=1,
        block=True,
    )
    yield exp
    exp.end()


def plain_trainer(folder, **more):
    """Plain TRL, as somebody without this package would write it."""
    from datasets import Dataset
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    args = SFTConfig(
        output_dir=str(folder), use_cpu=True, report_to="none", save_strategy="no",
        disable_tqdm=True, seed=42, data_seed=42, **ARGS,
    )  # fmt: skip
    return SFTTrainer(
        model=tiny.model(),
        args=args,
        train_dataset=Dataset.from_list(tiny.sft_rows(ROWS)),
        processing_class=tiny.tokenizer(),
        peft_config=LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj"]),
        **more,
    )


def test_plain_trl_goes_on_from_a_checkpoint_to_the_very_same_end(trained, tmp_path):
    stopped, finished = trained.run(1), trained.run(2)
    trainer = plain_trainer(tmp_path / "plain")

    trainer.train(resume_from_checkpoint=str(stopped.checkpoint))
    trainer.save_model(str(tmp_path / "final"))

    assert stopped.status == "stopped" and stopped.checkpoint.name == "checkpoint-5"
    assert trainer.state.global_step == 8
    rows = [row for row in trainer.state.log_history if "loss" in row]
    assert [row["step"] for row in rows] == list(range(1, 9))
    theirs = [row for row in finished.rows if "loss" in row]
    assert [row["loss"] for row in rows] == [row["loss"] for row in theirs]
    mine = load_file(str(tmp_path / "final" / "adapter_model.safetensors"))
    ended = load_file(str(finished.folder / "final" / "adapter_model.safetensors"))
    assert all(torch.equal(mine[name], ended[name]) for name in ended)


def test_peft_opens_checkpoints_and_final_models(trained):
    from peft import PeftModel

    ids = torch.arange(6)[None]
    base = tiny.model().eval()(input_ids=ids).logits

    for run in (trained.run(1), trained.run(2)):
        final = run.folder / "final"
        folder = final if final.exists() else run.checkpoint
        opened = PeftModel.from_pretrained(tiny.model(), str(folder)).eval()
        loaded, tokenizer = run.load_model()

        logits = opened(input_ids=ids).logits
        assert not torch.equal(logits, base)
        assert torch.equal(logits, loaded.eval()(input_ids=ids).logits)
        assert tokenizer.decode(tokenizer("cancel my order")["input_ids"]) == "cancel my order"


def test_a_checkpoint_holds_every_file_of_a_trainers_and_none_of_the_machines_paths(trained):
    folder = trained.run(1).checkpoint
    names = {p.name for p in folder.iterdir()}

    assert names >= {
        "adapter_model.safetensors",
        "adapter_config.json",
        "optimizer.pt",
        "scheduler.pt",
        "rng_state.pth",
        "trainer_state.json",
        "trainer_extra.json",
        "training_args.bin",
        MANIFEST,
    }
    root = str(trained.folder)
    for name in names - {"training_args.bin"}:
        assert root.encode() not in (folder / name).read_bytes(), name


def test_the_best_checkpoint_is_kept_beside_the_newest_one_and_named_relative(trained):
    run = trained.run(3)
    folder = run.folder / "checkpoints"
    state = json.loads((run.folder / "final" / "trainer_state.json").read_text())
    best = state["best_global_step"]

    assert run.status == "completed", run.trace
    assert steps(run.folder) == sorted({best, 8}) and best != 8
    assert state["best_model_checkpoint"] == f"../checkpoint-{best}"
    mine = load_file(str(run.folder / "final" / "adapter_model.safetensors"))
    kept = load_file(str(folder / f"checkpoint-{best}" / "adapter_model.safetensors"))
    assert all(torch.equal(mine[name], kept[name]) for name in kept)


def test_nothing_stays_in_staging_and_every_folder_that_is_there_is_good(trained):
    for run in trained.runs:
        left = list((run.folder / checkpoints.STAGING).glob("*"))
        assert left == []
        assert [fault(folder) for _, folder in listed(run.folder)] == [""] * len(steps(run.folder))


def plain_config():
    return RFModelConfig(
        "tiny",
        peft_config=RFLoraConfig(r=4, target_modules=["q_proj"]),
        training_args=RFSFTConfig(per_device_train_batch_size=4, num_train_epochs=1),
    )


def test_the_disk_is_measured_while_a_checkpoint_is_put_in_place(experiment, monkeypatch):
    staged, scanned, placed = threading.Event(), threading.Event(), threading.Event()
    scan = os.scandir

    def hold_writer(point, path):
        if threading.current_thread().name == "rapidfire-writer" and "checkpoint" in path.name:
            if point == "rename:before" and not placed.is_set():
                staged.set()
                assert scanned.wait(60)
            elif point == "rename:after":
                placed.set()

    def hold_engine(path):
        """Let the writer go between the moments in which a folder is seen and entered."""
        measures = threading.current_thread().name == "rapidfire-engine"
        if measures and Path(path).name.startswith("checkpoint-") and not scanned.is_set():
            assert staged.wait(60)
            scanned.set()
            assert placed.wait(60)
        return scan(path)

    monkeypatch.setattr(deciding, "DISK_SECONDS", 0.0)
    monkeypatch.setattr(storage, "watcher", hold_writer)
    monkeypatch.setattr(os, "scandir", hold_engine)
    exp = experiment()

    exp.run_fit(plain_config(), tiny.create_model, tiny.sft_rows(16), num_chunks=2)
    exp.wait(120)

    assert placed.is_set()
    assert exp.run(1).status == "completed"


def no_staging_to_write_to(monkeypatch):
    """Staging is removed before a run's thread writes into it."""
    make = tempfile.mkdtemp

    def remove_first(*args, **given):
        if Path(given.get("dir") or "").name == checkpoints.STAGING:
            shutil.rmtree(given["dir"])
        return make(*args, **given)

    monkeypatch.setattr(tempfile, "mkdtemp", remove_first)


def no_staging_to_read_from(monkeypatch):
    """Staging is removed while the writer's thread has it."""

    def remove(point, path):
        folder = next((p for p in path.parents if p.name == checkpoints.STAGING), None)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    monkeypatch.setattr(storage, "watcher", remove)


@pytest.mark.parametrize("remove", [no_staging_to_write_to, no_staging_to_read_from])
def test_a_staged_folder_that_is_gone_is_told_as_that_and_the_same_cell_goes_on(
    experiment, monkeypatch, remove
):
    cell = (plain_config(), tiny.create_model, tiny.sft_rows(16))
    exp = experiment()

    with monkeypatch.context() as patch:
        remove(patch)
        exp.run_fit(*cell, num_chunks=2)
        with pytest.raises(ExperimentError, match="No such file or directory") as told:
            exp.wait(120)
    exp.run_fit(*cell, num_chunks=2)
    exp.wait(120)

    assert "something in the experiment's folder is gone" in str(told.value)
    assert "disk" not in str(told.value) and "free space" not in str(told.value)
    assert exp.run(1).status == "completed"


def test_the_best_weights_are_loaded_at_the_end_however_slowly_they_are_written(
    experiment, monkeypatch
):
    waiting = []
    accept, flush = Writer.accept, Writer.flush

    def flush_all(writer):
        while waiting:
            accept(writer, waiting.pop(0))
        flush(writer)

    monkeypatch.setattr(Writer, "accept", lambda writer, job: waiting.append(job))
    monkeypatch.setattr(Writer, "flush", flush_all)
    args = RFSFTConfig(
        learning_rate=1.0,
        per_device_train_batch_size=4,
        num_train_epochs=1,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="eval_num_tokens",  # grows, so the first step is the best
        greater_is_better=False,
    )
    config = RFModelConfig(
        "tiny",
        peft_config=RFLoraConfig(r=4, target_modules=["q_proj"]),
        training_args=args,
    )
    exp = experiment()

    # Answers are owed at the end, so the run is finished in a turn of its own.
    exp.run_fit(config, tiny.create_model, tiny.sft_rows(12), tiny.sft_rows(4), num_chunks=1)
    exp.wait()

    run = exp.run(1)
    state = json.loads((run.folder / "final" / "trainer_state.json").read_text())
    assert run.status == "completed", run.trace
    assert state["best_global_step"] == 1
    best = load_file(run.folder / "checkpoints" / "checkpoint-1" / "adapter_model.safetensors")
    final = load_file(run.folder / "final" / "adapter_model.safetensors")
    assert all(torch.equal(value, best[name]) for name, value in final.items())
