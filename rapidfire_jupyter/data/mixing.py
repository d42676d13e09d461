"""The order of a mixture's rows: whose turn it is, and which of its rows comes.

A pure function of sizes, weights over time and a seed, without any draw between: the same before
and after a restart. `run.script()` writes these very functions into a plain TRL script.
"""

from collections.abc import Iterable, Sequence


def tasks_rows(sizes: Sequence[int], rows: Iterable[int]) -> list[list[int]]:
    """Row numbers by task, in order; the rows of a task follow those of the one before it.

    Args:
        sizes: Rows of each task.
        rows: Those that were not dropped.
    """
    kept, found, start = set(rows), [], 0
    for size in sizes:
        found.append([row for row in range(start, start + size) if row in kept])
        start += size
    return found


def turns(parts: Sequence[int]) -> list[int]:
    """The task at each position of one period, which has sum(parts) positions.

    Earliest deadline first: the next row of a task may come once the task is not ahead, and must
    have come when it would be a whole row behind. So after any n positions a task has had
    n * part / sum(parts) rows to within less than one (Baruah et al., Algorithmica 1996).
    """
    total, had, order = sum(parts), [0] * len(parts), []
    for place in range(total):
        due = [
            (-(-(had[task] + 1) * total // part), task)
            for task, part in enumerate(parts)
            if had[task] * total < part * (place + 1)
        ]
        _, chosen = min(due)
        had[chosen] += 1
        order.append(chosen)
    return order


def mixed_rows(
    tasks: Sequence[Sequence[int]],
    schedule: Sequence[tuple[int, Sequence[int]]],
    seed: int,
    first: int,
    last: int,
) -> list[int]:
    """The rows at positions `first` to `last` (not included) of a run, counted over all epochs.

    A task starts again when all its rows have come; each pass has an order of its own, and a change
    of weights lets every task go on where it was.

    Args:
        tasks: Row numbers of each task.
        schedule: Positions, the first 0, with the parts of the tasks from there on.
        seed: Pass p of task t is ordered by `torch.randperm` seeded with seed + 1000003 t + p.
    """
    import torch

    passes: dict[tuple[int, int], list[int]] = {}
    had = [0] * len(tasks)
    rows = []
    ends = [begin for begin, _ in schedule[1:]] + [last]
    for (begin, parts), end in zip(schedule, ends, strict=True):
        if begin >= last:
            break
        order = turns(parts)
        count, earlier = [0] * len(tasks), []  # rows of its task before each place of a period
        for task in order:
            earlier.append(count[task])
            count[task] += 1
        for position in range(max(begin, first), min(end, last)):
            periods, place = divmod(position - begin, len(order))
            task = order[place]
            number, row = divmod(
                had[task] + periods * parts[task] + earlier[place], len(tasks[task])
            )
            if (task, number) not in passes:
                generator = torch.Generator().manual_seed(seed + 1000003 * task + number)
                shuffled = torch.randperm(len(tasks[task]), generator=generator)
                passes[task, number] = shuffled.tolist()
            rows.append(tasks[task][passes[task, number][row]])
        periods, rest = divmod(min(end, last) - begin, len(order))
        had = [n + periods * parts[t] + order[:rest].count(t) for t, n in enumerate(had)]
    return rows
