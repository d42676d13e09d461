"""The chunk plan: one order of the rows for all runs, cut into whole optimizer steps."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapidfire_jupyter.data.plan import ChunkPlan, chunk_ends, even_ends, make_plan
from rapidfire_jupyter.errors import ConfigError


def cut(plan, kept, rows_per_step, epochs=1.0, max_steps=None):
    """Chunk ends as a trainer that keeps these rows would have them, and steps in an epoch."""
    rows = plan.rows if kept is None else len(kept)
    per_epoch = math.ceil(rows / rows_per_step)
    total = max_steps or math.ceil(epochs * per_epoch)
    return chunk_ends(plan, kept, rows_per_step, per_epoch, total), per_epoch


def first_positions(plan, kept, rows_per_step, epoch):
    """Position, in the epoch's whole order, of the first row of each step."""
    mine = set(range(plan.rows) if kept is None else kept)
    positions = [p for p, row in enumerate(plan.order(epoch)) if row in mine]
    return positions[::rows_per_step]


def test_101_rows_of_batch_5_and_accumulation_2_are_cut_between_whole_steps():
    plan = make_plan(101, seed=42, num_chunks=4, chunk_size=None)

    ends, per_epoch = cut(plan, None, rows_per_step=10)

    assert plan.starts == (0, 25, 50, 75)
    assert per_epoch == 11
    assert ends == [3, 5, 8, 11]  # steps start at rows 0 10 20 | 30 40 | 50 60 70 | 80 90 100


def test_every_row_comes_once_in_an_epoch_and_epochs_are_ordered_differently():
    plan = make_plan(101, seed=42, num_chunks=4, chunk_size=None)

    assert sorted(plan.order(0)) == sorted(plan.order(1)) == list(range(101))
    assert plan.order(0) != plan.order(1)
    assert plan.order(0) == plan.order(0)


@pytest.mark.parametrize("seed", [0, 42, 12345])
def test_the_order_is_that_of_accelerates_sampler_for_the_same_seed_and_epoch(seed):
    from accelerate.data_loader import SeedableRandomSampler

    plan = make_plan(37, seed, num_chunks=3, chunk_size=None)
    sampler = SeedableRandomSampler(range(37), data_seed=seed)

    plain = [list(sampler) for _ in range(3)]

    assert [plan.order(epoch) for epoch in range(3)] == plain


def test_asking_for_the_order_moves_no_random_stream():
    import torch

    before = torch.get_rng_state()

    make_plan(50, 42, 4, None).order(3)

    assert torch.equal(torch.get_rng_state(), before)


def test_configs_that_drop_different_rows_meet_the_same_rows_in_the_same_chunk():
    plan = make_plan(60, seed=1, num_chunks=4, chunk_size=None)
    order = plan.order(0)
    some = [row for row in range(60) if row % 7]
    few = [row for row in range(60) if row % 3 == 0]

    for kept in (None, some, few):
        ends, _ = cut(plan, kept, rows_per_step=1)
        mine = [row for row in order if kept is None or row in kept]
        for k, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            border = [*plan.starts, 60]
            chunk = order[border[k] : border[k + 1]]
            assert mine[start:end] == [row for row in chunk if kept is None or row in kept]


def test_a_chunk_without_a_step_for_one_run_shifts_no_other_chunk():
    plan = make_plan(18, seed=3, num_chunks=3, chunk_size=None)
    order = plan.order(0)
    kept = sorted(set(range(18)) - set(order[6:12]))  # rows 6-11 of the order are too long

    short, _ = cut(plan, kept, rows_per_step=2)
    whole, _ = cut(plan, None, rows_per_step=2)

    assert short == [3, 3, 6]
    assert whole == [3, 6, 9]


def test_a_first_or_last_chunk_without_a_step_ends_where_its_neighbour_does():
    plan = make_plan(18, seed=3, num_chunks=3, chunk_size=None)
    order = plan.order(0)

    without_first, _ = cut(plan, sorted(order[6:]), rows_per_step=2)
    without_last, _ = cut(plan, sorted(order[:12]), rows_per_step=2)

    assert without_first == [0, 3, 6]
    assert without_last[-1] == 6 and without_last[:2] == [3, 6]


def test_a_window_over_a_chunk_border_belongs_to_the_chunk_of_its_first_row():
    plan = make_plan(10, seed=0, num_chunks=3, chunk_size=None)

    ends, _ = cut(plan, None, rows_per_step=4)  # borders at rows 3 and 6, steps at 0, 4, 8

    assert plan.starts == (0, 3, 6)
    assert ends == [1, 2, 3]


@pytest.mark.parametrize("num_chunks", [1, 2])
def test_a_last_short_window_is_a_step_of_every_epoch(num_chunks):
    plan = make_plan(5, seed=0, num_chunks=num_chunks, chunk_size=None)

    ends, per_epoch = cut(plan, None, rows_per_step=2, epochs=2)

    assert per_epoch == 3 and ends[-1] == 6


@pytest.mark.parametrize(
    ("max_steps", "ends"),
    [(1, [1]), (3, [2, 3]), (6, [2, 4, 6]), (7, [2, 4, 6, 7]), (13, [2, 4, 6, 8, 10, 12, 13])],
)
def test_max_steps_cuts_the_chunk_it_falls_in(max_steps, ends):
    plan = make_plan(12, seed=0, num_chunks=3, chunk_size=None)

    assert cut(plan, None, rows_per_step=2, max_steps=max_steps)[0] == ends


def test_900_rows_of_batch_10_and_max_steps_50_end_at_50():
    plan = make_plan(900, seed=42, num_chunks=2, chunk_size=None)

    assert cut(plan, None, rows_per_step=10, max_steps=50)[0] == [45, 50]


def test_fractional_epochs_end_inside_the_last_one():
    plan = make_plan(12, seed=0, num_chunks=3, chunk_size=None)

    assert cut(plan, None, rows_per_step=2, epochs=1.5)[0] == [2, 4, 6, 8, 9]
    assert cut(plan, None, rows_per_step=2, epochs=0.25)[0] == [2]


def test_more_chunks_than_steps_leave_no_step_out_and_make_none_up():
    plan = make_plan(12, seed=0, num_chunks=8, chunk_size=None)

    ends, _ = cut(plan, None, rows_per_step=4)

    assert len(plan.starts) == 8
    assert ends[-1] == 3 and sorted(set(ends)) == [1, 2, 3]


def test_more_chunks_than_rows_become_one_row_each():
    assert make_plan(3, 0, 8, None).starts == (0, 1, 2)
    assert make_plan(1, 0, 8, None).starts == (0,)


def test_chunk_size_cuts_by_rows_and_leaves_the_rest_to_the_last_chunk():
    plan = make_plan(101, seed=42, num_chunks=None, chunk_size=40)

    assert plan.starts == (0, 40, 80) and plan.num_chunks == 3
    assert make_plan(101, 42, None, 500).starts == (0,)
    assert make_plan(101, 42, None, 1).num_chunks == 101


@pytest.mark.parametrize(
    ("num_chunks", "chunk_size", "text"),
    [
        (4, 10, r"give num_chunks or chunk_size \(rows\), not both; default is num_chunks=8"),
        (None, None, r"give num_chunks or chunk_size"),
        (0, None, "num_chunks must be a whole number >= 1, got 0"),
        (-2, None, "num_chunks must be a whole number >= 1, got -2"),
        (2.0, None, r"num_chunks must be a whole number >= 1, got 2\.0"),
        (True, None, "num_chunks must be a whole number >= 1, got True"),
        ("8", None, "num_chunks must be a whole number >= 1, got '8'"),
        (None, 0, "chunk_size must be a whole number >= 1, got 0"),
        (None, 1.5, r"chunk_size must be a whole number >= 1, got 1\.5"),
    ],
)
def test_impossible_chunks_are_refused_with_the_value(num_chunks, chunk_size, text):
    with pytest.raises(ConfigError, match=text):
        make_plan(100, 0, num_chunks, chunk_size)


@given(
    rows=st.integers(1, 80),
    seed=st.integers(0, 9),
    num_chunks=st.integers(1, 12),
    rows_per_step=st.integers(1, 20),
    epochs=st.floats(0.1, 3.5),
    data=st.data(),
)
def test_each_step_is_in_the_chunk_its_first_row_lies_in(
    rows, seed, num_chunks, rows_per_step, epochs, data
):
    plan = make_plan(rows, seed, num_chunks, None)
    kept = data.draw(st.none() | st.sets(st.integers(0, rows - 1), min_size=1))
    ends, per_epoch = cut(plan, kept, rows_per_step, epochs)

    assert ends == sorted(ends) and ends[-1] == math.ceil(epochs * per_epoch)
    assert ends.count(ends[-1]) == 1
    borders = [*plan.starts, rows]
    for step in range(ends[-1]):
        epoch, within = divmod(step, per_epoch)
        position = first_positions(plan, kept, rows_per_step, epoch)[within]
        chunk = sum(start <= position for start in plan.starts) - 1
        number = epoch * plan.num_chunks + chunk
        assert borders[chunk] <= position < borders[chunk + 1]
        assert (ends[number - 1] if number else 0) <= step < ends[number]


def test_shares_of_steps_are_even_and_end_with_the_run():
    assert even_ends(4, 1.0, 8) == [2, 4, 6, 8]
    assert even_ends(4, 1.0, 10) == [3, 5, 8, 10]
    assert even_ends(2, 2.0, 8) == [2, 4, 6, 8]
    assert even_ends(8, 1.0, 3) == [1, 2, 3]
    assert even_ends(3, 0.1, 7) == [7]


def test_ends_of_generation_buffers_are_moved_to_whole_multiples():
    assert even_ends(3, 1.0, 16, multiple=4) == [8, 12, 16]
    assert even_ends(4, 1.0, 6, multiple=4) == [4, 4, 6, 6]


@given(
    chunks=st.integers(1, 12),
    per_epoch=st.integers(1, 50),
    epochs=st.integers(1, 4),
    multiple=st.integers(1, 6),
)
def test_shares_never_go_back_and_whole_epochs_have_whole_chunks(
    chunks, per_epoch, epochs, multiple
):
    total = per_epoch * epochs

    ends = even_ends(chunks, total / per_epoch, total, multiple)

    assert ends == sorted(ends) and ends[-1] == total
    assert len(ends) == min(chunks * epochs, total)
    assert all(end % multiple == 0 or end == total for end in ends)


def test_a_plan_is_plain_frozen_data():
    plan = make_plan(10, 0, 2, None)

    assert plan == ChunkPlan(10, 0, (0, 5)) and hash(plan) == hash(ChunkPlan(10, 0, (0, 5)))
    with pytest.raises(AttributeError):
        plan.seed = 1
