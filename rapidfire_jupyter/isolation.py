"""Cells beside training: which of them may have touched the random stream of a run.

Torch's CPU generator is one per process, so a cell that draws or reseeds while a run's step draws
too enters that run's stream. Under "mark" training goes on and such a run says so in `run.exact`.
Under "cells" training pauses while a cell runs, until it ends, waits on us, or has used 2 seconds.
"""

import ast
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

HOLD_SECONDS = 2.0
_HARMLESS_CALLS = frozenset(
    {"print", "display", "len", "sorted", "list", "dict", "str", "repr", "round"}
)
_MAGIC_LINE = re.compile(r"\s*(\w+\s*=\s*)?%(rapidfire|load_ext|reload_ext)\b")


class Cells:
    """What the notebook's main thread is doing, as far as training is concerned."""

    def __init__(self) -> None:
        self._count = 0
        self._running = False
        self._waiting = 0
        self._hold: Callable[[float], bool] | None = None
        self._release: Callable[[], None] | None = None
        self._timer: threading.Timer | None = None
        self._shell: Any = None

    def watch(self, shell: Any) -> None:
        """Follow the cells of an IPython shell. Any: InteractiveShell, None outside IPython."""
        if shell is not None and shell is not self._shell:
            shell.events.register("pre_run_cell", self.begin)
            shell.events.register("post_run_cell", self.finish)
            self._shell = shell

    def pause_training(self, hold: Callable[[float], bool], release: Callable[[], None]) -> None:
        """From now on pause training while a cell runs (isolation="cells")."""
        self._hold, self._release = hold, release

    def token(self) -> int:
        """To be given to `overlapped` later."""
        return self._count

    def overlapped(self, token: int) -> bool:
        """Whether a cell that may draw was running at any time since `token`."""
        return self._running or self._count != token

    def begin(self, info: Any = None) -> None:
        """A cell starts. Any: IPython's ExecutionInfo."""
        source = getattr(info, "raw_cell", "") or ""
        if is_harmless(source, getattr(self._shell, "user_ns", {})):
            return
        if self._hold is not None and self._hold(HOLD_SECONDS * 15):
            self._timer = threading.Timer(HOLD_SECONDS, self._go_on)
            self._timer.daemon = True
            self._timer.start()
            return
        self._mark()

    def finish(self, result: Any = None) -> None:
        """A cell has ended. Any: IPython's ExecutionResult."""
        self._running = False
        self._let_train()

    def _mark(self) -> None:
        self._count += 1
        self._running = True

    def _go_on(self) -> None:
        self._mark()
        if self._release is not None:
            self._release()

    def _let_train(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._release is not None:
            self._release()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While the main thread waits inside this package, its cell touches nothing."""
        was = self._running
        if threading.current_thread() is threading.main_thread():
            self._running = False
            self._let_train()
        try:
            yield
        finally:
            if was:
                self._mark()


cells = Cells()
waiting = cells.waiting


def is_harmless(source: str, names: dict[str, Any]) -> bool:
    """Whether a cell calls nothing but this package and printing, so that it draws nothing.

    Args:
        names: The notebook's variables. Any: the user's objects.
    """
    if source.lstrip().startswith("%%rapidfire"):
        return True
    lines = [line for line in source.splitlines() if not _MAGIC_LINE.match(line)]
    try:
        tree = ast.parse("\n".join(lines))
    except SyntaxError:
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom | ast.With | ast.AsyncWith):
            return False
        if isinstance(node, ast.Call) and not _is_ours(node.func, names):
            return False
    return True


def _is_ours(function: ast.expr, names: dict[str, Any]) -> bool:
    root = function
    while isinstance(root, ast.Attribute | ast.Subscript | ast.Call):
        root = root.func if isinstance(root, ast.Call) else root.value
    if not isinstance(root, ast.Name):
        return False
    if root is function and root.id in _HARMLESS_CALLS:
        return True
    owner = names.get(root.id)
    module = getattr(owner, "__module__", None) or getattr(type(owner), "__module__", "")
    return str(module).startswith("rapidfire_jupyter")
