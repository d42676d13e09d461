"""Who trains next: deterministic proportional share (stride scheduling), purely from a State.

A run's virtual time is `Run.served`: chunks trained divided by its weight. The run that was served
least goes next, so equal weights give the round robin in which all runs finish a chunk before any
starts the next, and a run of weight 3 gets three chunks for each one of the others. A newcomer
joins at the virtual time of the least served active run; it neither waits nor monopolises.
"""

from collections.abc import Collection

from rapidfire_jupyter.state import Run, State

_EPSILON = 1e-9  # thirds of a chunk add up to one


def next_run(state: State, ready: Collection[int]) -> int | None:
    """Pick the run that has had the least training for its weight.

    Args:
        ready: Ids of runs that can train now.

    Returns:
        A run id, or None if none is ready. Ties go to the lower id, so the order is reproducible.
    """
    if state.paused or state.ended:
        return None
    active = [state.runs[i] for i in ready if state.runs[i].status in ("queued", "running")]
    if not active:
        return None
    least = min(run.served for run in active)
    return min(run.id for run in active if run.served <= least + _EPSILON)


def slice_end(run: Run, slice_steps: int | None) -> int:
    """Step at which the next slice of a prepared run ends: its chunk's end, or `slice_steps` on."""
    ahead = [end for end in run.chunk_ends if end > run.step]
    end = ahead[0] if ahead else (run.total_steps or run.step + 1)
    return end if slice_steps is None else min(end, run.step + slice_steps)
