"""`mix`: several tasks as one train data set, with the weights to compare; eval sets by task.

Any: data sets, as `sets.as_dataset` takes them; they share no type.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rapidfire_jupyter.choices import List, short
from rapidfire_jupyter.data.columns import dataset_of
from rapidfire_jupyter.data.layouts import as_table, recognise
from rapidfire_jupyter.data.sets import as_dataset, fingerprint
from rapidfire_jupyter.errors import ConfigError, DataError
from rapidfire_jupyter.mixture import shares
from rapidfire_jupyter.recorded import has_choices


@dataclass(frozen=True, eq=False)
class Mixture:
    """Tasks to be trained together, as `mix` makes it.

    Attributes:
        tasks: Data sets by name.
        weights: Shares of the tasks in that order, or a List of such.
        rows: All tasks' rows, one task after another.
    """

    tasks: Mapping[str, Any]
    weights: list[float] | List
    rows: Any

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each task."""
        return tuple(len(one) for one in self.tasks.values())

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {len(one)} rows" for name, one in self.tasks.items())
        return f"mix({{{sizes}}}, weights={self.weights!r})"


def mix(tasks: Mapping[str, Any], weights: object = None) -> Mixture:
    """Several tasks as one train_dataset, each with its share of the rows that are trained on.

    Args:
        tasks: Data sets by name, each as run_fit takes it, with the same columns.
        weights: A number for each task, in their order or by name; only their proportion counts,
            and it is kept to one row in 10,000. `List([[0.5, 0.5], [0.8, 0.2]])` compares several.
            None takes the numbers of rows.

    Raises:
        ConfigError: Names or weights cannot be used.
        DataError: A task cannot be trained on, or tasks do not fit together.
    """
    if not isinstance(tasks, Mapping) or not tasks:
        raise ConfigError(
            f"mix takes data sets by name, got {short(tasks)}; write "
            'mix({"support": rows, "code": others}, weights=[0.5, 0.5])'
        )
    names = _checked_names(tasks)
    known = {name: as_dataset(one, f"task {name!r}") for name, one in tasks.items()}
    for name, one in known.items():
        if not hasattr(one, "__len__"):
            raise DataError(
                f"task {name!r} is a stream; a mixture starts tasks again, so give it as a Dataset"
            )
    given = [len(one) for one in known.values()] if weights is None else weights
    return Mixture(known, _checked_weights(given, names), joined(known))


def eval_sets(data: Any) -> Any:
    """An eval data set as run_fit takes it; of a mixture, or a dict by name, one for each name.

    Raises:
        ConfigError: A name cannot be a metric's.
        DataError: One of them cannot be evaluated on.
    """
    if isinstance(data, Mixture):
        return dict(data.tasks)
    if type(data) is not dict or not data:
        return as_dataset(data, "eval_dataset")
    _checked_names(data)
    return {name: as_dataset(one, called(name)) for name, one in data.items()}


def by_name(data: Any) -> dict[str, Any]:
    """Eval data sets by the name of their task; a single one by an empty name, none for None."""
    if data is None:
        return {}
    return data if isinstance(data, dict) else {"": data}


def called(name: str) -> str:
    """How messages call the eval data set of a task."""
    return f"eval_dataset[{name!r}]" if name else "eval_dataset"


def fingerprints(data: Any) -> Any:
    """Digests of an eval data set, or of each by name."""
    if isinstance(data, dict):
        return {name: fingerprint(one) for name, one in data.items()}
    return fingerprint(data)


def joined(tasks: Mapping[str, Any]) -> Any:
    """Data sets by name as one, one after another.

    Raises:
        DataError: Their columns do not fit together.
    """
    from datasets import concatenate_datasets

    try:
        return concatenate_datasets(list(tasks.values()))
    except ValueError:  # types that differ, perhaps in their width only
        tables = [as_table(one) for one in tasks.values()]
    try:
        return dataset_of(pa.concat_tables(tables, promote_options="permissive"))
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        why = str(error).strip().splitlines()[0]
        raise DataError(
            f"tasks {', '.join(map(repr, tasks))} do not fit together ({why}); give them the same "
            "columns of the same types"
        ) from error


def share_of(count: int, sets: Sequence[str] | Mapping[str, Any]) -> int:
    """How many of `count` rows each of several data sets gets, at least one; 0 stays all."""
    return count if not count or len(sets) < 2 else max(1, count // len(sets))


def check_layouts(sets: Mapping[str, Any], rows: str) -> None:
    """Refuse tasks whose rows are not of one layout.

    Args:
        sets: Data sets by task.
        rows: The trainer whose layouts they may have.

    Raises:
        DataError: They are not.
    """
    found = {name: recognise(one, rows, what=f"task {name!r}") for name, one in sets.items()}
    kinds = {
        name: (one.kind.replace("_", " "), "messages" if one.conversational else "texts")
        for name, one in found.items()
    }
    first, *others = kinds
    for name in others:
        if kinds[name] != kinds[first]:
            mine, theirs = " of ".join(kinds[name]), " of ".join(kinds[first])
            raise DataError(
                f"tasks must have one layout: {first!r} is {theirs}, {name!r} is {mine}; bring one "
                "to the columns of the other, or give a formatting_func"
            )


def _checked_names(tasks: Mapping[str, Any]) -> list[str]:
    for name in tasks:
        if not isinstance(name, str) or not re.fullmatch(r"[^\W\d_][\w-]{0,39}", name):
            raise ConfigError(
                f"a task's name is a letter and up to 39 letters, digits, - or _, got {short(name)}"
            )
    return list(tasks)


def _checked_weights(weights: object, names: list[str]) -> list[float] | List:
    if isinstance(weights, List):
        return List([_checked_weights(one, names) for one in weights.values])
    if has_choices(weights):
        raise ConfigError(
            f"weights are compared as a whole: List([[0.5, 0.5], [0.8, 0.2]]), got {short(weights)}"
        )
    return shares(weights, names)
