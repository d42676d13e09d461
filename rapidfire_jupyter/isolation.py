"""Cells beside training: which of them may have touched the random stream of a run.

Torch's CPU generator is one per process, so a cell that draws or reseeds while a run's step draws
too enters that run's stream. Under "mark" training goes on and such a run says so in `run.exact`.
Under "cells" training pauses while a cell runs, until it ends, waits on us, or has used 2 seconds.
Cells that only print, look at our results or ask for ops are known by their source, and ignored.
"""

import ast
import builtins
import contextlib
import inspect
import linecache
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

HOLD_SECONDS = 2.0  # training pauses at most this long for one cell
STEP_SECONDS = 30.0  # a cell waits at most this long for the step in flight
_PACKAGE = "rapidfire_jupyter"


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
        """While a cell waits inside this package it touches nothing; training goes on."""
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
    while frame is not None and _is_ours(str(frame.f_globals.get("__name__"))):
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


# ------------------------------------------------------------------------ judging a cell's source

_MAGICS = "rapidfire load_ext reload_ext pinfo pinfo2 matplotlib who whos ls"
_WRAPPING_MAGICS = "time capture"
_BUILTINS = "print display len str repr format int float bool abs round type isinstance range"
_ITERATING_BUILTINS = "list dict tuple set sorted enumerate zip sum min max any all"
# Of what our objects and DataFrames of results offer: what may draw, or calls a user's function.
_DRAWING = "load_model sample apply map pipe transform agg aggregate applymap"
_PLAIN = (str, bytes, int, float, complex, list, tuple, dict, set, frozenset, range, type(None))
_BLOCKS = (ast.With, ast.AsyncWith, ast.AsyncFor, ast.Await)


def is_harmless(source: str, names: Mapping[str, Any]) -> bool:
    """Whether a cell calls nothing but this package, printing and plain Python: it draws nothing.

    Args:
        source: As typed, or as IPython has transformed it.
        names: The notebook's variables. Any: the user's objects.
    """
    from IPython.core.inputtransformer2 import TransformerManager

    try:
        transform = TransformerManager().transform_cell  # type: ignore[no-untyped-call]
        tree = ast.parse(transform(source))
        known = _Names(names, tree)
        return not any(_may_draw(node, known) for node in _executed(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


class _Names:
    """Which names of a cell hold plain values or objects of ours."""

    def __init__(self, names: Mapping[str, Any], tree: ast.AST) -> None:
        self._names = names
        self._given: dict[str, list[ast.expr | None]] = {}  # what the cell itself gives a name
        self._asking: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._take(target, node.value)
            elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
                self._take(node.target, node.value)
            elif isinstance(node, ast.For | ast.comprehension):
                self._take(node.target, node.iter)
            elif isinstance(node, ast.Lambda):
                for argument in node.args.args:
                    self._given.setdefault(argument.arg, []).append(ast.Constant(None))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self._given.setdefault(node.name, []).append(None)
            elif isinstance(node, ast.ImportFrom) and _is_ours(node.module or ""):
                for alias in node.names:
                    given = self._given.setdefault(alias.asname or alias.name, [])
                    given.append(ast.Constant(None))

    def _take(self, target: ast.expr, value: ast.expr | None) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._given.setdefault(node.id, []).append(value)

    def is_plain(self, name: str) -> bool:
        """Whether what a name holds draws nothing when it is iterated, indexed or called."""
        if name in self._given:
            if name in self._asking:
                return True
            self._asking.add(name)
            try:
                values = self._given[name]
                return all(value is not None and is_plain(value, self) for value in values)
            finally:
                self._asking.discard(name)
        if name not in self._names:
            return False
        value = self._names[name]
        home = _home(value)
        known = _is_ours(home) or home.partition(".")[0] == "pandas"
        return known or isinstance(value, _PLAIN) or home == "IPython.core.autocall"  # exit()

    def is_builtin(self, name: str) -> bool:
        """Whether a name still means what Python and IPython mean by it."""
        free = name not in self._given and name not in self._names
        return free and (hasattr(builtins, name) or name == "display")


def is_plain(value: ast.expr | None, known: _Names) -> bool:
    """Whether an expression gives a plain value, or one of ours."""
    if isinstance(value, ast.Name):
        return known.is_plain(value.id)
    if isinstance(value, ast.Attribute | ast.Subscript | ast.Starred):
        return is_plain(value.value, known)
    if isinstance(value, ast.Call):
        return not _call_may_draw(value, known) and not _is_shell(value)
    if isinstance(value, ast.BinOp):
        return is_plain(value.left, known) and is_plain(value.right, known)
    if isinstance(value, ast.IfExp):
        return is_plain(value.body, known) and is_plain(value.orelse, known)
    if isinstance(value, ast.NamedExpr | ast.UnaryOp):
        return is_plain(value.value if isinstance(value, ast.NamedExpr) else value.operand, known)
    return not isinstance(value, ast.Await | ast.Yield | ast.YieldFrom)


def _may_draw(node: ast.AST, known: _Names) -> bool:
    if isinstance(node, ast.Call):
        return _call_may_draw(node, known)
    if isinstance(node, ast.For | ast.comprehension):
        return not is_plain(node.iter, known)
    if isinstance(node, ast.Subscript):
        return not is_plain(node.value, known)
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return not is_plain(node.value, known)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return not all(is_plain(decorator, known) for decorator in node.decorator_list)
    if isinstance(node, ast.Import):
        return not all(_is_ours(alias.name) for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return not _is_ours(node.module or "")
    return isinstance(node, _BLOCKS)


def _call_may_draw(call: ast.Call, known: _Names) -> bool:
    function = call.func
    if _is_shell(call):
        return False
    if isinstance(function, ast.Name):
        if not known.is_builtin(function.id):
            return not known.is_plain(function.id)
        if function.id in _ITERATING_BUILTINS.split():
            given = [*call.args, *(k.value for k in call.keywords)]
            return not all(isinstance(v, ast.Lambda) or is_plain(v, known) for v in given)
        return function.id not in _BUILTINS.split()
    if not isinstance(function, ast.Attribute):
        return True
    magic = _magic(call)
    if magic is not None:
        return not _is_harmless_magic(*magic, known)
    return function.attr in _DRAWING.split() or not is_plain(function.value, known)


def _is_shell(value: ast.expr) -> bool:
    """Whether an expression is `get_ipython()`, whose methods IPython calls for a magic."""
    return isinstance(value, ast.Call) and ast.unparse(value.func) == "get_ipython"


def _magic(call: ast.Call) -> tuple[str, list[Any]] | None:  # Any: constants
    """The method of `get_ipython()` that a call calls, and its constant arguments."""
    function = call.func
    if not (isinstance(function, ast.Attribute) and _is_shell(function.value)):
        return None
    return function.attr, [a.value for a in call.args if isinstance(a, ast.Constant)]


def _is_harmless_magic(method: str, given: list[Any], known: _Names) -> bool:
    if method in ("system", "getoutput"):
        return True
    if method not in ("run_line_magic", "run_cell_magic") or not given:
        return False
    if given[0] in _WRAPPING_MAGICS.split():
        return is_harmless(str(given[-1]), known._names)
    return given[0] in _MAGICS.split()


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run when the cell runs: not the bodies of functions that it defines."""
    yield tree
    inner = ast.iter_child_nodes(tree)
    if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = tree.args
        inner = iter(
            [*tree.decorator_list, *arguments.defaults, *filter(None, arguments.kw_defaults)]
        )
    for node in inner:
        yield from _executed(node)


def _home(value: object) -> str:
    """The module that a value comes from, without asking the value itself."""
    if isinstance(value, ModuleType):
        return value.__name__
    named = isinstance(value, type) or inspect.isroutine(value)
    return str((value if named else type(value)).__module__)


def _is_ours(module: str) -> bool:
    return module == _PACKAGE or module.startswith(f"{_PACKAGE}.")
