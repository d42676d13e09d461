"""Who trains next: deterministic proportional share (stride scheduling), purely from a State.

A run's virtual time is `Run.served`: chunks trained divided by its weight. The run that was served
least goes next, so equal weights give the round robin in which all runs finish a chunk before any
starts the next, and a run of weight 3 gets three chunks for each one of the others. A newcomer
joins at the virtual time of the least served active run; it neither waits nor monopolises.
"""

from collections.abc import Collection

from rapidfire_jupyter.state import Run, State

_EPSILON = 1e-9  # thirds of a chunk add up to one


def next_run(state: State, ready: Collection[int], base: str = "") -> int | None:
    """Pick the run that has had the least training for its weight.

    Args:
        ready: Ids of runs that can train now.
        base: The base model whose runs go first among equals, where changing it is costly.

    Returns:
        A run id, or None if none is ready. Ties go to the lower id, so the order is reproducible.
    """
    return next(iter(turns(state, ready, base)), None)


def turns(state: State, ready: Collection[int], base: str = "") -> list[int]:
    """The runs that can train now in the order of their turns, as far as it is known.

    Runs of one base are beside each other within a pass if a base is given: all finish chunk k
    before any starts k + 1, whatever the base.
    """
    if state.paused or state.ended:
        return []
    active = [state.runs[i] for i in ready if state.runs[i].status in ("queued", "running")]
    passes: list[list[Run]] = []
    for run in sorted(active, key=lambda r: (r.served, r.id)):
        if not passes or run.served > passes[-1][0].served + _EPSILON:
            passes.append([])
        passes[-1].append(run)
    order: list[int] = []
    for tied in passes:
        if base:
            tied.sort(key=lambda r: (r.base != base, r.base, r.id))
            base = tied[-1].base
        else:
            tied.sort(key=lambda r: r.id)
        order += [run.id for run in tied]
    return order


def slice_end(run: Run, slice_steps: int | None) -> int:
    """Step at which the next slice of a prepared run ends: its chunk's end, or `slice_steps` on."""
    ahead = [end for end in run.chunk_ends if end > run.step]
    end = ahead[0] if ahead else (run.total_steps or run.step + 1)
    return end if slice_steps is None else min(end, run.step + slice_steps)


def least(*steps: int | None) -> int | None:
    """The shortest of some lengths of a slice; None if none is given."""
    return min((one for one in steps if one is not None), default=None)
