"""`%rapidfire` and `%%rapidfire`: an experiment's ops as one magic, with tab completion.

A line becomes a `Command`, a YAML body the arguments of `run_fit`; `Experiment` does the rest.
Nothing in a line or a body is executed: they hold plain values and names of notebook variables.
Loading the extension imports neither torch nor pandas nor trl.
"""

import contextlib
import difflib
import importlib.util
import inspect
import itertools
import os
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from IPython.core.completer import (
    CompletionContext,
    SimpleCompletion,
    SimpleMatcherResult,
    context_matcher,
)
from IPython.core.error import UsageError

from rapidfire_jupyter import __version__, experiment
from rapidfire_jupyter.arguments import OWNED, closest
from rapidfire_jupyter.choices import List, Range, short
from rapidfire_jupyter.config import (
    MODEL_ARGUMENTS,
    TRAINING_ARGS,
    Recorded,
    RFLoraConfig,
    RFModelConfig,
    has_choices,
    known_trainer_type,
)
from rapidfire_jupyter.errors import ConfigError, OpError, RapidFireError
from rapidfire_jupyter.experiment import Experiment
from rapidfire_jupyter.ops import OpHandle
from rapidfire_jupyter.search import RFGridSearch, RFRandomSearch
from rapidfire_jupyter.state import ACTIVE, Run

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

ACK_SECONDS = 0.1  # an op that acts within this time is shown as done, not as pending
MAX_BODY_BYTES = 64 * 1024
MAX_DEPTH = 20
MATCHER = "rapidfire_jupyter.magics"


@dataclass(frozen=True)
class Verb:
    """One verb of the magic.

    Attributes:
        about: What it does, in a line.
        words: What follows it, as shown in its usage.
        least: Words it needs besides `name=value` pairs and options.
        most: Words it takes; None for any number.
        pairs: Whether it takes `name=value` pairs.
        options: Its options; the text is what a value is called, empty if it takes none.
    """

    about: str
    words: str = ""
    least: int = 0
    most: int | None = 0
    pairs: bool = False
    options: Mapping[str, str] = field(default_factory=lambda: {"--exp": "NAME"})


_CLONE_OPTIONS = {"--warm": "", "--again": "", "--name": "TEXT", "--exp": "NAME"}
VERBS: dict[str, Verb] = {
    "status": Verb("how training stands, of each live experiment"),
    "runs": Verb("the table of runs"),
    "stop": Verb("stop runs at their next step; resume lets them go on", "ID [ID ...]", 1, None),
    "resume": Verb(
        "let stopped runs go on, or finished ones for longer",
        "ID [ID ...] [num_train_epochs=N]",
        1,
        None,
        pairs=True,
    ),
    "boost": Verb("give a run WEIGHT chunks for each chunk of a run of weight 1", "ID [2]", 1, 2),
    "clone": Verb(
        "start a run with a parent's config and some changes; --warm from its weights",
        "ID [NAME=VALUE ...]",
        1,
        1,
        pairs=True,
        options=_CLONE_OPTIONS,
    ),
    "delete": Verb("delete runs; undelete brings them back within 30 s", "ID [ID ...]", 1, None),
    "undelete": Verb("bring back runs deleted less than 30 s ago", "ID [ID ...]", 1, None),
    "pause": Verb("pause all training after the current step"),
    "resume-all": Verb("go on after pause"),
    "wait": Verb("wait until no run trains; interrupting it does not stop them", "[SECONDS]", 0, 1),
    "results": Verb("every logged row as a DataFrame", "[METRIC]", 0, 1),
    "run": Verb("train the configs that a YAML body describes; see help run", options={}),
    "doctor": Verb("check versions, device, disk and experiments", options={}),
    "help": Verb("this list, or one verb", "[VERB]", 0, 1, options={}),
}
_CELL_VERBS = [("run", "verb")]
TAKE_IDS = ("stop", "resume", "boost", "clone", "delete", "undelete")

EXAMPLE = """\
%%rapidfire run
experiment: support-bot
model_name: HuggingFaceTB/SmolLM2-135M-Instruct
train_dataset: train_rows          # names of notebook variables, as are eval_dataset,
eval_dataset: eval_rows            # create_model_fn, formatting_func, reward_funcs, ...
peft_config:
  r: {grid: [8, 32]}               # one run of each value
  target_modules: [q_proj, v_proj]
training_args:                     # of trainer_type: SFT, DPO or GRPO
  learning_rate: {grid: [1e-3, 1e-4]}   # or {range: [1e-5, 1e-3], log: true} with num_runs: 8
num_chunks: 8                      # as are all arguments of run_fit
as: exp                            # the notebook variable that gets the experiment"""

# Keys of a YAML body: those of ours, of run_fit and of RFModelConfig.
_OWN_KEYS = ("experiment", "root", "as", "num_runs")
_FIT_KEYS = tuple(
    name
    for name in inspect.signature(Experiment.run_fit).parameters
    if name not in ("self", "config_group")
)
KEYS = tuple(dict.fromkeys((*_OWN_KEYS, *_FIT_KEYS, *MODEL_ARGUMENTS)))
NEEDED = ("experiment", "model_name", "train_dataset")
NAMED = (  # values are names of notebook variables
    "create_model_fn",
    "train_dataset",
    "eval_dataset",
    "formatting_func",
    "compute_metrics",
    "reward_funcs",
    "data_collator",
    "callbacks",
)

BOUNDS = {
    "torch": "2.6",
    "transformers": "5.24",
    "trl": "1.16",
    "peft": "0.21",
    "accelerate": "1.15",
    "datasets": "5.2",
}
if sys.version_info < (3, 11):  # the last releases that take Python 3.10
    BOUNDS.update(transformers="5.20.2", trl="1.14.2")


class Text(str):
    """A text that a cell shows as it is, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


# ------------------------------------------------------------------------------------ the extension


def load_ipython_extension(shell: "InteractiveShell") -> None:
    """Register `%rapidfire`, `%%rapidfire` and their completion; again is harmless."""
    state, where = shim()
    if state == "shadowed":
        print(
            f"warning: another package called rapidfire ({where}) hides ours; "
            "use %load_ext rapidfire_jupyter"
        )

    def rapidfire(line: str, cell: str | None = None) -> Any:  # Any: what a cell shows
        try:
            return run_magic(line, cell, shell.user_ns)
        except RapidFireError as error:
            raise UsageError(str(error)) from error

    rapidfire.__doc__ = help_text()
    _remove_matcher(shell)
    shell.magics_manager.register_function(rapidfire, "line_cell", "rapidfire")

    def matcher(context: CompletionContext) -> SimpleMatcherResult:
        return match(context, shell.user_ns)

    shell.Completer.custom_matchers.append(context_matcher(identifier=MATCHER)(matcher))


def unload_ipython_extension(shell: "InteractiveShell") -> None:
    """Remove the magics and their completion. Training goes on."""
    for magics in shell.magics_manager.magics.values():
        magics.pop("rapidfire", None)
    _remove_matcher(shell)
    training = [e.name for e in experiments({}) if e.status == "running"]
    if training:
        print(f"%rapidfire is unloaded; training goes on: {', '.join(training)}")


def shim() -> tuple[Literal["ok", "missing", "shadowed"], str]:
    """Whether the module `rapidfire` is ours, and where it is. It is not imported for that."""
    module = sys.modules.get("rapidfire")
    spec = getattr(module, "__spec__", None) or importlib.util.find_spec("rapidfire")
    if spec is None:
        return "missing", ""
    where = spec.origin or ", ".join(spec.submodule_search_locations or ())
    try:
        ours = "rapidfire_jupyter.magics" in Path(where).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        ours = False
    return "ok" if ours else "shadowed", where


def _remove_matcher(shell: "InteractiveShell") -> None:
    matchers = shell.Completer.custom_matchers
    matchers[:] = [m for m in matchers if getattr(m, "matcher_identifier", "") != MATCHER]


# ------------------------------------------------------------------------------------- the commands


@dataclass(frozen=True)
class Command:
    """A parsed line. Any: hyperparameter values."""

    verb: str
    words: tuple[str, ...] = ()
    pairs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)


def run_magic(line: str, cell: str | None, names: dict[str, Any]) -> Any:
    """Do what a line, or a cell with its body, says. Any: the user's variables, what a cell shows.

    Raises:
        UsageError: The line or body is wrong; one line says how.
        RapidFireError: The experiment refuses it.
    """
    command = parse(line)
    if command.verb == "run" and cell is not None:
        return run_body(cell, names)
    if command.verb == "run":
        raise UsageError("run takes its YAML in a cell; start it with %%rapidfire run")
    if cell is not None:
        raise UsageError(f"only run takes a cell; usage: {usage(command.verb)}")
    if command.verb == "help":
        return Text(help_text(*command.words))
    if command.verb == "doctor":
        return Text(doctor(experiments(names)))
    known = experiments(names)
    if command.verb == "status" and not command.options:
        live = [e for e in known if _is_live(e)] or [choose(known)]
        return Text("\n".join(map(status_text, live)))
    return _act(choose(known, command.options.get("--exp")), command, names)


def parse(line: str) -> Command:
    """Read a line: a verb, words, `name=value` pairs and options, in any order after the verb.

    Raises:
        UsageError: It is none of the verbs, or not what this one takes.
    """
    verb, *words = split(line) or ["help"]
    if verb not in VERBS:
        raise UsageError(_unknown_verb(verb))
    known = VERBS[verb]
    rest: list[str] = []
    pairs: dict[str, Any] = {}
    options: dict[str, str] = {}
    queue = iter(words)
    for word in queue:
        name, equals, text = word.partition("=")
        if name in options or name in pairs:
            raise UsageError(f"{name} is given twice; usage: {usage(verb)}")
        if word.startswith("--"):
            if name not in known.options:
                near = closest(name, known.options)
                raise UsageError(f"unknown option {name!r}; usage: {usage(verb)}{near}")
            if known.options[name] and not equals:
                text = next(queue, "")
            if bool(known.options[name]) != bool(text):
                rule = "needs a value" if known.options[name] else "takes no value"
                raise UsageError(f"{name} {rule}; usage: {usage(verb)}")
            options[name] = _unquoted(text)
        elif known.pairs and equals:
            if not name or not text:
                raise UsageError(
                    f"write NAME=VALUE without spaces, got {word!r}; usage: {usage(verb)}"
                )
            pairs[name] = read_value(text)
        else:
            rest.append(word)
    if known.most is not None and len(rest) > known.most:
        raise UsageError(f"{verb} takes no {rest[known.most]!r}; usage: {usage(verb)}")
    if len(rest) < known.least:
        raise UsageError(f"{verb} needs a run id; usage: {usage(verb)}")
    return Command(verb, tuple(rest), pairs, options)


def split(line: str) -> list[str]:
    """Cut a line at spaces that are in no quotes and no brackets."""
    words, word, quote, closers = [], "", "", list[str]()
    for char in line:
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in "[{":
            closers.append("]" if char == "[" else "}")
        elif closers and char == closers[-1]:
            closers.pop()
        if char.isspace() and not quote and not closers:
            words.append(word)
            word = ""
        else:
            word += char
    if quote or closers:
        raise UsageError(f"{quote or closers[-1]} is missing at the end of {line.strip()!r}")
    return [word for word in (*words, word) if word]


def usage(verb: str) -> str:
    """How a verb is written."""
    known = VERBS[verb]
    options = [
        f"[{name} {value}]" if value else f"[{name}]" for name, value in known.options.items()
    ]
    magic = "%%rapidfire" if verb == "run" else "%rapidfire"
    return " ".join(word for word in (magic, verb, known.words, *options) if word)


def help_text(verb: str = "") -> str:
    """What all verbs do, or how one is used."""
    if not verb:
        lines = [f"{name + ' ' + known.words:<40} {known.about}" for name, known in VERBS.items()]
        return "\n".join(["%rapidfire VERB ... [--exp NAME]", *(f"  {line}" for line in lines)])
    if verb not in VERBS:
        raise UsageError(_unknown_verb(verb))
    return f"{usage(verb)}\n{VERBS[verb].about}" + (f"\n\n{EXAMPLE}" if verb == "run" else "")


def _unknown_verb(verb: str) -> str:
    near = difflib.get_close_matches(verb, VERBS, n=1)
    if near:
        return f"unknown verb {verb!r}, did you mean {near[0]!r}? usage: {usage(near[0])}"
    return f"unknown verb {verb!r}; usage: %rapidfire VERB ..., with one of {', '.join(VERBS)}"


def _unquoted(text: str) -> str:
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if quoted else text


# ------------------------------------------------------------------------------ what a command does


def experiments(names: Mapping[str, Any]) -> list[Experiment]:
    """Experiments that are open in this kernel, and ended ones that a variable still holds."""
    found = {exp.folder: exp for exp in list(experiment._open.values())}
    for name, value in list(names.items()):
        if isinstance(value, Experiment) and not name.startswith("_"):
            found.setdefault(value.folder, value)
    return list(found.values())


def choose(known: list[Experiment], name: str | None = None) -> Experiment:
    """The experiment that is meant: the one of this name, or the only live one, or the only one.

    Raises:
        UsageError: There is none, or several could be meant.
    """
    found = [e for e in known if name in (None, e.name)]
    found = [e for e in found if _is_live(e)] or found
    if len(found) == 1:
        return found[0]
    listed = ", ".join(e.name for e in (found or known))
    if not known:
        raise UsageError("there is no experiment yet; call run_fit, or see %rapidfire help run")
    if not found:
        near = closest(str(name), [e.name for e in known])
        raise UsageError(f"there is no experiment {name!r}; experiments: {listed}{near}")
    raise UsageError(f"several experiments could be meant: {listed}; add --exp NAME")


def _is_live(exp: Experiment) -> bool:
    return exp.status not in ("empty", "ended")


def _act(exp: Experiment, command: Command, names: Mapping[str, Any]) -> Any:
    """Do a verb on an experiment. Any: what a cell shows."""
    verb, words = command.verb, command.words
    if verb == "status":
        return Text(status_text(exp))
    if verb == "runs":
        return exp.runs
    if verb == "results":
        return _results(exp, *words)
    if verb == "wait":
        return _wait(exp, *words)
    if verb in ("pause", "resume-all"):
        op = exp.pause_all if verb == "pause" else exp.resume_all
        return _acknowledged([op(by="magic")])
    ids = _ids(exp, verb, words[:1] if verb == "boost" else words)
    if verb == "boost":
        weight = 2.0 if len(words) < 2 else _number("WEIGHT", words[1], verb)
        return _acknowledged([exp.boost(ids[0], weight, by="magic")])
    if verb == "clone":
        pairs = {k: named(k, v, names) if k in NAMED else v for k, v in command.pairs.items()}
        flags = command.options
        name, again = flags.get("--name"), "--again" in flags
        asked = exp.clone(ids[0], pairs, "--warm" in flags, name=name, again=again, by="magic")
        return _acknowledged([asked])
    if {"by", "run"} & set(command.pairs):
        raise UsageError(f"resume takes hyperparameters; usage: {usage(verb)}")
    ask: Callable[..., OpHandle] = getattr(exp, verb)
    return _acknowledged([ask(run, by="magic", **command.pairs) for run in ids])


def _ids(exp: Experiment, verb: str, words: Iterable[str]) -> list[int]:
    """Ids of runs that exist, each once."""
    for word in words:
        if not word.isdecimal():
            raise UsageError(f"a run id is a whole number, got {word!r}; usage: {usage(verb)}")
        if int(word) not in exp.state.runs:
            runs = ", ".join(map(str, exp.state.runs)) or "none yet"
            raise UsageError(f"there is no run {word}; runs: {runs}; usage: {usage(verb)}")
    return list(dict.fromkeys(map(int, words)))


def _number(what: str, word: str, verb: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise UsageError(f"{what} is a number, got {word!r}; usage: {usage(verb)}") from None


def _acknowledged(handles: list[OpHandle]) -> OpHandle | list[OpHandle]:
    """The handles, after a moment in which most ops have acted."""
    deadline = time.monotonic() + ACK_SECONDS
    for handle in handles:
        with contextlib.suppress(TimeoutError, OpError):
            handle.wait(max(0.0, deadline - time.monotonic()))
    return handles[0] if len(handles) == 1 else handles


def _wait(exp: Experiment, seconds: str | None = None) -> Text:
    try:
        exp.wait(None if seconds is None else _number("SECONDS", seconds, "wait"))
    except TimeoutError as error:
        raise UsageError(str(error)) from error
    return Text(status_text(exp))


def _results(exp: Experiment, metric: str | None = None) -> Any:  # Any: a pandas DataFrame
    table = exp.results()
    if metric is None:
        return table
    first = ["run", "name", "step", "chunk"]
    if metric not in table or metric in first:
        logged = [column for column in table.columns if column not in first]
        near = closest(metric, logged)
        raise UsageError(
            f"no run has logged {metric!r}; logged: {', '.join(logged) or 'nothing yet'}{near}"
        )
    return table.loc[table[metric].notna(), [*first, metric]]


def status_text(exp: Experiment) -> str:
    """An experiment in a line, and a line for each failed run."""
    runs = [run for run in exp.state.runs.values() if run.status != "deleted"]
    counts = Counter(run.status for run in runs)
    line = f"{exp.name}: {exp.status}; {len(runs)} run{'' if len(runs) == 1 else 's'}"
    if counts:
        line += f" ({', '.join(f'{number} {status}' for status, number in counts.items())})"
    active = [run for run in runs if run.status in ACTIVE]
    if active and all(run.total_steps for run in active):
        done, total = sum(r.step for r in active), sum(r.total_steps or 0 for r in active)
        line += f"; step {done} of {total}"
    failed = [f"  run {run.id} failed: {run.error}" for run in runs if run.status == "failed"]
    return "\n".join([line, *failed])


def doctor(known: Iterable[Experiment]) -> str:
    """A report on what training needs and how it stands. Imports torch."""
    import torch

    device = torch.accelerator.current_accelerator()
    cuda = device is not None and device.type == "cuda"
    name = torch.cuda.get_device_name() if cuda else str(device or "cpu")
    free_gb = shutil.disk_usage(Path.cwd()).free / 1e9
    shims = {
        "ok": "%load_ext rapidfire works",
        "missing": "is not installed; use %load_ext rapidfire_jupyter",
        "shadowed": "is another package; use %load_ext rapidfire_jupyter",
    }
    state, where = shim()
    lines = [
        f"rapidfire_jupyter {__version__}, Python {sys.version.split()[0]}",
        *version_lines({package: _version(package) for package in BOUNDS}),
        f"device   {name}, {torch.get_num_threads()} threads of {os.cpu_count()} cores",
        f"disk     {free_gb:.1f} GB free in {Path.cwd()}",
        f"shim     {state}: {shims[state]}" + (f" ({where})" if state == "shadowed" else ""),
    ]
    for exp in known:
        alerts = [e.data["text"] for e in exp.events if e.kind == "alert" and "text" in e.data]
        lines += [status_text(exp), *(f"  alert: {text}" for text in alerts[-3:])]
    return "\n".join(lines)


def version_lines(found: Mapping[str, str | None]) -> list[str]:
    """A line for each package: whether the version found is one we support.

    Args:
        found: Versions by package; None if it is not installed.
    """
    from packaging.version import Version

    lines = []
    for package, least in BOUNDS.items():
        version = found.get(package)
        good = version is not None and Version(version) >= Version(least)
        verdict = "ok      " if good else "missing " if version is None else "too old "
        fix = "" if good else f'; pip install -U "{package}>={least}"'
        lines.append(f"{verdict} {package} {version or '-'} (needs >= {least}){fix}")
    return lines


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


# -------------------------------------------------------------------------------------- YAML values


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """What plain YAML scalars stand for, by their first character."""
    exponent = r"[eE][-+]?[0-9]+"
    kinds = {
        "null": (r"~|null|None|", ["~", "n", "N", ""]),
        "bool": (r"true|True|false|False", [*"tTfF"]),
        "int": (r"[-+]?(?:0|[1-9][0-9_]*)", [*"-+0123456789"]),
        "float": (
            rf"[-+]?(?:(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:{exponent})?|[0-9]+{exponent})",
            [*"-+.0123456789"],
        ),
    }
    found: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for kind, (pattern, firsts) in kinds.items():
        for first in firsts:
            rule = (f"tag:yaml.org,2002:{kind}", re.compile(f"(?:{pattern})$"))
            found.setdefault(first, []).append(rule)
    return found


class _Loader(yaml.SafeLoader):
    """Plain YAML values, read as YAML 1.2 does: 1e-4 is a number, and `no` is a text.

    References are refused, since nested ones make a small text huge; so are keys given twice.
    """

    yaml_implicit_resolvers = _resolvers()
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:  # Any: nodes of PyYAML
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="references (*) are refused", problem_mark=mark)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"more than {MAX_DEPTH} levels", problem_mark=mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            problem = ""
            if key.tag != "tag:yaml.org,2002:str":
                problem = "a key must be a text; put it in quotes"
            elif key.value in seen:
                problem = f"{key.value} is given twice"
            if problem:
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_value(text: str) -> Any:  # Any: what YAML holds
    """One value as YAML writes it: `5e-4`, `true`, `[q_proj, v_proj]`, `"a text"`.

    Raises:
        UsageError: It is no YAML.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UsageError(f"cannot read {text!r}: {problem}; put a text in quotes") from error


def read_body(text: str) -> tuple[dict[str, Any], dict[str, int]]:
    """The values of a YAML body, and the line of each key, counted from the cell's first line.

    Any: what YAML holds.

    Raises:
        UsageError: It is no YAML mapping, is too long, or has an unknown key.
    """
    size_bytes = len(text.encode())
    if size_bytes > MAX_BODY_BYTES:
        raise UsageError(f"the YAML body has {size_bytes} bytes, more than {MAX_BODY_BYTES}")
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        values = None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 2} of the cell: " if mark else ""
        raise UsageError(f"{line}{error.problem}; see %rapidfire help run") from error
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"the YAML body cannot be read: {str(error).splitlines()[0]}") from error
    if node is None or not isinstance(values, dict):
        raise UsageError("the YAML body must be lines of `key: value`; see %rapidfire help run")
    lines = {key.value: key.start_mark.line + 2 for key, _ in node.value}
    for key in values:
        if key not in KEYS:
            near = closest(key, KEYS) or f"; keys: {', '.join(KEYS)}"
            raise UsageError(f"line {lines[key]} of the cell: unknown key {key!r}{near}")
    missing = [key for key in NEEDED if values.get(key) is None]
    if missing:
        raise UsageError(f"the YAML body needs {', '.join(missing)}; see %rapidfire help run")
    return values, lines


def with_choices(value: Any) -> Any:  # Any: what YAML holds
    """A value in which `{grid: [...]}` became a List and `{range: [low, high]}` a Range."""
    if isinstance(value, list):
        return [with_choices(one) for one in value]
    if not isinstance(value, dict):
        return value
    if "grid" in value:
        if len(value) > 1 or not isinstance(value["grid"], list):
            raise ConfigError(f"grid takes a list: {{grid: [8, 32]}}, got {short(value)}")
        return List(with_choices(value["grid"]))
    if "range" in value:
        ends, how = value["range"], {k: v for k, v in value.items() if k != "range"}
        pair = isinstance(ends, list) and len(ends) == 2
        if not pair or set(how) - {"log", "step", "dtype"}:
            raise ConfigError(
                "range takes two numbers, and log, step or dtype beside it: "
                f"{{range: [1e-5, 1e-3], log: true}}, got {short(value)}"
            )
        return Range(*ends, **how)
    return {key: with_choices(one) for key, one in value.items()}


def named(key: str, value: Any, names: Mapping[str, Any]) -> Any:
    """The notebook variable of a name, or of each name in a list. Any: the user's objects.

    Raises:
        ConfigError: There is no variable of this name.
    """
    if value is None:
        return None
    if isinstance(value, List):
        return List([named(key, one, names) for one in value.values])
    if isinstance(value, list):
        return [named(key, one, names) for one in value]
    if not isinstance(value, str):
        raise ConfigError(f"{key} takes the name of a notebook variable, got {short(value)}")
    if value not in names:
        known = [name for name in names if not name.startswith("_")]
        near = closest(value, known) or "; define it in a cell first"
        raise ConfigError(f"{key}: the notebook has no variable {value!r}{near}")
    return names[value]


# ---------------------------------------------------------------------------------- %%rapidfire run


def run_body(text: str, names: dict[str, Any]) -> Experiment:
    """Train what a YAML body describes, and bind the experiment in the notebook.

    Raises:
        UsageError: Something in the body is wrong.
        RapidFireError: `run_fit` refuses it.
    """
    given, lines = read_body(text)
    target = given.get("as", "exp")
    if not isinstance(target, str) or not target.isidentifier():
        raise UsageError(f"as takes the name of a variable, got {target!r}; write as: exp")
    if not isinstance(names.get(target), Experiment | None):
        raise UsageError(f"the notebook has another variable {target!r}; add as: NAME to the body")
    for key in ("experiment", "root"):
        if not isinstance(given.get(key, ""), str):
            found = short(given[key])
            raise UsageError(f"line {lines[key]} of the cell: {key} takes a text, got {found}")
    kind = known_trainer_type(given.get("trainer_type") or "SFT")
    values = {}
    for key, value in given.items():
        try:
            values[key] = _value(key, with_choices(value), kind, names)
        except ConfigError as error:
            raise UsageError(f"line {lines[key]} of the cell: {error}") from error
    fit = {key: values[key] for key in _FIT_KEYS if key in values and key != "trainer_type"}
    model = {key: values[key] for key in MODEL_ARGUMENTS if key in values}
    if "seed" in fit and has_choices(fit["seed"]):
        del fit["seed"]
    else:
        model.pop("seed", None)
    search = _search(RFModelConfig(**model), kind, values.get("num_runs"), fit.get("seed", 42))
    exp = Experiment(values["experiment"], **({"root": values["root"]} if "root" in values else {}))
    exp.run_fit(search, **fit)
    names[target] = exp
    return exp


def _value(key: str, value: Any, kind: str, names: Mapping[str, Any]) -> Any:
    """What a key's value stands for. Any: hyperparameter values, the user's objects."""
    if key in _FIT_KEYS and key != "seed" and has_choices(value):
        raise ConfigError(f"{key} takes one value, got {short(value)}")
    if key in NAMED:
        return named(key, value, names)
    if key == "peft_config":
        return _config(RFLoraConfig, key, value)
    if key == "training_args":
        return _config(TRAINING_ARGS[kind], key, value)
    return value


def _config(cls: type[Recorded], key: str, value: Any) -> Any:
    """A config, or a List of them. Any: either, or None."""
    if isinstance(value, List):
        return List([_config(cls, key, one) for one in value.values])
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ConfigError(
            f"{key} takes the arguments of {cls.__name__} as lines of `name: value`, or "
            f"{{grid: [...]}} of them, got {short(value)}"
        )
    return cls(**value)


def _search(
    config: RFModelConfig, kind: str, num_runs: Any, seed: Any
) -> RFGridSearch | RFRandomSearch:
    """A grid, or `num_runs` draws. Any: what YAML holds, checked by the search."""
    if num_runs is not None:
        return RFRandomSearch(config, kind, num_runs, seed)
    try:
        return RFGridSearch(config, kind)
    except ConfigError as error:
        hint = "; num_runs: N draws that many" if "RFRandomSearch" in str(error) else ""
        raise UsageError(f"{error}{hint}") from error


# --------------------------------------------------------------------------------------- completion


def match(context: CompletionContext, names: Mapping[str, Any]) -> SimpleMatcherResult:
    """IPython's matcher: what may follow the text before the cursor in a `%rapidfire` line."""
    before = context.text_until_cursor
    found = re.search(r"(?:^|=)\s*(%%?)rapidfire\s+(.*)$", before)
    if found is None or (found[1] == "%%" and context.cursor_line):
        return {"completions": [], "suppress": False}
    *before_current, current = re.split(r"\s", found[2])
    words = [word for word in before_current if word]
    may_follow = (
        completions(words, current, names) if found[1] == "%" else _CELL_VERBS[len(words) :]
    )
    offered = [
        SimpleCompletion(text, type=about) for text, about in may_follow if text.startswith(current)
    ]
    return {
        "completions": offered,
        "matched_fragment": current,
        "ordered": True,
        "suppress": True,
    }


def completions(words: list[str], current: str, names: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What may stand after these words, each with a remark. Any: the user's objects.

    `current` is the word that was begun; what is offered is not cut down to it.
    """
    if not words:
        return [(verb, "verb") for verb in VERBS]
    verb, known = words[0], experiments(names)
    if verb not in VERBS:
        return []
    if VERBS[verb].options.get(words[-1]):
        return [(exp.name, exp.status) for exp in known] if words[-1] == "--exp" else []
    if current.startswith("-"):
        return [(option, "option") for option in VERBS[verb].options if option not in words]
    if verb == "help":
        return [(name, "verb") for name in VERBS]
    try:
        exp = choose(known, words[words.index("--exp") + 1] if "--exp" in words else None)
    except UsageError:
        return []
    if verb == "results":
        return [(metric, "metric") for metric in _metrics(exp)]
    given = [word for word in words[1:] if word.isdecimal()]
    ids = _offered_ids(exp, verb, given) if verb in TAKE_IDS else []
    runs = [exp.state.runs[int(word)] for word in given if int(word) in exp.state.runs]
    if verb == "clone" and runs:
        return [(f"{name}=", "hyperparameter") for name in hyperparameters(runs[0])]
    if verb == "resume" and runs:
        return [*ids, ("num_train_epochs=", "hyperparameter"), ("max_steps=", "hyperparameter")]
    return ids


def _offered_ids(exp: Experiment, verb: str, given: list[str]) -> list[tuple[str, str]]:
    """Runs that a verb may act on, with status and name; those given already are left out."""
    if given and verb in ("boost", "clone"):
        return []
    return [
        (str(run.id), f"{run.status} · {run.name}")
        for run in exp.state.runs.values()
        if (run.status == "deleted") == (verb == "undelete") and str(run.id) not in given
    ]


def hyperparameters(run: Run) -> list[str]:
    """Names that a clone of a run may change: those given first, then all others that are known.

    The others are known once TRL is imported; completion does not import it.
    """
    owners: dict[str, list[str]] = {}
    for name in run.config:
        owners.setdefault(name.rpartition(".")[2], []).append(name)
    inner = ("training_args.", "peft_config.")
    given = [
        short_name if len(found) == 1 and found[0].startswith(inner) else name
        for short_name, found in owners.items()
        for name in found
        if name != "trainer_type"
    ]
    others = list(MODEL_ARGUMENTS)
    if "trl" in sys.modules and run.trainer_type in TRAINING_ARGS:
        others += [*TRAINING_ARGS[run.trainer_type].arguments(), *RFLoraConfig.arguments()]
    return list(dict.fromkeys(name for name in (*given, *others) if name not in OWNED))


def _metrics(exp: Experiment) -> list[str]:
    """Names in the newest logged rows."""
    logged = (event.data["row"] for event in reversed(exp.events) if event.kind == "logged")
    names = (name for row in itertools.islice(logged, 100) for name in row)
    return [name for name in dict.fromkeys(names) if name != "step"]
