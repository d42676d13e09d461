"""YAML in the magics: a value in a line, and the body of `%%rapidfire run`.

Only plain values and names of notebook variables are read; nothing in them is executed.
"""

import inspect
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import yaml
from IPython.core.error import UsageError

from rapidfire_jupyter.arguments import closest
from rapidfire_jupyter.choices import List, Range, short
from rapidfire_jupyter.config import MODEL_ARGUMENTS, RFModelConfig
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.experiment import Experiment
from rapidfire_jupyter.recorded import TRAINING_ARGS, Recorded, RFLoraConfig, has_choices
from rapidfire_jupyter.search import RFGridSearch, RFRandomSearch
from rapidfire_jupyter.texts import is_text
from rapidfire_jupyter.trainer_types import trainer_type_of

MAX_BODY_BYTES = 64 * 1024
MAX_DEPTH = 20

EXAMPLE = """\
%%rapidfire run
experiment: support-bot
model_name: HuggingFaceTB/SmolLM2-135M-Instruct
train_dataset: train_rows          # names of notebook variables, as are eval_dataset,
eval_dataset: eval_rows            # create_model_fn, formatting_func, reward_funcs, ...
peft_config:
  r: {grid: [8, 32]}               # one run of each value
  target_modules: [q_proj, v_proj]
training_args:                     # of trainer_type: SFT, DPO, GRPO, ...
  learning_rate: {grid: [1e-3, 1e-4]}   # or {range: [1e-5, 1e-3], log: true} with num_runs: 8
# optuna: {at_once: 4, metric: eval_loss}  # with num_runs: Optuna suggests the runs (RFOptuna)
num_chunks: 8                      # as are all arguments of run_fit
policies: [halving, {threshold: {limit: 3.0, after: 2}}]   # by name, with their settings
as: exp                            # the notebook variable that gets the experiment"""

# Keys of a YAML body: those of ours, of run_fit and of RFModelConfig.
_OWN_KEYS = ("experiment", "root", "as", "num_runs", "optuna")
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


# ------------------------------------------------------------------------------------------- values


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

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:  # Any: as above
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


# ----------------------------------------------------------------------------------------- the body


def run_body(text: str, names: dict[str, Any]) -> Experiment:
    """Train what a YAML body describes, and bind the experiment in the notebook.

    Any: the notebook's variables.

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
    kind = trainer_type_of(given.get("trainer_type") or "SFT").name
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
    config = RFModelConfig(**model)
    if "optuna" in values:
        search = _optuna(config, kind, values, lines)
    else:
        search = _search(config, kind, values.get("num_runs"), fit.get("seed", 42))
    exp = Experiment(values["experiment"], **({"root": values["root"]} if "root" in values else {}))
    exp.run_fit(search, **fit)
    names[target] = exp
    return exp


def read_body(text: str) -> tuple[dict[str, Any], dict[str, int]]:
    """The values of a YAML body, and the line of each key, counted from the cell's first line.

    Any: what YAML holds.

    Raises:
        UsageError: It is no YAML mapping, is too long, or has an unknown key.
    """
    if not is_text(text):
        raise UsageError("the YAML body has half of a surrogate pair; write the whole character")
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


def _value(key: str, value: Any, kind: str, names: Mapping[str, Any]) -> Any:
    """What a key's value stands for. Any: hyperparameter values, the user's objects."""
    if key in _FIT_KEYS and key != "seed" and has_choices(value):
        raise ConfigError(f"{key} takes one value, got {short(value)}")
    if key in NAMED:
        return named(key, value, names)
    if key in ("policies", "phases", "monitors"):
        from rapidfire_jupyter.oversight import overseeing

        overseeing(**{key: value})
    if key == "on_alert":
        several = value if isinstance(value, list) else [value]
        return [one if "://" in str(one) else named(key, one, names) for one in several]
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


def _optuna(
    config: RFModelConfig, kind: str, values: Mapping[str, Any], lines: Mapping[str, int]
) -> Any:
    """RFOptuna, with what is given under `optuna`, and `num_runs`. Any: what YAML holds, it."""
    from rapidfire_jupyter.suggestions import RFOptuna

    given = {} if values["optuna"] in (None, True) else values["optuna"]
    where = f"line {lines['optuna']} of the cell: "
    if not isinstance(given, dict):
        raise UsageError(
            f"{where}optuna takes settings of RFOptuna: {{at_once: 4}}, got {short(given)}"
        )
    own = [one.name for one in fields(RFOptuna) if one.name not in ("configs", "trainer_type")]
    for name in given:
        if name not in own or name == "where":
            near = closest(name, own) or f"; {', '.join(n for n in own if n != 'where')}"
            raise UsageError(f"{where}optuna has no setting {name!r}{near}")
    if "num_runs" in given and "num_runs" in values:
        raise UsageError(f"{where}num_runs is given twice; give it once")
    runs = {"num_runs": values["num_runs"]} if "num_runs" in values else {}
    try:
        return RFOptuna(config, kind, **runs, **given)
    except ConfigError as error:
        raise UsageError(f"{where}{error}") from error


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
