"""`%rapidfire` and `%%rapidfire`: an experiment's ops as one magic, with tab completion.

`verbs` reads a line and `yaml_body` a cell; here is what the verbs do, by way of `Experiment`.
Nothing in a line or a body is executed: they hold plain values and names of notebook variables.
Loading the extension imports neither torch nor pandas nor trl.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from IPython.core.completer import CompletionContext, SimpleMatcherResult, context_matcher
from IPython.core.error import UsageError

from rapidfire_jupyter import front_ends, showing
from rapidfire_jupyter.arguments import closest
from rapidfire_jupyter.doctor import doctor, shim, status_text
from rapidfire_jupyter.errors import OpError, RapidFireError
from rapidfire_jupyter.experiment import Experiment
from rapidfire_jupyter.ops import OpHandle
from rapidfire_jupyter.verbs import (
    Command,
    choose,
    experiments,
    help_text,
    is_live,
    parse,
    unquoted,
    usage,
)

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

ACK_SECONDS = 0.1  # an op that acts within this time is shown as done, not as pending
MATCHER = "rapidfire_jupyter.magics"


class Text(str):
    """A text that a cell shows as it is, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


# ------------------------------------------------------------------------------------ the extension


def load_ipython_extension(shell: "InteractiveShell") -> None:
    """Register `%rapidfire`, `%%rapidfire` and their completion; again is harmless."""
    # TRL's warning at each import of trl.experimental says nothing of the user's code.
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
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
        from rapidfire_jupyter.completion import match

        return match(context, shell.user_ns)

    shell.Completer.custom_matchers.append(context_matcher(identifier=MATCHER)(matcher))
    front_ends.announce()


def unload_ipython_extension(shell: "InteractiveShell") -> None:
    """Remove the magics and their completion. Training goes on."""
    for magics in shell.magics_manager.magics.values():
        magics.pop("rapidfire", None)
    _remove_matcher(shell)
    training = [e.name for e in experiments({}) if e.status == "running"]
    if training:
        print(f"%rapidfire is unloaded; training goes on: {', '.join(training)}")


def _remove_matcher(shell: "InteractiveShell") -> None:
    matchers = shell.Completer.custom_matchers
    matchers[:] = [m for m in matchers if getattr(m, "matcher_identifier", "") != MATCHER]


# ------------------------------------------------------------------------------------- the commands


def run_magic(line: str, cell: str | None, names: dict[str, Any]) -> Any:
    """Do what a line, or a cell with its body, says. Any: the user's variables, what a cell shows.

    Raises:
        UsageError: The line or body is wrong; one line says how.
        RapidFireError: The experiment refuses it.
    """
    command = parse(line)
    if command.verb == "run" and cell is not None:
        from rapidfire_jupyter.yaml_body import run_body

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
        live = [e for e in known if is_live(e)] or [choose(known)]
        return Text("\n".join(map(status_text, live)))
    name = command.options.get("--exp")
    if command.verb == "panel" and command.words:
        name = unquoted(command.words[0])
    return _act(choose(known, name), command, names)


def _act(exp: Experiment, command: Command, names: Mapping[str, Any]) -> Any:
    """Do a verb on an experiment. Any: what a cell shows."""
    verb, words = command.verb, command.words
    if verb == "status":
        return Text(status_text(exp))
    if verb == "runs":
        return exp.runs
    if verb == "results":
        return _results(exp, *words)
    if verb in ("ranking", "effects"):
        metric = words[0] if words else None
        return exp.ranking(metric) if verb == "ranking" else exp.effects(metric)
    if verb in ("decisions", "alerts", "policies"):
        return getattr(exp, verb)()
    if verb == "policy":
        if {"by", "name", "mode"} & set(command.pairs):
            raise UsageError(f"policy takes settings of the policy; usage: {usage(verb)}")
        which, mode = map(unquoted, words)
        return _acknowledged([exp.policy(which, mode, by="magic", **command.pairs)])  # type: ignore[arg-type]
    if verb == "wait":
        return _wait(exp, *words)
    if verb == "samples":
        return exp.samples(_chunk(words[0])) if words else exp.samples()
    if verb == "sample":
        return exp.sample(_ids(exp, verb, words[:-1]), unquoted(words[-1]))
    if verb == "panel":
        return exp.panel()
    if verb == "export":
        return Text(showing.export(exp, unquoted(words[0])))
    if verb == "undo":
        return _acknowledged([exp.undo(by="magic")])
    if verb in ("pause", "resume-all"):
        op = exp.pause_all if verb == "pause" else exp.resume_all
        return _acknowledged([op(by="magic")])
    ids = _ids(exp, verb, words[:1] if verb == "boost" else words)
    if verb == "compare":
        return exp.compare(ids[0], ids[-1])
    if verb == "boost":
        weight = 2.0 if len(words) < 2 else _number("WEIGHT", words[1], verb)
        return _acknowledged([exp.boost(ids[0], weight, by="magic")])
    if verb == "mix":
        return _acknowledged([exp.mix(ids[0], command.pairs, by="magic")])
    if verb == "clone":
        from rapidfire_jupyter.yaml_body import NAMED, named

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


def _chunk(word: str) -> int:
    if not word.removeprefix("-").isdecimal():
        raise UsageError(f"CHUNK is a whole number, got {word!r}; usage: {usage('samples')}")
    return int(word)


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
