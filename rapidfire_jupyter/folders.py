"""The experiment folder: who owns it, what of it may be deleted, and what a clone copies.

    experiment.json   what made it: versions, device, threads, data fingerprint
    events.jsonl      everything that happened
    lock              held by the one kernel that trains here
    runs/<id>/        train.log, checkpoints/checkpoint-<step>, final, source (of a warm clone)
    trash/<id>/       a deleted run, for as long as it can be undeleted

Only relative paths are stored, so the folder can be moved.
"""

import contextlib
import os
import re
import shutil
from pathlib import Path
from typing import IO

from rapidfire_jupyter import storage
from rapidfire_jupyter.errors import ExperimentError
from rapidfire_jupyter.state import Run, State
from rapidfire_jupyter.texts import is_path, is_text

_NAME = re.compile(r"[^\x00-\x1f/\\]{1,120}")


def experiment_folder(root: str | Path, name: str) -> Path:
    """The folder of an experiment.

    Raises:
        ExperimentError: The name cannot be a folder's name.
    """
    good = isinstance(name, str) and _NAME.fullmatch(name) and name.strip(". ") != ""
    if not good or len(name.encode("utf-8", "surrogatepass")) > 250 or not is_text(name):
        raise ExperimentError(
            "an experiment name is 1 to 120 characters (250 bytes) without slashes or control "
            f"characters, got {name!r}"
        )
    if not is_path(root):
        raise ExperimentError(f"root is a folder's path, got {root!r:.80}; give another")
    return Path(root).expanduser() / name


def make(folder: Path) -> None:
    """Make an experiment's folder.

    Raises:
        ExperimentError: It cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExperimentError(
            f"the folder {folder} cannot be made ({error.strerror}); give another root"
        ) from error


class Lock:
    """Ownership of an experiment folder by one process; the system frees it when that dies."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"
        self._file: IO[str] | None = None

    def acquire(self) -> bool:
        """Try to own the folder; False if another process does."""
        import fcntl

        file = self._path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return False
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        self._file = file
        os.register_at_fork(after_in_child=self.release)  # a child would keep owning the folder
        return True

    def owner(self) -> str:
        """Process id of the owner, as far as it can be read."""
        with contextlib.suppress(OSError):
            return self._path.read_text(encoding="utf-8").strip()
        return ""

    def release(self) -> None:
        """Let another kernel own the folder."""
        if self._file is not None:
            self._file.close()
            self._file = None


def run_dir(folder: Path, run: int) -> Path:
    """A run's own folder."""
    return folder / "runs" / str(run)


def to_trash(folder: Path, run: int) -> None:
    """Move a run's folder away, so that it can still come back."""
    source, target = run_dir(folder, run), folder / "trash" / str(run)
    if source.exists():
        target.parent.mkdir(exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        storage.rename(source, target)


def from_trash(folder: Path, run: int) -> None:
    """Bring a deleted run's folder back."""
    source = folder / "trash" / str(run)
    if source.exists():
        storage.rename(source, run_dir(folder, run))


def settle_trash(folder: Path, state: State) -> None:
    """Put folders where the log says they are: a crash came between a move and its event."""
    for run in state.runs.values():
        own, trashed = run_dir(folder, run.id), folder / "trash" / str(run.id)
        if run.status == "deleted" and own.exists():
            to_trash(folder, run.id)
        elif run.status != "deleted" and trashed.exists() and not own.exists():
            from_trash(folder, run.id)


def deletable(folder: Path, state: State) -> list[Run]:
    """Deleted runs whose folder is still in the trash."""
    deleted = [r for r in state.runs.values() if r.status == "deleted"]
    return [r for r in deleted if (folder / "trash" / str(r.id)).exists()]


def remove_from_trash(folder: Path, run: int) -> None:
    """Remove a deleted run's folder for good."""
    shutil.rmtree(folder / "trash" / str(run), ignore_errors=True)


def copy_source(checkpoint: Path, target: Path) -> None:
    """Copy a checkpoint for a warm clone, whole or not at all; hard links if the disk has them."""
    temporary = target.with_name(target.name + ".new")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(checkpoint, temporary, copy_function=_link_or_copy)
    storage.sync_path(temporary)
    shutil.rmtree(target, ignore_errors=True)  # of a clone that a crash kept from being recorded
    storage.rename(temporary, target)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
