"""Searches: which points of a space become runs. A grid takes all, a random search draws some."""

import functools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from rapidfire_jupyter.choices import List, Range, short
from rapidfire_jupyter.config import (
    RFModelConfig,
    RunConfig,
    check_trainer_type,
    known_trainer_type,
    refuse_unknown,
)
from rapidfire_jupyter.encoding import same_key
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.space import (
    MAX_RUNS,
    allows,
    choices_text,
    count,
    draws,
    pick,
    settled,
    tree_of,
    walk,
)

MAX_REPEATS = 1_000  # draws in a row without a new config, until the space counts as used up

_C = TypeVar("_C")
Where = Callable[[Any], Any] | None  # Any: space.Chosen in, anything true or false out


@runtime_checkable
class Search(Protocol):
    """What run_fit takes: the runs to train, and a line that says where they come from."""

    def runs(self) -> list[RunConfig]:
        """The config of each run, in the order of their ids."""

    def describe(self) -> str:
        """How many runs come, and of which choices."""


def told_where(cls: type[_C]) -> type[_C]:
    """A dataclass that says of an argument it does not have where that belongs."""
    made, names = cls.__init__, [field.name for field in fields(cls)]  # type: ignore[arg-type]

    @functools.wraps(made)
    def init(self: Any, *args: Any, **given: Any) -> None:  # Any: a dataclass and its values
        refuse_unknown(cls.__name__, {k: v for k, v in given.items() if k not in names}, names)
        made(self, *args, **given)

    cls.__init__ = init  # type: ignore[method-assign]
    return cls


@told_where
@dataclass(frozen=True)
class RFGridSearch:
    """Every combination of every List, and of every Range that has a step.

    The last field varies fastest; fields stand in the order of RFModelConfig's arguments, and
    inside a config or dict in the order they were given.

    Args:
        configs: An RFModelConfig, or a (nested) list or List of them.
        trainer_type: "SFT", "DPO", "GRPO", "RLOO", "KTO", "Reward", "Distillation", "MTL" (SFT on a
            `mix`) or a trainer class; None takes what each config's training_args is for.
        where: Combinations for which this function gives something false are left out; it reads
            values as `c["learning_rate"]`, by the names that clone's changes have.
    """

    configs: Any  # Any: RFModelConfig or nested lists of it
    trainer_type: str | type | None = "SFT"
    where: Where = None

    def __post_init__(self) -> None:
        set_up(self)
        for path, node in walk(self.configs, ""):
            if isinstance(node, Range) and node.step is None:
                raise ConfigError(
                    f"a grid cannot enumerate {path}={node}; use step=, or RFRandomSearch"
                )
        if count(self.configs) > MAX_RUNS:
            raise ConfigError(
                f"this grid has {count(self.configs)} runs, more than {MAX_RUNS}; "
                "use RFRandomSearch(num_runs=...)"
            )

    def runs(self) -> list[RunConfig]:
        """The config of each run; combinations that come twice are kept once.

        Raises:
            ConfigError: `where` leaves nothing, or a function of the user's failed.
        """
        allowed = self._allowed()
        if not allowed:
            raise ConfigError(
                f"where leaves none of {count(self.configs)} combinations"
                + choices_text(self.configs)
            )
        kept: dict[Any, RunConfig] = {}  # Any: keys of same_key
        for config in allowed:
            kept.setdefault(same_key(config), config)
        return list(kept.values())

    def _allowed(self) -> list[RunConfig]:
        models = (settled(pick(self.configs, i)) for i in range(count(self.configs)))
        return [m.build(trainer_type=self.trainer_type) for m in models if allows(self.where, m)]

    @property
    def duplicates(self) -> int:
        """How many combinations were left out because an equal one came before."""
        return len(self._allowed()) - len(self.runs())

    def describe(self) -> str:
        """Such as "4 runs: 2 peft_config x 2 training_args.learning_rate"."""
        total, allowed, runs = count(self.configs), len(self._allowed()), len(self.runs())
        refused = f"; {total - allowed} left out by where" if total > allowed else ""
        doubled = f"; {allowed - runs} duplicate(s) left out" if allowed > runs else ""
        return runs_text(runs) + choices_text(self.configs) + refused + doubled


@told_where
@dataclass(frozen=True)
class RFRandomSearch:
    """Distinct configs drawn from the space, each combination equally likely.

    Args:
        configs: An RFModelConfig, or a (nested) list or List of them.
        trainer_type: "SFT", "DPO", "GRPO", "RLOO", "KTO", "Reward", "Distillation", "MTL" (SFT on a
            `mix`) or a trainer class; None takes what each config's training_args is for.
        num_runs: How many to draw.
        seed: The same seed draws the same configs; no other random stream is read or moved.
        where: Draws for which this function gives something false are made again; see RFGridSearch.
    """

    configs: Any  # Any: RFModelConfig or nested lists of it
    trainer_type: str | type | None = "SFT"
    num_runs: int = 1
    seed: int = 42
    where: Where = None

    def __post_init__(self) -> None:
        check_whole(self, num_runs=1, seed=0)
        set_up(self)

    def runs(self) -> list[RunConfig]:
        """The config of each run, in the order drawn.

        Raises:
            ConfigError: The space holds fewer distinct configs than `num_runs`.
        """
        kept: dict[Any, RunConfig] = {}  # Any: keys of same_key
        repeats = 0
        for drawn in draws(self.configs, random.Random(self.seed)):
            model = settled(drawn)
            config = model.build(trainer_type=self.trainer_type)
            key = same_key(config)
            new = key not in kept and allows(self.where, model)
            repeats = 0 if new else repeats + 1
            if new:
                kept[key] = config
            if len(kept) == self.num_runs:
                return list(kept.values())
            if repeats == MAX_REPEATS:
                break
        raise ConfigError(
            f"num_runs={self.num_runs} asked, but the space holds only {len(kept)} distinct "
            f"config(s){' that where allows' if self.where else ''}; lower num_runs or add values"
            + choices_text(self.configs)
        )

    def describe(self) -> str:
        """Such as "5 runs drawn with seed 42 from 2 peft_config x a range of ..."."""
        return f"{runs_text(self.num_runs)} drawn with seed {self.seed}" + choices_text(
            self.configs
        )


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
        return f"{runs_text(len(self.runs()))}: {'; '.join(part.describe() for part in self.parts)}"


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


def mixed(search: Search, mixture: Mapping[str, object]) -> Search:
    """A search whose configs train on a mixture; its weights are one choice more.

    Args:
        mixture: Names of `tasks` and `weights`, as a config's `mixture` has them.

    Raises:
        ConfigError: A config has a mixture of its own.
    """
    if isinstance(search, Searches):
        return Searches(tuple(mixed(part, mixture) for part in search.parts))
    return replace(cast(RFGridSearch, search), configs=_mixed(cast(Any, search).configs, mixture))


def _mixed(tree: RFModelConfig | List, mixture: Mapping[str, object]) -> RFModelConfig | List:
    if isinstance(tree, List):
        return List([_mixed(cast(RFModelConfig, one), mixture) for one in tree.values])
    if tree.mixture is not None:
        raise ConfigError("weights are given in one place: mix({...}, weights=[...])")
    return tree.copy(mixture=dict(mixture))


def as_runs(config_group: object, trainer_type: str | type | None = None) -> list[RunConfig]:
    """The run configs that a config group stands for."""
    return as_search(config_group, trainer_type).runs()


def set_up(search: Any) -> None:
    """Take a search's configs as a tree of our own, and check its trainer type and where.

    Any: a frozen dataclass with the fields of RFGridSearch.
    """
    tree = tree_of(search.configs)
    kind = None if search.trainer_type is None else known_trainer_type(search.trainer_type)
    for _, node in walk(tree, ""):
        if isinstance(node, RFModelConfig) and kind is not None:
            check_trainer_type(node, kind)
    if search.where is not None and not callable(search.where):
        raise ConfigError(
            f"where must be a function of the config, got {short(search.where)}; write "
            'where=lambda c: c["r"] < 64 or c["learning_rate"] < 1e-3'
        )
    object.__setattr__(search, "configs", tree)
    object.__setattr__(search, "trainer_type", kind)


def check_whole(search: Any, **least: int) -> None:
    """Refuse arguments that are no whole numbers, or too small. Any: a search."""
    for name, lowest in least.items():
        value = getattr(search, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
            raise ConfigError(
                f"{type(search).__name__}: {name} must be a whole number >= {lowest}, got {value!r}"
            )


def runs_text(number: int) -> str:
    """Such as "1 run" or "4 runs"."""
    return f"{number} run{'' if number == 1 else 's'}"


def batch_note(runs: Sequence[RunConfig]) -> str:
    """A hint if batch sizes are compared at learning rates that favour one of them; "" if not.

    The rule of thumb for Adam is a learning rate that grows with the root of the batch size
    (Malladi et al., NeurIPS 2022). It is broken badly if no two runs of the smallest and the
    largest batch are within a factor of 2 of it.
    """
    kinds = dict.fromkeys(run.trainer_type for run in runs)
    notes = (_batch_note([run for run in runs if run.trainer_type == kind]) for kind in kinds)
    return next(filter(None, notes), "")


def _batch_note(runs: Sequence[RunConfig]) -> str:
    """The same for runs of one trainer type: others have other learning rates."""
    found: dict[int, set[float]] = {}
    for run in runs:
        args = run.model.training_args
        rows = args.per_device_train_batch_size * args.gradient_accumulation_steps
        found.setdefault(rows, set()).add(args.learning_rate)
    small, large = min(found), max(found)
    wanted = math.sqrt(large / small)
    apart = min(abs(math.log(b / a / wanted)) for a in found[small] for b in found[large])
    if apart <= math.log(2):
        return ""
    return (
        f"batch sizes {small} and {large} are compared at learning rates a factor of "
        f"{math.exp(apart):.2g} off the rule of thumb (learning rate as the root of the batch size,"
        f" here x {wanted:.2g}); write learning_rate=Linked(lambda c: "
        f'{min(found[small]) / math.sqrt(small):.2g} * c["per_device_train_batch_size"] ** 0.5)'
    )
