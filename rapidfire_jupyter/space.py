"""Spaces: trees of `List`, `Range`, `Linked`, configs and containers, and single points in them.

`count` says how many combinations a tree holds and `pick` makes the one with a given number;
`chosen` makes the one that somebody chooses part by part, and `coordinates` says what was chosen.
`settled` then puts the values of Linked in. Nothing here trains or looks at results.
"""

import copy
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

from rapidfire_jupyter.changes import path_of
from rapidfire_jupyter.choices import Linked, List, Range, is_number, short
from rapidfire_jupyter.config import RFModelConfig, is_peft_config
from rapidfire_jupyter.encoding import encode
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.recorded import Recorded

MAX_RUNS = 10_000


def tree_of(configs: object) -> RFModelConfig | List:
    """What a user gives as configs, as a tree: a config, or a List of trees.

    Raises:
        ConfigError: It is anything else.
    """
    if isinstance(configs, RFModelConfig):
        return configs
    if not isinstance(configs, (List, list, tuple)):
        raise ConfigError(
            f"configs must be RFModelConfig or a list of them, got {type(configs).__name__}; "
            "write RFModelConfig(model_name=..., training_args=...)"
        )
    return List(
        [tree_of(one) for one in (configs.values if isinstance(configs, List) else configs)]
    )


def parts_of(node: object) -> dict[Any, object]:  # Any: argument names, dict keys, positions
    """What a config or container holds, by name or position; nothing for any other value."""
    if isinstance(node, Recorded):
        return dict(node.given)
    if isinstance(node, dict):
        return node
    if isinstance(node, (list, tuple)) and type(node) in (list, tuple):
        return dict(enumerate(node))
    return {}


def walk(node: object, path: str) -> Iterator[tuple[str, object]]:
    """A tree's nodes with their dotted names, top down."""
    yield path, node
    if isinstance(node, List):
        for one in node.values:
            yield from walk(one, path)
    for name, part in parts_of(node).items():
        yield from walk(part, join(path, name))


def join(path: str, name: object) -> str:
    """The dotted name of a part."""
    if isinstance(name, int):
        return f"{path}[{name}]"
    return f"{path}.{name}" if path else str(name)


def count(node: object) -> int:
    """How many combinations a tree holds; a Range without step counts its whole numbers."""
    if isinstance(node, List):
        return sum(count(one) for one in node.values)
    if isinstance(node, Range):
        return math.floor((node.end - node.start) / (node.step or 1) + 1e-9) + 1
    return math.prod(count(part) for part in parts_of(node).values())


def pick(node: Any, number: int) -> Any:  # Any: a tree, and the same without choices
    """Combination `number` (from 0) of a tree, as new objects."""
    if isinstance(node, List):
        for one in node.values:
            if number < count(one):
                return pick(one, number)
            number -= count(one)
    if isinstance(node, Range):
        value = node.start + number * (node.step or 1)
        return int(value) if node.dtype == "int" else float(f"{value:.12g}")
    if is_peft_config(node):
        return copy.deepcopy(node)
    parts = parts_of(node)
    chosen = {}
    for name, part in reversed(parts.items()):  # the last part varies fastest
        number, index = divmod(number, count(part))
        chosen[name] = pick(part, index)
    return rebuilt(node, {name: chosen[name] for name in parts})


def rebuilt(node: Any, parts: dict[Any, Any]) -> Any:  # Any: a node of a tree
    """A node of the same kind with other parts; a value without parts as it is."""
    if isinstance(node, Recorded):
        return type(node)(**parts)
    if isinstance(node, dict):
        return parts
    return type(node)(parts.values()) if type(node) in (list, tuple) else node


def chosen(node: Any, choose: Callable[[str, List | Range], Any], path: str = "") -> Any:
    """The combination that `choose` chooses: a position in each List, a number in each Range.

    It is asked with the name of each choice, one below another in their own order; of the values of
    a List only the chosen one is looked into. Any: a tree, and the same without choices.
    """
    if isinstance(node, List):
        at = choose(path, node) if len(node.values) > 1 else 0
        return chosen(node.values[at], choose, _inside(path, node, at))
    if isinstance(node, Range):
        return choose(path, node)
    if is_peft_config(node):
        return copy.deepcopy(node)
    parts = parts_of(node).items()
    return rebuilt(node, {name: chosen(part, choose, join(path, name)) for name, part in parts})


def coordinates(node: Any, value: Any, path: str = "") -> dict[str, float] | None:
    """What `chosen` was told to give this value, by name; None if the tree does not hold it.

    Any: a tree, and a value without choices.
    """
    if isinstance(node, List):
        for at, one in enumerate(node.values):
            inner = coordinates(one, value, _inside(path, node, at))
            if inner is not None:
                return inner if len(node.values) == 1 else {path: at, **inner}
        return None
    if isinstance(node, Range):
        inside = is_number(value) and node.start <= value <= node.end
        return {path: value} if inside else None
    if isinstance(node, Linked):
        return {}
    parts, others = parts_of(node), parts_of(value)
    if not parts and not isinstance(node, Recorded):
        return {} if encode(node) == encode(value) else None
    if isinstance(node, RFModelConfig):  # None is not kept as given, and build adds training_args
        parts = {"training_args": others.get("training_args"), **parts}
        others = {name: others.get(name) for name in {**parts, **others}}
    if type(node) is not type(value) or set(others) != set(parts):
        return None
    found: dict[str, float] = {}
    for name, part in parts.items():
        inner = coordinates(part, others[name], join(path, name))
        if inner is None:
            return None
        found.update(inner)
    return found


def _inside(path: str, node: List, at: int) -> str:
    """The name below which the choices of one of a List's values are."""
    return path if len(node.values) == 1 else f"{path}[{at}]"


class Chosen:
    """A config as the functions of Linked and where= see it: `c["learning_rate"]`.

    Names are those of clone's changes, short or dotted; what was not given has its default.
    """

    def __init__(self, model: RFModelConfig, asked: tuple[str, ...] = ()) -> None:
        self._model, self._asked = model, asked

    def __getitem__(self, name: str) -> Any:  # Any: hyperparameter values
        path = path_of(self._model, name)
        value = getattr(self._model, path[0])
        if len(path) == 2:
            value = value.get(path[1]) if isinstance(value, dict) else getattr(value, path[1])
        return _value(value, ".".join(path), self._model, self._asked)

    def __getattr__(self, name: str) -> Any:  # Any: never returned
        raise ConfigError(f"write c[{name!r}], not c.{name}")


def settled(model: RFModelConfig) -> RFModelConfig:
    """A config with the values of its Linked.

    Raises:
        ConfigError: One of their functions failed, or two ask for each other.
    """
    found: RFModelConfig = _linked(model, "", model)
    return found


def allows(where: Callable[[Any], Any] | None, model: RFModelConfig) -> bool:
    """Whether a config is one of those that a user's where= wants. Any: what functions give.

    Raises:
        ConfigError: The function failed.
    """
    try:
        return where is None or bool(where(Chosen(model)))
    except ConfigError as error:
        raise ConfigError(f"where: {error}") from error
    except Exception as error:
        raise ConfigError(f"where failed with {error!r} on {short(model)}") from error


def _linked(node: Any, path: str, model: RFModelConfig) -> Any:  # Any: a tree
    if isinstance(node, Linked):
        return _value(node, path, model, ())
    if is_peft_config(node) or not any(isinstance(one, Linked) for _, one in walk(node, "")):
        return node
    parts = parts_of(node).items()
    return rebuilt(node, {name: _linked(part, join(path, name), model) for name, part in parts})


def _value(value: Any, path: str, model: RFModelConfig, asked: tuple[str, ...]) -> Any:
    """A value, worked out if it is Linked. Any: hyperparameter values."""
    if not isinstance(value, Linked):
        return value
    if path in asked:
        raise ConfigError(f"Linked {' and '.join((*asked, path))} ask for each other")
    try:
        return value.function(Chosen(model, (*asked, path)))
    except ConfigError as error:
        raise ConfigError(f"Linked {path}: {error}") from error
    except Exception as error:
        raise ConfigError(f"Linked {path} failed with {error!r}") from error


def draws(tree: RFModelConfig | List, rng: random.Random) -> Iterator[RFModelConfig]:
    """Configs in random order: all of them once if they can be counted, else without end."""
    ranges = [node for _, node in walk(tree, "") if isinstance(node, Range)]
    countable = all(one.step or (one.dtype == "int" and not one.log) for one in ranges)
    if countable and count(tree) <= MAX_RUNS:
        for number in rng.sample(range(count(tree)), count(tree)):
            yield pick(tree, number)
        return
    while True:
        settled = _settled(tree, rng)
        yield pick(settled, rng.randrange(count(settled)))


def _settled(node: Any, rng: random.Random) -> Any:  # Any: a tree
    """A tree in which every Range is replaced by a number drawn from it."""
    if isinstance(node, List):
        return List([_settled(one, rng) for one in node.values])
    if isinstance(node, Range):
        return _drawn(node, rng)
    return rebuilt(node, {name: _settled(part, rng) for name, part in parts_of(node).items()})


def _drawn(space: Range, rng: random.Random) -> float:
    if space.step is not None:
        return float(pick(space, rng.randrange(count(space))))
    if space.dtype == "int" and not space.log:
        return rng.randint(int(space.start), int(space.end))
    if not space.log:
        return rng.uniform(space.start, space.end)
    # Whole numbers get the share of the log axis within half a unit of them, the ends too.
    margin = 0.5 if space.dtype == "int" else 0.0
    low, high = math.log(space.start - margin), math.log(space.end + margin)
    value = min(max(math.exp(rng.uniform(low, high)), space.start), space.end)
    return round(value) if space.dtype == "int" else value


def choices_text(tree: RFModelConfig | List) -> str:
    """The choices of a tree after a colon, or nothing if it has none."""
    if isinstance(tree, List) and len(tree.values) > 1:
        parts = []
        for number, one in enumerate(tree.values, 1):
            factors = _factors(one, "")
            parts.append(f"{count(one)} of config {number}" + (f" ({factors})" if factors else ""))
        return ": " + " + ".join(parts)
    factors = _factors(tree, "")
    return f": {factors}" if factors else ""


def _factors(node: object, path: str) -> str:
    """The choices that multiply, such as "2 peft_config x 2 training_args.learning_rate"."""
    if isinstance(node, List) and len(node.values) == 1:
        return _factors(node.values[0], path)
    if isinstance(node, List):
        open_end = any(isinstance(n, Range) and n.step is None for _, n in walk(node, path))
        return f"{'some' if open_end else count(node)} {path or 'configs'}"
    if isinstance(node, Range):
        return f"{count(node)} {path}" if node.step else f"{path} in [{node.start}, {node.end}]"
    texts = [_factors(part, join(path, name)) for name, part in parts_of(node).items()]
    return " x ".join(text for text in texts if text)
