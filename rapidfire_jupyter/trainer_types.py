"""Which trainers there are, and in what each differs from the others.

The seven of TRL's stable API go by name, and so does MTL: SFT on a mixture of tasks. Any other
class of TRL, and any subclass, is given as an object, and what must be known of it is read off the
class. Nothing is imported here.
"""

import sys
from dataclasses import dataclass
from typing import Any

from rapidfire_jupyter.arguments import closest
from rapidfire_jupyter.errors import ConfigError


@dataclass(frozen=True)
class TrainerType:
    """A kind of trainer, and its facts.

    Attributes:
        name: As it is written and shown: the class's name without "Trainer".
        rows: The trainer whose data layouts it takes (`data.kinds`); None: rows as they are.
        generates: It answers prompts itself and trains on that: its batches are its own, columns
            beside the prompt are kept, and its loss does not tell how well it learns.
        own_order: Its own sampler orders the rows, so chunks are shares of steps.
        rewarded: It must be given reward functions.
        pairs: A batch holds all chosen answers, then all rejected ones.
        batch_prepared: What it makes of the rows depends on its batch size (KTO's KL term).
        mixed: It must be given a mixture of tasks.
        cls: The class, where it was given as an object.
    """

    name: str
    rows: str | None
    generates: bool = False
    own_order: bool = False
    rewarded: bool = False
    pairs: bool = False
    batch_prepared: bool = False
    mixed: bool = False
    cls: type | None = None


TRAINERS: dict[str, TrainerType] = {
    kind.name: kind
    for kind in (
        TrainerType("SFT", "SFT"),
        TrainerType("DPO", "DPO", pairs=True),
        TrainerType("GRPO", "GRPO", generates=True, own_order=True, rewarded=True),
        TrainerType("RLOO", "RLOO", generates=True, own_order=True, rewarded=True),
        TrainerType("KTO", "KTO", own_order=True, batch_prepared=True),
        TrainerType("Reward", "Reward", pairs=True),
        TrainerType("Distillation", "Distillation", generates=True, own_order=True),
        TrainerType("MTL", "SFT", mixed=True),
    )
}

# Layouts of the experimental trainers that are no subclass of one of the seven.
_ROWS = {"ORPO": "DPO", "CPO": "DPO", "TPO": None, "GKD": "GKD", "OnlineDPO": "GRPO"}
_ORDERING = ("_get_train_sampler", "train")  # who begins training may leave rows out, as A2PO does
_GENERATING = ("_generate", "_generate_single_turn")
_GONE = {
    "PPO": "TRL has no PPO any more; RLOO and GRPO take its place",
    "BCO": "TRL has no BCO any more; KTO learns from the same rows",
    "PRM": "TRL has no PRM trainer any more; give a subclass of transformers.Trainer as an object",
}


def trainer_type_of(value: object) -> TrainerType:
    """The facts of a trainer type: of a name in any case, or of a class.

    Raises:
        ConfigError: There is no such trainer, or the class is none.
    """
    if isinstance(value, type):
        name = value.__name__.removesuffix("Trainer")
        ours = value.__module__ == f"trl.trainer.{name.lower()}_trainer" and name in TRAINERS
        return TRAINERS[name] if ours else _facts_of(value)
    names = {name.upper(): kind for name, kind in TRAINERS.items()}
    word = str(value).strip().upper().removesuffix("TRAINER")
    if isinstance(value, str) and word in names:
        return names[word]
    raise ConfigError(
        f"trainer_type must be one of {', '.join(TRAINERS)} or a trainer class, got {value!r}"
        + _hint(word)
    )


def _hint(word: str) -> str:
    if word in _GONE:
        return f"; {_GONE[word]}"
    for name in _ROWS:
        if name.upper() == word:
            return (
                f"; from trl.experimental.{_module(name)} import {name}Trainer and give "
                f"trainer_type={name}Trainer"
            )
    return closest(word, [name.upper() for name in TRAINERS])


def _module(name: str) -> str:
    return "online_dpo" if name == "OnlineDPO" else name.lower()


def _facts_of(cls: type) -> TrainerType:
    """What a trainer class is like, read off it: the nearest known ancestor, and its methods."""
    own: list[type] = []
    for one in cls.__mro__:
        if one.__name__ == "Trainer" and one.__module__.startswith("transformers."):
            break
        own.append(one)
    else:
        raise ConfigError(
            f"trainer_type={cls.__name__} is no subclass of transformers.Trainer; give one of "
            f"{', '.join(TRAINERS)}, or a trainer class of TRL"
        )
    name = cls.__name__.removesuffix("Trainer") or cls.__name__
    words = [one.__name__.removesuffix("Trainer") for one in own]
    nearest = next((word for word in words if word in TRAINERS or word in _ROWS), None)
    base = TRAINERS.get(nearest or "")
    generates = any(hasattr(cls, method) for method in _GENERATING)
    return TrainerType(
        name,
        base.rows if base else _ROWS.get(nearest or ""),
        generates=generates,
        own_order=any(name in vars(one) for one in own for name in _ORDERING),
        rewarded=base is not None and base.rewarded,
        pairs=base is not None and base.pairs,
        batch_prepared=base is None or base.batch_prepared,
        cls=cls,
    )


def trainer_beside(config_class: type) -> type | None:
    """The trainer class that stands beside a config class: ORPOTrainer beside ORPOConfig."""
    return _beside(config_class, "Config", "Trainer")


def config_class_of(kind: TrainerType) -> type | None:
    """The config class of a trainer class: its own namesake, else of its nearest ancestor."""
    ancestors = kind.cls.__mro__ if kind.cls is not None else ()
    found = (_beside(one, "Trainer", "Config") for one in ancestors)
    return next((one for one in found if one is not None), None)


def _beside(one: type, ending: str, other: str) -> type | None:
    """The class of the same name but for its ending, in the same module or its package."""
    name = one.__name__.removesuffix(ending) + other
    for module in (one.__module__, one.__module__.rpartition(".")[0]):
        found: Any = getattr(sys.modules.get(module), name, None)  # Any: a module's attribute
        if isinstance(found, type):
            return found
    return None
