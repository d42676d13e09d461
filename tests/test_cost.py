"""What an experiment will cost, and has cost, from what its slices took."""

from dataclasses import replace

import pytest
from replay import Replay, grid

from rapidfire_jupyter.cost import Cost, ahead, in_words, preview
from rapidfire_jupyter.durations import duration
from rapidfire_jupyter.measures import Measures, Slice


def begun(runs=4):
    """Runs of 64 (batch 8) and 32 steps (batch 16); the first has had a slice of 8 steps."""
    replay = Replay(grid()[:runs])
    replay.train_chunk(1)
    return replay


def test_nothing_is_said_before_a_slice_was_measured():
    assert preview(Replay(grid()[:4]).state, Measures()) is None


def test_cost_is_runs_times_steps_times_measured_seconds():
    replay = begun()

    cost = preview(replay.state, Measures((Slice(1, 0.0, 8, 8, 4.0),)))

    assert cost == Cost(4, 3 * 64 + 32, 0.5, (64 * 3 + 32 - 8) * 0.5)
    assert in_words(cost) == "4 runs x 56 steps x 0.5 s = 1 min 52 s, 1 min 48 s left"
    assert ahead(cost) == "4 runs x 56 steps x 0.5 s = 1 min 52 s, if no run is stopped early"


def test_the_share_of_the_time_in_which_weights_move_is_told_where_there_is_one():
    replay = begun()
    still = Slice(1, 0.0, 8, 8, 4.0, moving_seconds=0.01)

    cost = preview(replay.state, Measures((replace(still, moving_seconds=0.5),)))

    assert cost.moving == 0.125
    assert in_words(cost).endswith("s left, 12 % of it to move weights and states")
    assert "move" not in in_words(preview(replay.state, Measures((still,))))


def test_each_run_counts_at_its_own_pace_and_stopped_ones_with_what_they_trained():
    replay = begun(2)
    stopped = replace(replay.state.runs[2], status="stopped", step=8)
    state = replace(replay.state, runs={**replay.state.runs, 2: stopped})
    slices = (Slice(1, 0.0, 8, 8, 8.0), Slice(2, 0.0, 8, 8, 16.0))

    cost = preview(state, Measures(slices))

    assert cost.left_seconds == 56.0
    assert cost.steps * cost.step_seconds == pytest.approx(64 * 1.0 + 8 * 2.0)
    assert in_words(cost) == "2 runs x 36 steps x 1.1 s = 1 min 20 s, 56 s left"


def test_once_nothing_is_left_to_train_it_is_what_it_has_cost():
    replay = begun(2)
    runs = {i: replace(r, status="completed", step=32) for i, r in replay.state.runs.items()}
    runs[2] = replace(runs[2], status="stopped", step=8)

    cost = preview(replace(replay.state, runs=runs), Measures((Slice(1, 0.0, 32, 32, 16.0),)))

    assert cost.left_seconds == 0
    assert in_words(cost) == "2 runs x 20 steps x 0.5 s = 20 s so far"


def test_a_warm_clone_counts_from_where_it_began():
    replay = begun(2)
    clone = replace(replay.state.runs[2], warm=True, clone_step=24, step=24, total_steps=64)
    state = replace(replay.state, runs={2: clone})

    cost = preview(state, Measures((Slice(2, 0.0, 32, 8, 4.0),)))

    assert (cost.steps, cost.left_seconds) == (40, 20.0)


def test_runs_that_are_not_prepared_count_as_the_others_and_deleted_ones_not():
    replay = begun(3)
    runs = dict(replay.state.runs)
    runs[2] = replace(runs[2], total_steps=None)
    runs[3] = replace(runs[3], status="deleted")

    cost = preview(replace(replay.state, runs=runs), Measures((Slice(1, 0.0, 8, 8, 8.0),)))

    assert (cost.runs, cost.steps) == (2, 128)


@pytest.mark.parametrize(
    ("seconds", "text"), [(8.4, "8 s"), (125, "2 min 5 s"), (12_000, "3 h 20 min")]
)
def test_durations_are_short(seconds, text):
    assert duration(seconds) == text
