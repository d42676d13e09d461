"""Streams: each run reads one of its own, goes on in it where it was, and what cannot be repeated.

A stream of `datasets` keeps its place in objects that everything made from it shares: two runs that
read one stream in turns lose rows. So each run gets a copy of these objects. A checkpoint holds the
pass and the rows trained on in it; a resume reads the stream again up to there. The state that a
stream itself gives is not used: it lacks what a shuffle buffer holds.

Any: streams, trainers, and the private nodes a stream is made of.
"""

import copy
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_SEED_BITS = 64  # a seed that numpy takes from the system has 128


def is_stream(dataset: Any) -> bool:
    """Whether a data set is read from its start only, and has no length."""
    return dataset is not None and not hasattr(dataset, "__len__")


def take_own(trainer: Any) -> None:
    """Give a trainer streams whose place nobody else moves."""
    trainer.train_dataset = _own(trainer.train_dataset)
    evaluation = trainer.eval_dataset
    if isinstance(evaluation, dict):
        trainer.eval_dataset = {name: _own(one) for name, one in evaluation.items()}
    else:
        trainer.eval_dataset = _own(evaluation)


@dataclass
class Place:
    """Where a run is in its stream.

    Attributes:
        passes: Passes through the stream that are done.
        rows: Rows of this pass that were trained on when it was begun here, at `step`.
        began: A digest of the first batch, to know the stream by.
        before: The end of the pass before this one, for a run that is brought back to it.
    """

    passes: int = 0
    rows: int = 0
    began: str = ""
    step: int = 0
    before: dict[str, Any] | None = None

    def begin_pass(self, number: int, step: int, rows_per_step: int) -> None:
        """A pass is begun, or gone on with if it is the one this place is in."""
        if number != self.passes:
            self.before = self.at(step, rows_per_step)
            self.passes, self.rows = number, 0
        self.step = step

    def at(self, step: int, rows_per_step: int) -> dict[str, Any]:
        """This place after a step, as a checkpoint holds it: before its first step, in the last."""
        if self.before is not None and step <= self.step:
            return self.before
        rows = self.rows + (step - self.step) * rows_per_step
        return {"passes": self.passes, "rows": rows, "began": self.began}


def place(extra: dict[str, Any], step: int, rows_per_step: int) -> Place:
    """The place that a checkpoint tells; one pass, if it does not tell."""
    told = extra.get("stream", {"rows": step * rows_per_step})
    return Place(**told, step=step)


def digest(batch: Any) -> str:
    """What a batch is known by. Any: JSON values."""
    return hashlib.sha256(json.dumps(batch).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def reasons(trainer: Any, batch: Any, again: Any, began: str) -> Iterator[str]:
    """Why a run on a stream is not exact.

    Args:
        batch: The stream's first batch.
        again: The same, read once more.
        began: The digest of what was the first batch when the run was begun; empty if it begins.
    """
    if digest(batch) != digest(again):
        yield "its stream gives other rows each time it is read; seed what it draws"
    elif any(map(_unseeded, _nodes(trainer.train_dataset))):
        yield "its stream is shuffled without a seed; give shuffle(seed=...)"
    elif began and began != digest(batch):
        yield "its stream gives other rows than when the run began"


def _own(dataset: Any) -> Any:
    if not hasattr(dataset, "_ex_iterable"):
        return dataset
    # As its own methods make one of another; copy.copy would share everything.
    return type(dataset)(
        ex_iterable=_copied(dataset._ex_iterable),
        info=dataset._info.copy(),
        split=dataset._split,
        formatting=dataset._formatting,
        distributed=copy.deepcopy(dataset._distributed),
        token_per_repo_id=dataset._token_per_repo_id,
    )


def _is_node(value: Any) -> bool:
    return hasattr(value, "_init_state_dict")


def _copied(node: Any) -> Any:
    """A node with copies of the nodes below it; what they read and call is shared."""
    made = copy.copy(node)
    for name, value in vars(node).items():
        if _is_node(value):
            setattr(made, name, _copied(value))
        elif isinstance(value, list | tuple) and any(map(_is_node, value)):
            below = [_copied(one) if _is_node(one) else one for one in value]
            setattr(made, name, type(value)(below))
    return made


def _nodes(dataset: Any) -> Iterator[Any]:
    """All nodes of a stream."""
    left = [dataset._ex_iterable] if hasattr(dataset, "_ex_iterable") else []
    while left:
        node = left.pop()
        yield node
        for value in vars(node).values():
            inside = value if isinstance(value, list | tuple) else [value]
            left += [one for one in inside if _is_node(one)]


def _unseeded(node: Any) -> bool:
    """Whether a node draws from a generator whose seed came from the system."""
    generator = getattr(node, "generator", None)
    seeds = getattr(getattr(generator, "bit_generator", None), "seed_seq", None)
    entropy = getattr(seeds, "entropy", 0)
    return isinstance(entropy, int) and entropy.bit_length() > _SEED_BITS
