"""Tab completion of `%rapidfire` lines: verbs, options, run ids, hyperparameters and metrics."""

import itertools
import re
import sys
from collections.abc import Mapping
from typing import Any

from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult
from IPython.core.error import UsageError

from rapidfire_jupyter.arguments import OWNED
from rapidfire_jupyter.config import MODEL_ARGUMENTS
from rapidfire_jupyter.experiment import Experiment
from rapidfire_jupyter.mixture import TASKS
from rapidfire_jupyter.recorded import TRAINING_ARGS, RFLoraConfig
from rapidfire_jupyter.state import Run
from rapidfire_jupyter.verbs import TAKE_IDS, VERBS, choose, experiments

_CELL_VERBS = [("run", "verb")]
_FIXED = {*OWNED, "mixture", TASKS}  # no clone may change them


def match(context: CompletionContext, names: Mapping[str, Any]) -> SimpleMatcherResult:
    """IPython's matcher: what may follow the text before the cursor in a `%rapidfire` line.

    Any: the notebook's variables.
    """
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
    if verb == "panel":
        return [(exp.name, exp.status) for exp in known]
    if verb == "help":
        return [(name, "verb") for name in VERBS]
    try:
        exp = choose(known, words[words.index("--exp") + 1] if "--exp" in words else None)
    except UsageError:
        return []
    if verb in ("results", "ranking", "effects"):
        return [(metric, "metric") for metric in _metrics(exp)]
    if verb == "policy":
        return _of_policies(exp, words[1:])
    given = [word for word in words[1:] if word.isdecimal()]
    ids = _offered_ids(exp, verb, given) if verb in TAKE_IDS else []
    runs = [exp.state.runs[int(word)] for word in given if int(word) in exp.state.runs]
    if verb == "mix" and runs:
        return [(f"{name}=", "task") for name in runs[0].config.get(TASKS, ())]
    if verb == "clone" and runs:
        return [(f"{name}=", "hyperparameter") for name in hyperparameters(runs[0])]
    if verb == "resume" and runs:
        return [*ids, ("num_train_epochs=", "hyperparameter"), ("max_steps=", "hyperparameter")]
    return ids


def _of_policies(exp: Experiment, words: list[str]) -> list[tuple[str, str]]:
    """Names of policies with their modes, then the modes, then settings."""
    from rapidfire_jupyter import switches
    from rapidfire_jupyter.oversight import POLICIES

    if not words:
        known = dict.fromkeys((*exp.state.overseen.get("policies", ()), *POLICIES))
        return [(name, exp.state.policy(name)["mode"]) for name in known]
    if len(words) == 1:
        return [(mode, "mode") for mode in switches.MODES]
    cls = POLICIES.get(words[0])
    settings = switches.settings_of(cls, None) if cls is not None else []
    return [(f"{one.name}=", "setting") for one in settings]


def _offered_ids(exp: Experiment, verb: str, given: list[str]) -> list[tuple[str, str]]:
    """Runs that a verb may act on, with status and name; those given already are left out."""
    if given and verb in ("boost", "clone", "mix"):
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
    return list(dict.fromkeys(name for name in (*given, *others) if name not in _FIXED))


def _metrics(exp: Experiment) -> list[str]:
    """Names in the newest logged rows."""
    logged = (event.data["row"] for event in reversed(exp.events) if event.kind == "logged")
    names = (name for row in itertools.islice(logged, 100) for name in row)
    return [name for name in dict.fromkeys(names) if name != "step"]
