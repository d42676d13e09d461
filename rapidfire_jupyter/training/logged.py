"""The rows that a run's trainer logs, on their way into the event log."""

from collections.abc import Callable
from typing import Any

from rapidfire_jupyter.data import tasks
from rapidfire_jupyter.training.messages import Task
from rapidfire_jupyter.training.metrics import clean_row, named, of_all_tasks, with_perplexity


class Logged:
    """A run's rows. Any: a TRL trainer, and the numbers of a row.

    Attributes:
        count: How many there are; a checkpoint holds it.
    """

    def __init__(self, task: Task) -> None:
        self.count = task.resume.rows if task.resume else 0
        self._emit: Callable[..., Any] = task.emit
        self._names = [name for name in tasks.by_name(task.data.eval) if name]
        self._of_tasks: dict[str, dict[str, Any]] = {}  # of the evaluation that goes on

    def add(self, row: dict[str, Any], trainer: Any) -> None:
        """Log a row, with what TRL does not compute."""
        self.count += 1
        row = clean_row(self._whole(row, trainer), self._warn)
        self._emit("logged", row=row, source="trainer")

    def _whole(self, row: dict[str, Any], trainer: Any) -> dict[str, Any]:
        """A row with perplexities; of an eval set by name, which TRL logs in turn, with that name.

        The last one's row has the means over all of them, too.
        """
        task = next((name for name in self._names if f"eval_{name}_loss" in row), None)
        if task is None:
            return with_perplexity(row, trainer)
        row = self._of_tasks[task] = named(row, task)
        if task == self._names[-1]:
            row = {**row, **of_all_tasks(self._of_tasks)}
            self._of_tasks = {}
        return with_perplexity(row, trainer, self._names)

    def _warn(self, text: str) -> None:
        self._emit("alert", text=text)
