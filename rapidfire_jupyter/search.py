"""Search spaces: from a config with choices to the list of run configs it stands for.

A space is a tree of `List`, `Range`, configs and plain containers. Two functions carry the search:
`_count` says how many combinations a tree holds and `_pick` makes the one with a given number; the
grid takes all numbers, random search takes some. Nothing here trains or looks at results.
"""

import copy
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from rapidfire_jupyter.choices import List, Range
from rapidfire_jupyter.config import (
    RFModelConfig,
    RunConfig,
    check_trainer_type,
    is_peft_config,
    known_trainer_type,
)
from rapidfire_jupyter.encoding import same_key
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.recorded import Recorded

MAX_RUNS = 10_000
MAX_REPEATS = 1_000  # draws in a row without a new config, until the space counts as used up


@runtime_checkable
class Search(Protocol):
    """What run_fit takes: the runs to train, and a line that says where they come from."""

    def runs(self) -> list[RunConfig]:
        """The config of each run, in the order of their ids."""

    def describe(self) -> str:
        """How many runs come, and of which choices."""


@dataclass(frozen=True)
class RFGridSearch:
    """Every combination of every List, and of every Range that has a step.

    The last field varies fastest; fields stand in the order of RFModelConfig's arguments, and
    inside a config or dict in the order they were given.

    Args:
        configs: An RFModelConfig, or a (nested) list or List of them.
        trainer_type: "SFT", "DPO", "GRPO", "RLOO", "KTO", "Reward", "Distillation" or a trainer
            class; None takes what each config's training_args is for.
    """

    configs: Any  # Any: RFModelConfig or nested lists of it
    trainer_type: str | type | None = "SFT"

    def __post_init__(self) -> None:
        _set_up(self)
        for path, node in _walk(self.configs, ""):
            if isinstance(node, Range) and node.step is None:
                raise ConfigError(
                    f"a grid cannot enumerate {path}={node}; use step=, or RFRandomSearch"
                )
        if _count(self.configs) > MAX_RUNS:
            raise ConfigError(
                f"this grid has {_count(self.configs)} runs, more than {MAX_RUNS}; "
                "use RFRandomSearch(num_runs=...)"
            )

    def runs(self) -> list[RunConfig]:
        """The config of each run; combinations that come twice are kept once."""
        kept: dict[Any, RunConfig] = {}  # Any: keys of same_key
        for number in range(_count(self.configs)):
            config = _pick(self.configs, number).build(trainer_type=self.trainer_type)
            kept.setdefault(same_key(config), config)
        return list(kept.values())

    @property
    def duplicates(self) -> int:
        """How many combinations were left out because an equal one came before."""
        return _count(self.configs) - len(self.runs())

    def describe(self) -> str:
        """Such as "4 runs: 2 peft_config x 2 training_args.learning_rate"."""
        total, runs = _count(self.configs), len(self.runs())
        left_out = f"; {total - runs} duplicate(s) left out" if total > runs else ""
        return _runs(runs) + _of(self.configs) + left_out


@dataclass(frozen=True)
class RFRandomSearch:
    """Distinct configs drawn from the space, each combination equally likely.

    Args:
        configs: An RFModelConfig, or a (nested) list or List of them.
        trainer_type: "SFT", "DPO", "GRPO", "RLOO", "KTO", "Reward", "Distillation" or a trainer
            class; None takes what each config's training_args is for.
        num_runs: How many to draw.
        seed: The same seed draws the same configs; no other random stream is read or moved.
    """

    configs: Any  # Any: RFModelConfig or nested lists of it
    trainer_type: str | type | None = "SFT"
    num_runs: int = 1
    seed: int = 42

    def __post_init__(self) -> None:
        for name, least in (("num_runs", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(
                    f"RFRandomSearch: {name} must be an int >= {least}, got {value!r}"
                )
        _set_up(self)

    def runs(self) -> list[RunConfig]:
        """The config of each run, in the order drawn.

        Raises:
            ConfigError: The space holds fewer distinct configs than `num_runs`.
        """
        kept: dict[Any, RunConfig] = {}  # Any: keys of same_key
        repeats = 0
        for drawn in _draws(self.configs, random.Random(self.seed)):
            config = drawn.build(trainer_type=self.trainer_type)
            key = same_key(config)
            repeats = repeats + 1 if key in kept else 0
            kept.setdefault(key, config)
            if len(kept) == self.num_runs:
                return list(kept.values())
            if repeats == MAX_REPEATS:
                break
        raise ConfigError(
            f"num_runs={self.num_runs} asked, but the space holds only {len(kept)} distinct "
            f"config(s); lower num_runs or add values{_of(self.configs)}"
        )

    def describe(self) -> str:
        """Such as "5 runs drawn with seed 42 from 2 peft_config x a range of ..."."""
        return f"{_runs(self.num_runs)} drawn with seed {self.seed}{_of(self.configs)}"


@dataclass(frozen=True)
class Searches:
    """Several searches as one, each with its own trainer type; their runs in that order."""

    parts: tuple[Search, ...]

    def runs(self) -> list[RunConfig]:
        """The config of each run; those that come twice are kept once."""
        kept: dict[Any, RunConfig] = {}  # Any: keys of same_key
        for part in self.parts:
            for config in part.runs():
                kept.setdefault(same_key(config), config)
        return list(kept.values())

    def describe(self) -> str:
        """Such as "3 runs: 2 runs: 2 training_args.beta; 1 run"."""
        return f"{_runs(len(self.runs()))}: {'; '.join(part.describe() for part in self.parts)}"


def as_search(config_group: object, trainer_type: str | type | None = None) -> Search:
    """The search that a config group is: one already, a list of them, or a grid over configs."""
    if isinstance(config_group, list | tuple) and any(isinstance(c, Search) for c in config_group):
        return Searches(tuple(as_search(part, trainer_type) for part in config_group))
    if not isinstance(config_group, Search):
        return RFGridSearch(config_group, trainer_type)
    own = getattr(config_group, "trainer_type", None)
    if trainer_type is not None and known_trainer_type(trainer_type) != own:
        raise ConfigError(
            f"trainer_type={trainer_type!r} contradicts the search's {own!r}; give it in one place"
        )
    return config_group


def as_runs(config_group: object, trainer_type: str | type | None = None) -> list[RunConfig]:
    """The run configs that a config group stands for."""
    return as_search(config_group, trainer_type).runs()


# --------------------------------------------------------------------------------- trees of choices


def _set_up(search: RFGridSearch | RFRandomSearch) -> None:
    """Take a search's configs as a tree of our own and check its trainer type against them."""
    tree = _tree(search.configs)
    kind = None if search.trainer_type is None else known_trainer_type(search.trainer_type)
    for _, node in _walk(tree, ""):
        if isinstance(node, RFModelConfig) and kind is not None:
            check_trainer_type(node, kind)
    object.__setattr__(search, "configs", tree)
    object.__setattr__(search, "trainer_type", kind)


def _tree(configs: object) -> RFModelConfig | List:
    if isinstance(configs, RFModelConfig):
        return configs
    if not isinstance(configs, (List, list, tuple)):
        raise ConfigError(
            f"configs must be RFModelConfig or a list of them, got {type(configs).__name__}; "
            "write RFModelConfig(model_name=..., training_args=...)"
        )
    return List([_tree(one) for one in (configs.values if isinstance(configs, List) else configs)])


def _parts(node: object) -> dict[Any, object]:  # Any: argument names, dict keys, positions
    """What a config or container holds, by name or position; nothing for any other value."""
    if isinstance(node, Recorded):
        return dict(node.given)
    if isinstance(node, dict):
        return node
    if isinstance(node, (list, tuple)) and type(node) in (list, tuple):
        return dict(enumerate(node))
    return {}


def _walk(node: object, path: str) -> Iterator[tuple[str, object]]:
    """A tree's nodes with their dotted names, top down."""
    yield path, node
    if isinstance(node, List):
        for one in node.values:
            yield from _walk(one, path)
    for name, part in _parts(node).items():
        yield from _walk(part, _join(path, name))


def _join(path: str, name: object) -> str:
    if isinstance(name, int):
        return f"{path}[{name}]"
    return f"{path}.{name}" if path else str(name)


def _count(node: object) -> int:
    """How many combinations a tree holds; a Range without step counts its whole numbers."""
    if isinstance(node, List):
        return sum(_count(one) for one in node.values)
    if isinstance(node, Range):
        return math.floor((node.end - node.start) / (node.step or 1) + 1e-9) + 1
    return math.prod(_count(part) for part in _parts(node).values())


def _pick(node: Any, number: int) -> Any:  # Any: a tree, and the same without choices
    """Combination `number` (from 0) of a tree, as new objects."""
    if isinstance(node, List):
        for one in node.values:
            if number < _count(one):
                return _pick(one, number)
            number -= _count(one)
    if isinstance(node, Range):
        value = node.start + number * (node.step or 1)
        return int(value) if node.dtype == "int" else float(f"{value:.12g}")
    if is_peft_config(node):
        return copy.deepcopy(node)
    parts = _parts(node)
    chosen = {}
    for name, part in reversed(parts.items()):  # the last part varies fastest
        number, index = divmod(number, _count(part))
        chosen[name] = _pick(part, index)
    return _rebuilt(node, {name: chosen[name] for name in parts})


def _rebuilt(node: Any, parts: dict[Any, Any]) -> Any:  # Any: a node of a tree
    """A node of the same kind with other parts; a value without parts as it is."""
    if isinstance(node, Recorded):
        return type(node)(**parts)
    if isinstance(node, dict):
        return parts
    return type(node)(parts.values()) if type(node) in (list, tuple) else node


def _draws(tree: RFModelConfig | List, rng: random.Random) -> Iterator[RFModelConfig]:
    """Configs in random order: all of them once if they can be counted, else without end."""
    ranges = [node for _, node in _walk(tree, "") if isinstance(node, Range)]
    countable = all(one.step or (one.dtype == "int" and not one.log) for one in ranges)
    if countable and _count(tree) <= MAX_RUNS:
        for number in rng.sample(range(_count(tree)), _count(tree)):
            yield _pick(tree, number)
        return
    while True:
        settled = _settled(tree, rng)
        yield _pick(settled, rng.randrange(_count(settled)))


def _settled(node: Any, rng: random.Random) -> Any:  # Any: a tree
    """A tree in which every Range is replaced by a number drawn from it."""
    if isinstance(node, List):
        return List([_settled(one, rng) for one in node.values])
    if isinstance(node, Range):
        return _drawn(node, rng)
    return _rebuilt(node, {name: _settled(part, rng) for name, part in _parts(node).items()})


def _drawn(space: Range, rng: random.Random) -> float:
    if space.step is not None:
        return float(_pick(space, rng.randrange(_count(space))))
    if space.dtype == "int" and not space.log:
        return rng.randint(int(space.start), int(space.end))
    if not space.log:
        return rng.uniform(space.start, space.end)
    # Whole numbers get the share of the log axis within half a unit of them, the ends too.
    margin = 0.5 if space.dtype == "int" else 0.0
    low, high = math.log(space.start - margin), math.log(space.end + margin)
    value = min(max(math.exp(rng.uniform(low, high)), space.start), space.end)
    return round(value) if space.dtype == "int" else value


def _runs(number: int) -> str:
    return f"{number} run{'' if number == 1 else 's'}"


def _of(tree: RFModelConfig | List) -> str:
    """The choices of a tree after a colon, or nothing if it has none."""
    if isinstance(tree, List) and len(tree.values) > 1:
        parts = []
        for number, one in enumerate(tree.values, 1):
            factors = _factors(one, "")
            parts.append(f"{_count(one)} of config {number}" + (f" ({factors})" if factors else ""))
        return ": " + " + ".join(parts)
    factors = _factors(tree, "")
    return f": {factors}" if factors else ""


def _factors(node: object, path: str) -> str:
    """The choices that multiply, such as "2 peft_config x 2 training_args.learning_rate"."""
    if isinstance(node, List) and len(node.values) == 1:
        return _factors(node.values[0], path)
    if isinstance(node, List):
        open_end = any(isinstance(n, Range) and n.step is None for _, n in _walk(node, path))
        return f"{'some' if open_end else _count(node)} {path or 'configs'}"
    if isinstance(node, Range):
        count = f"{_count(node)} {path}" if node.step else f"{path} in [{node.start}, {node.end}]"
        return count
    texts = [_factors(part, _join(path, name)) for name, part in _parts(node).items()]
    return " x ".join(text for text in texts if text)
