"""What a `%rapidfire` line may say: its verbs, how one is read, and which experiment it means."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from IPython.core.error import UsageError

from rapidfire_jupyter import experiment
from rapidfire_jupyter.arguments import closest
from rapidfire_jupyter.experiment import Experiment


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
    "mix": Verb(
        "weigh the tasks of a run's mixture anew, from its next step on",
        "ID TASK=WEIGHT ...",
        1,
        1,
        pairs=True,
    ),
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
    "undo": Verb("take the last op back: its opposite, or undelete within 30 s"),
    "panel": Verb("the live view: curves, table, ops", "[NAME]", 0, 1),
    "export": Verb("write the log as .csv or .parquet, or a report as .html", "FILE", 1, 1),
    "wait": Verb("wait until no run trains; interrupting it does not stop them", "[SECONDS]", 0, 1),
    "results": Verb("every logged row as a DataFrame", "[METRIC]", 0, 1),
    "ranking": Verb("all runs in order; partial ones have no rank", "[METRIC]", 0, 1),
    "effects": Verb("what each hyperparameter did", "[METRIC]", 0, 1),
    "compare": Verb("two runs side by side", "ID ID", 2, 2),
    "policy": Verb(
        "switch a policy while training goes on; dry-run only tells",
        "NAME on|dry-run|off [SETTING=VALUE ...]",
        2,
        2,
        pairs=True,
    ),
    "policies": Verb("all policies: how each is switched, what it did and would do now"),
    "decisions": Verb("what policies decided, and why"),
    "alerts": Verb("what monitors found, with remedies"),
    "samples": Verb("what each run answered after a chunk, beside the references", "[CHUNK]", 0, 1),
    "sample": Verb("let runs answer a prompt now", 'ID [ID ...] "PROMPT"', 2, None),
    "run": Verb("train the configs that a YAML body describes; see help run", options={}),
    "doctor": Verb("check versions, device, disk and experiments", options={}),
    "help": Verb("this list, or one verb", "[VERB]", 0, 1, options={}),
}
TAKE_IDS = ("stop", "resume", "boost", "mix", "clone", "delete", "undelete", "compare", "sample")


@dataclass(frozen=True)
class Command:
    """A parsed line. Any: hyperparameter values."""

    verb: str
    words: tuple[str, ...] = ()
    pairs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)


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
    pairs: dict[str, Any] = {}  # Any: hyperparameter values
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
            options[name] = unquoted(text)
        elif known.pairs and equals:
            if not name or not text:
                raise UsageError(
                    f"write NAME=VALUE without spaces, got {word!r}; usage: {usage(verb)}"
                )
            from rapidfire_jupyter.yaml_body import read_value

            pairs[name] = read_value(text)
        else:
            rest.append(word)
    if known.most is not None and len(rest) > known.most:
        raise UsageError(f"{verb} takes no {rest[known.most]!r}; usage: {usage(verb)}")
    if len(rest) < known.least:
        what = "a run id" if verb in TAKE_IDS else known.words
        raise UsageError(f"{verb} needs {what}; usage: {usage(verb)}")
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
    about = f"{usage(verb)}\n{VERBS[verb].about}"
    if verb != "run":
        return about
    from rapidfire_jupyter.yaml_body import EXAMPLE

    return f"{about}\n\n{EXAMPLE}"


def _unknown_verb(verb: str) -> str:
    near = difflib.get_close_matches(verb, VERBS, n=1)
    if near:
        return f"unknown verb {verb!r}, did you mean {near[0]!r}? usage: {usage(near[0])}"
    return f"unknown verb {verb!r}; usage: %rapidfire VERB ..., with one of {', '.join(VERBS)}"


def unquoted(text: str) -> str:
    """A word without the quotes it was written in."""
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if quoted else text


def experiments(names: Mapping[str, Any]) -> list[Experiment]:
    """Experiments that are open in this kernel, and ended ones that a variable still holds.

    Any: the notebook's variables.
    """
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
    found = [e for e in found if is_live(e)] or found
    if len(found) == 1:
        return found[0]
    listed = ", ".join(e.name for e in (found or known))
    if not known:
        raise UsageError("there is no experiment yet; call run_fit, or see %rapidfire help run")
    if not found:
        near = closest(str(name), [e.name for e in known])
        raise UsageError(f"there is no experiment {name!r}; experiments: {listed}{near}")
    raise UsageError(f"several experiments could be meant: {listed}; add --exp NAME")


def is_live(exp: Experiment) -> bool:
    """Whether an experiment has runs and was not ended."""
    return exp.status not in ("empty", "ended")
