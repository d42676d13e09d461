"""Checkpoints: standard Hugging Face folders that are on disk whole, or not at all.

A run's thread writes a checkpoint with the trainer's own code into a staging folder at a boundary.
One writer thread then digests, fsyncs and renames it into place while the next run trains. The
manifest with the digests is written last: a folder without a manifest that fits is no checkpoint.

Any: trainers, and the states that they and torch give.
"""

import contextlib
import json
import os
import queue
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rapidfire_jupyter import storage

MANIFEST = "rapidfire_manifest.json"
EXTRA = "trainer_extra.json"
ENCODER = "prompt_encoder.safetensors"
STAGING = "staging"
FINAL = "final"
_NAME = re.compile(r"checkpoint-(\d+)(\.old)?")

# Metrics of the steps since the last log: TRL's stable trainers, ORPO and CPO, OnlineDPO.
RUNNING_METRICS = ("_metrics", "_stored_metrics", "stats")

# What decides the numbers after a restart and is in no file of Hugging Face's checkpoint.
EXTRA_FIELDS = (
    "_total_loss_scalar",
    "_globalstep_last_logged",
    "_initial_global_step",
    "_initial_num_input_tokens_seen",
    "_total_train_tokens",
    "_step",
    "current_flos",
)


@dataclass(frozen=True)
class Checkpoint:
    """A good checkpoint on disk. `rows` counts what the run had logged when it was taken."""

    path: Path
    step: int
    rows: int


def stage(trainer: Any, run_dir: Path, facts: dict[str, Any]) -> Path:
    """Write a checkpoint of a parked trainer into the staging folder; the trainer is unchanged.

    Args:
        facts: What the session knows (`rows`, `ended`, `redo_evaluation`); they are kept in
            `trainer_extra.json`.

    Returns:
        The staged folder, to be handed to `Writer.accept`.
    """
    (run_dir / STAGING).mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=run_dir / STAGING))
    state = trainer.state
    extra = {**extra_state(trainer), **facts, "total_flos": state.total_flos}
    with _saving_into(staging, trainer):
        trainer._save_checkpoint(trainer.model, None)
    folder = staging / f"checkpoint-{state.global_step}"
    (folder / EXTRA).write_text(json.dumps(extra), encoding="utf-8")
    _save_encoder(trainer.model, folder)
    _make_best_relative(folder, state.best_global_step, state.best_model_checkpoint)
    return folder


def stage_final(trainer: Any, run_dir: Path) -> Path:
    """Write a finished trainer's model and log (no optimizer) into the staging folder."""
    (run_dir / STAGING).mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=run_dir / STAGING)) / FINAL
    trainer.save_model(str(folder), _internal_call=True)
    state = folder / "trainer_state.json"
    trainer.state.save_to_json(str(state))
    _make_best_relative(folder, trainer.state.best_global_step, trainer.state.best_model_checkpoint)
    return folder


@contextlib.contextmanager
def _saving_into(staging: Path, trainer: Any) -> Iterator[None]:
    """Let a trainer's own code save into a folder, and leave no trace of it in the trainer."""
    state, args = trainer.state, trainer.args
    kept: list[tuple[Any, dict[str, Any]]] = [
        (
            state,
            {
                "total_flos": state.total_flos,
                "best_model_checkpoint": state.best_model_checkpoint,
                "stateful_callbacks": json.loads(json.dumps(state.stateful_callbacks)),
            },
        ),
        (args, {"output_dir": args.output_dir}),
        (
            trainer,
            {
                "current_flos": trainer.current_flos,
                "processing_class": trainer.processing_class,
                "_save_checkpoint": trainer.__dict__.pop("_save_checkpoint"),
            },
        ),
    ]
    args.output_dir = str(staging)
    trainer.processing_class = None  # the tokenizer is in `final`; in each checkpoint it costs time
    trainer.create_model_card = lambda *args, **kwargs: None
    trainer.model.__dict__["create_or_update_model_card"] = lambda *args, **kwargs: None  # PEFT's
    for name, value in state.stateful_callbacks.items():
        if isinstance(value, list):  # else it would grow by what is there at each save
            state.stateful_callbacks[name] = []
    try:
        yield
    finally:
        del trainer.create_model_card
        del trainer.model.__dict__["create_or_update_model_card"]
        for owner, values in kept:
            for name, value in values.items():
                setattr(owner, name, value)


def extra_state(trainer: Any) -> dict[str, Any]:
    """The part of a trainer's state that its own checkpoints lack."""
    extra = {name: getattr(trainer, name) for name in EXTRA_FIELDS if hasattr(trainer, name)}
    extra["_tr_loss"] = float(trainer._tr_loss)
    for name in RUNNING_METRICS:
        if hasattr(trainer, name):
            extra[name] = json.loads(json.dumps(getattr(trainer, name), default=float))
    names = {id(p): n for n, p in trainer.model.named_parameters()}
    extra["optimizer_names"] = [
        [names[id(p)] for p in group["params"]] for group in trainer.optimizer.param_groups
    ]
    return extra


def restore_extra(trainer: Any, extra: dict[str, Any]) -> None:
    """Give a trainer, whose own checkpoint was just loaded, the rest of its state back."""
    import torch

    for name in EXTRA_FIELDS:
        if name in extra and hasattr(trainer, name):
            setattr(trainer, name, extra[name])
    trainer._tr_loss = torch.tensor(extra["_tr_loss"], device=trainer.args.device)
    trainer.state.total_flos = extra["total_flos"]
    for name in RUNNING_METRICS:
        for key, kept in extra.get(name, {}).items():
            if isinstance(kept, dict):  # by mode: train and eval
                getattr(trainer, name)[key].clear()
                getattr(trainer, name)[key].update(kept)
            else:
                getattr(trainer, name)[key] = kept


def _encoder(model: Any) -> dict[str, Any]:
    """What trains in a model whose prompt has an encoder (P-tuning, prefix projection), by name.

    PEFT saves what the encoder says, but not the encoder.
    """
    if not hasattr(model, "peft_config"):
        return {}
    found = {name: one for name, one in model.named_parameters() if one.requires_grad}
    within = [name for name in found if name.startswith("prompt_encoder.")]
    return found if any(not name.endswith("embedding.weight") for name in within) else {}


def _save_encoder(model: Any, folder: Path) -> None:
    found = {name: one.detach().contiguous() for name, one in _encoder(model).items()}
    if found:
        from safetensors.torch import save_file

        save_file(found, str(folder / ENCODER))


def restore_encoder(model: Any, folder: Path) -> bool:
    """Give a model what it had learned, if a checkpoint has the encoder of its prompt.

    Returns:
        Whether it has; else the weights are where the trainer looks for them.
    """
    if not (folder / ENCODER).exists():
        return False
    from safetensors.torch import load_file

    kept = load_file(str(folder / ENCODER))
    for name, one in _encoder(model).items():
        one.data.copy_(kept[name])
    return True


def read_extra(folder: Path) -> dict[str, Any]:
    """`trainer_extra.json` of a checkpoint; empty where plain TRL wrote it."""
    path = folder / EXTRA
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def seal(folder: Path, rows: int) -> None:
    """Digest and fsync every file of a folder, and write its manifest last."""
    files = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        files[str(path.relative_to(folder))] = {
            "size_bytes": path.stat().st_size,
            "sha256": storage.digest(path),
        }
        storage.sync_path(path)
    storage.write_json(folder / MANIFEST, {"rows": rows, "files": files})
    storage.sync_path(folder)


def fault(folder: Path) -> str:
    """Why a folder is no good checkpoint; empty if it is one."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = manifest["files"]
        int(manifest["rows"])
    except FileNotFoundError:
        return f"{folder.name}: no {MANIFEST} (it was being written)"
    except (ValueError, KeyError, TypeError):
        return f"{folder.name}: {MANIFEST} is damaged"
    for name, facts in files.items():
        path = folder / name
        if not path.is_file():
            return f"{folder.name}: {name} is missing"
        if path.stat().st_size != facts["size_bytes"]:
            return (
                f"{folder.name}: {name} has {path.stat().st_size} bytes, not {facts['size_bytes']}"
            )
        if storage.digest(path) != facts["sha256"]:
            return f"{folder.name}: {name} was changed"
    return ""


def newest_good(run_dir: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint of a run that verifies, and why newer ones were passed over.

    Of a run that trains, one may be pruned while it is read here; then there is a newer one.
    """
    while True:
        there = listed(run_dir)
        skipped: list[str] = []
        for step, folder in reversed(there):
            with contextlib.suppress(FileNotFoundError):
                reason = fault(folder)
                if not reason:
                    rows = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["rows"]
                    return Checkpoint(folder, step, rows), skipped
                skipped.append(reason)
        if listed(run_dir) == there:
            return None, skipped


def listed(run_dir: Path) -> list[tuple[int, Path]]:
    """Checkpoint folders of a run by step, good or not."""
    folder = run_dir / "checkpoints"
    if not folder.is_dir():
        return []
    found: dict[int, Path] = {}
    for path in sorted(folder.iterdir(), reverse=True):  # "checkpoint-5" after "checkpoint-5.old"
        match = _NAME.fullmatch(path.name)
        if match:
            found[int(match[1])] = path
    return sorted(found.items())


def put_in_place(staged: Path, target: Path) -> None:
    """Rename a sealed folder to where it belongs, in place of an older one of the same step."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        old = target.with_name(target.name + ".old")
        shutil.rmtree(old, ignore_errors=True)
        storage.rename(target, old)
        storage.rename(staged, target)
        shutil.rmtree(old, ignore_errors=True)
    else:
        storage.rename(staged, target)


def prune(run_dir: Path, keep: int, pinned: set[int]) -> None:
    """Remove a run's oldest checkpoints.

    Args:
        keep: How many of the newest to keep.
        pinned: Steps to keep besides: the best one, and those a clone still needs.
    """
    folders = [(step, path) for step, path in listed(run_dir) if (path / MANIFEST).exists()]
    for step, folder in folders[:-keep] if keep else folders:
        if step not in pinned:
            shutil.rmtree(folder, ignore_errors=True)


def newest_weights(run_dir: Path) -> Path | None:
    """A run's finished weights, else those of its newest good checkpoint; None without any."""
    finished = run_dir / FINAL
    if not fault(finished):
        return finished
    newest, _ = newest_good(run_dir)
    return newest.path if newest else None


def set_aside(run_dir: Path, after: int) -> None:
    """Rename the checkpoints past a step, which recovery passed over: nothing counts them then."""
    for step, folder in listed(run_dir):
        if step > after:
            aside = folder.with_name(f"{folder.name}.damaged")
            shutil.rmtree(aside, ignore_errors=True)
            storage.rename(folder, aside)


@dataclass(frozen=True)
class Job:
    """A staged folder for the writer. `done(error)` is called in the writer's thread."""

    staged: Path
    target: Path
    rows: int
    done: Callable[[BaseException | None], None]


class Writer:
    """One daemon thread that makes staged checkpoints durable, in order."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[Job | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work, name="rapidfire-writer", daemon=True)
        self._thread.start()

    def accept(self, job: Job) -> None:
        """Queue a staged folder; returns at once."""
        self._jobs.put(job)

    def flush(self) -> None:
        """Wait until everything accepted so far is on disk or has failed."""
        self._jobs.join()

    def close(self) -> None:
        """Flush and end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                if job is None:
                    return
                self._write(job)
            finally:
                self._jobs.task_done()

    @staticmethod
    def _write(job: Job) -> None:
        error: BaseException | None = None
        try:
            seal(job.staged, job.rows)
            put_in_place(job.staged, job.target)
            shutil.rmtree(job.staged.parent, ignore_errors=True)
        except Exception as raised:  # told to the engine, which stops the experiment's training
            error = raised
        job.done(error)


def _make_best_relative(folder: Path, best_step: int | None, best: str | None) -> None:
    """Name the best checkpoint relative to this one, so that the experiment folder can be moved."""
    path = folder / "trainer_state.json"
    state = json.loads(path.read_text(encoding="utf-8"))
    state["best_model_checkpoint"] = os.path.join("..", f"checkpoint-{best_step}") if best else None
    path.write_text(json.dumps(state, indent=2, sort_keys=True) + "\n", encoding="utf-8")
