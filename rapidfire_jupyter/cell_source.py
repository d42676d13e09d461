"""Whether a cell may draw random numbers, judged by its source.

Cells that only print, look at our results or ask for ops draw nothing. Whatever is not known to be
harmless may draw: a wrong "may" costs a note on a run, a wrong "harmless" would hide a difference.
"""

import ast
import builtins
import inspect
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

_PACKAGE = "rapidfire_jupyter"
_MAGICS = "rapidfire load_ext reload_ext pinfo pinfo2 matplotlib who whos ls"
_MODULES = "time math datetime json pathlib pprint"  # of Python: they draw nothing
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
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    known = ast.Constant(None) if _draws_nothing(alias.name) else None
                    name = alias.asname or alias.name.partition(".")[0]
                    self._given.setdefault(name, []).append(known)
            elif isinstance(node, ast.ImportFrom) and _draws_nothing(node.module or ""):
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
        known = _draws_nothing(home) or home.partition(".")[0] == "pandas"
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
        return not all(_draws_nothing(alias.name) for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return not _draws_nothing(node.module or "")
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


def _draws_nothing(module: str) -> bool:
    """Whether a module is ours, or one of Python's that draw nothing."""
    return is_ours(module) or module in _MODULES.split()


def is_ours(module: str) -> bool:
    """Whether a module belongs to this package."""
    return module == _PACKAGE or module.startswith(f"{_PACKAGE}.")
