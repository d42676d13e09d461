"""Which answers are shown: those of a chunk that most runs share."""

import pytest

from rapidfire_jupyter import samples


def reached(*newest):
    """Chunks by run, each with answers after 1 to its newest one."""
    return {run: {n: 10 * n for n in range(1, last + 1)} for run, last in enumerate(newest, 1)}


@pytest.mark.parametrize(
    ("known", "runs", "chunk"),
    [
        (reached(3, 2, 2, 2), None, 2),  # only run 1 is there yet
        (reached(3, 3, 3, 1), None, 3),  # a run that was stopped early holds nothing back
        (reached(3, 2, 2, 2), [1], 3),
        (reached(4, 2), [1, 2], 2),
        (reached(3, 2, 2, 0), [4], 2),  # it has answered nothing
        ({1: {0: 0, 4: 40}, 2: {2: 20}, 3: {1: 10}}, None, 4),  # none is shared
        ({1: {}, 2: {}}, None, 0),
        ({}, None, 0),
    ],
)
def test_the_newest_chunk_that_most_runs_share_is_shown(known, runs, chunk):
    assert samples.shared(known, runs) == chunk
