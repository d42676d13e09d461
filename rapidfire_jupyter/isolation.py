"""Cells beside training: which of them may have touched the random stream of a run.

Torch's CPU generator is one per process, so a cell that draws or reseeds while a run's step draws
too enters that run's stream. Under "mark" training goes on and such a run says so in `run.exact`.
Under "cells" training pauses while a cell runs, until it ends, waits on us, or has used 2 seconds.
Cells that draw nothing are known by their source (`cell_source.py`), and ignored.
"""

import ast
import contextlib
import linecache
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rapidfire_jupyter.cell_source import is_harmless, is_ours
from rapidfire_jupyter.errors import OpError

HOLD_SECONDS = 2.0  # training pauses at most this long for one cell
STEP_SECONDS = 30.0  # a cell waits at most this long for the step in flight


class Cells:
    """What the notebook's cells are doing, as far as training is concerned.

    A cell is loose while it runs beside training and may draw. Thread-safe; cells are told apart by
    the thread that runs them (subshells of a kernel run theirs in threads of their own).
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._changes = 0  # how often a cell became loose or was no longer
        self._loose: set[int] = set()
        self._running: dict[int, list[bool]] = {}  # by thread: may each of its nested cells draw?
        self._timers: dict[int, threading.Timer] = {}  # by thread whose cell training is held for
        self._asking = 0  # threads that wait for the step in flight
        self._hold: Callable[[float], bool] | None = None
        self._release: Callable[[], None] | None = None
        self._shell: Any = None
        self.in_run: Callable[[], bool] = lambda: False  # whether the thread is a run's

    # ---- for the engine ----

    def watch(self, shell: Any) -> None:
        """Follow the cells of an IPython shell; of the one that runs now, what is left of it.

        Any: InteractiveShell, None outside IPython.
        """
        if shell is None:
            return
        if shell is not self._shell:
            if self._shell is not None:
                with contextlib.suppress(ValueError):
                    self._shell.events.unregister("pre_run_cell", self.begin)
                    self._shell.events.unregister("post_run_cell", self.finish)
            shell.events.register("pre_run_cell", self.begin)
            shell.events.register("post_run_cell", self.finish)
            self._shell = shell
        rest = rest_of_cell(shell.user_ns)
        if rest is not None:
            nested = self._running.setdefault(threading.get_ident(), [])
            del nested[-1:]
            self._begin(rest)

    def pause_training(
        self, hold: Callable[[float], bool] | None, release: Callable[[], None] | None
    ) -> None:
        """From now on pause training while a cell runs (isolation="cells"); with None, go on."""
        thread = threading.get_ident()
        self._settle(thread)
        self._hold, self._release = hold, release
        if self._may_draw(thread):
            self._let_loose(thread)

    def token(self) -> int:
        """To be given to `overlapped` later."""
        return self._changes

    def overlapped(self, token: int) -> bool:
        """Whether a cell that may draw was running at any time since `token`."""
        return bool(self._loose) or self._changes != token

    # ---- for IPython and whoever waits ----

    def begin(self, info: Any = None) -> None:
        """A cell starts. Any: IPython's ExecutionInfo."""
        source = getattr(info, "transformed_cell", None) or getattr(info, "raw_cell", None) or ""
        self._begin(source)

    def finish(self, result: Any = None) -> None:
        """A cell has ended. Any: IPython's ExecutionResult."""
        thread = threading.get_ident()
        nested = self._running.get(thread)
        if nested:
            nested.pop()
        if not self._may_draw(thread):
            self._settle(thread)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While a cell waits inside this package it touches nothing; training goes on.

        Raises:
            OpError: It is no cell that waits but a run's own code, for which training waits.
        """
        if self.in_run():
            raise OpError(
                "a run's own code (callback, reward, collator, metric) cannot wait for training, "
                "which waits for it; ask without wait()"
            )
        thread = threading.get_ident()
        self._settle(thread)
        try:
            yield
        finally:
            if self._may_draw(thread):
                self._let_loose(thread)

    # ---- the states of a thread's cell: loose, held for, or neither ----

    def _begin(self, source: str) -> None:
        thread = threading.get_ident()
        names = getattr(self._shell, "user_ns", {})
        self._running.setdefault(thread, []).append(not is_harmless(source, names))
        if not self._may_draw(thread):
            self._settle(thread)
        elif thread not in self._loose and thread not in self._timers:
            self._let_loose(thread)

    def _may_draw(self, thread: int) -> bool:
        return any(self._running.get(thread, ()))

    def _let_loose(self, thread: int) -> None:
        """Let a cell that may draw go on: with training paused for a while, or beside training."""
        held = False
        with self._lock:
            self._asking += 1
        try:
            held = self._hold is not None and self._hold(STEP_SECONDS)
        finally:  # also if the wait for the step was interrupted
            with self._lock:
                self._asking -= 1
                if held:
                    timer = threading.Timer(HOLD_SECONDS, self._time_is_up, (thread,))
                    timer.daemon = True
                    self._timers[thread] = timer
                    timer.start()
                else:
                    self._mark(thread)

    def _mark(self, thread: int) -> None:
        with self._lock:
            self._loose.add(thread)
            self._changes += 1
            self._let_train()

    def _time_is_up(self, thread: int) -> None:
        with self._lock:
            if self._timers.get(thread) is threading.current_thread():
                del self._timers[thread]
                self._mark(thread)

    def _settle(self, thread: int) -> None:
        """A thread's cell draws nothing from here on: it has ended, or it waits on us."""
        with self._lock:
            if thread in self._loose:
                self._loose.remove(thread)
                self._changes += 1
            timer = self._timers.pop(thread, None)
            if timer is not None:
                timer.cancel()
            self._let_train()

    def _let_train(self) -> None:
        if self._release is not None and not self._timers and not self._asking:
            self._release()


cells = Cells()
waiting = cells.waiting


def rest_of_cell(names: Mapping[str, Any]) -> str | None:
    """What the cell that called this package has still to do after its current statement.

    The current one counts too if it is a block, or called this package by way of other code. None
    outside of a cell.

    Args:
        names: The notebook's variables, by which its frame is known. Any: the user's objects.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and is_ours(str(frame.f_globals.get("__name__"))):
        frame = frame.f_back
    caller, cell = frame, None
    while frame is not None:
        if frame.f_globals is names and frame.f_code.co_name.startswith(("<module>", "<cell line")):
            cell = frame
        frame = frame.f_back
    if cell is None:
        return None
    source = "".join(linecache.getlines(cell.f_code.co_filename))
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return source
    here, left = _position(cell), []
    for node in body:
        whole = hasattr(node, "body") or caller is not cell
        end = node.end_lineno or node.lineno, node.end_col_offset or 0
        if (node.lineno, node.col_offset) > here or (whole and end >= here):
            left.append(ast.unparse(node))
    return "\n".join(left)


def _position(frame: FrameType) -> tuple[int, int]:
    """Line and column of what a frame executes; before Python 3.11 the column is unknown."""
    code = frame.f_code
    if sys.version_info >= (3, 11):
        line, _, column, _ = list(code.co_positions())[frame.f_lasti // 2]
        if line is not None and column is not None:
            return line, column
    return frame.f_lineno, 1_000_000
