"""The order of a mixture: shares to within one row, every row once a pass, nothing else."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rapidfire_jupyter.data.mixing import mixed_rows, tasks_rows, turns
from rapidfire_jupyter.data.plan import shuffled_order

PARTS = st.lists(st.integers(0, 400), min_size=1, max_size=8).filter(any)


@given(PARTS)
@settings(deadline=None, max_examples=150)
def test_after_any_row_each_task_has_had_its_share_to_within_less_than_one_row(parts):
    order, total = turns(parts), sum(parts)

    had = [0] * len(parts)
    for place, task in enumerate(order, start=1):
        had[task] += 1
        assert all(
            abs(n * total - place * part) < total for n, part in zip(had, parts, strict=True)
        )
    assert had == parts


def test_a_task_comes_at_even_distances():
    assert turns([1, 1]) == [0, 1]
    assert turns([4, 1]) == [0, 0, 0, 0, 1]
    assert turns([1, 0]) == [0]
    assert [place for place, task in enumerate(turns([8, 1, 1])) if task] == [4, 9]


def test_rows_of_tasks_follow_each_other_and_dropped_ones_are_left_out():
    assert tasks_rows((2, 3), range(5)) == [[0, 1], [2, 3, 4]]
    assert tasks_rows((2, 3), [4, 1, 2]) == [[1], [2, 4]]


TASKS = [list(range(7)), list(range(7, 10))]


def test_each_pass_through_a_task_has_each_of_its_rows_once_in_an_order_of_its_own():
    rows = mixed_rows(TASKS, [(0, [1, 1])], 42, 0, 84)
    first, second = [r for r in rows if r < 7], [r for r in rows if r >= 7]
    passes = [first[n : n + 7] for n in range(0, 42, 7)]
    others = [second[n : n + 3] for n in range(0, 42, 3)]

    assert all(sorted(one) == TASKS[0] for one in passes) and len(set(map(tuple, passes))) > 3
    assert all(sorted(one) == TASKS[1] for one in others) and len(set(map(tuple, others))) > 3


def test_one_task_alone_comes_in_plain_trl_s_order():
    alone = [shuffled_order(7, 42, epoch) for epoch in range(3)]

    assert mixed_rows(TASKS, [(0, [1, 0])], 42, 0, 21) == [row for one in alone for row in one]


def test_tasks_of_one_size_do_not_come_in_step():
    tasks = [list(range(50)), list(range(50, 100))]

    rows = mixed_rows(tasks, [(0, [1, 1])], 42, 0, 100)

    pairs = list(zip([r for r in rows if r < 50], [r - 50 for r in rows if r >= 50], strict=True))
    assert sum(one == other for one, other in pairs) < 10


@given(
    st.lists(st.tuples(st.integers(1, 30), PARTS.map(lambda p: (p * 2)[:2]).filter(any))),
    st.integers(0, 70),
    st.integers(0, 70),
)
@settings(deadline=None, max_examples=100)
def test_any_stretch_is_that_part_of_the_one_order(changes, first, length):
    at, schedule = 0, [(0, [1, 2])]
    for distance, parts in changes:
        at += distance
        schedule.append((at, parts))
    whole = mixed_rows(TASKS, schedule, 3, 0, 200)

    assert mixed_rows(TASKS, schedule, 3, first, first + length) == whole[first : first + length]


def test_weights_that_no_row_was_trained_by_leave_no_trace():
    changed = [(0, [1, 1]), (0, [4, 1]), (9, [1, 3]), (9, [1, 2])]

    assert mixed_rows(TASKS, changed, 42, 0, 50) == mixed_rows(
        TASKS, [(0, [4, 1]), (9, [1, 2])], 42, 0, 50
    )


def test_after_a_change_the_new_shares_hold_and_tasks_go_on_where_they_were():
    before = mixed_rows(TASKS, [(0, [1, 1])], 42, 0, 100)
    after = mixed_rows(TASKS, [(0, [1, 1]), (11, [4, 1])], 42, 0, 100)

    assert after[:11] == before[:11] and after != before
    for count in range(1, 90):
        assert abs(sum(r >= 7 for r in after[11 : 11 + count]) - count / 5) < 1
    for task in (0, 1):  # the rows of each task come in the order they have anyway
        mine = [r for r in after if (r >= 7) == task]
        theirs = [r for r in mixed_rows(TASKS, [(0, [1, 1])], 42, 0, 400) if (r >= 7) == task]
        assert mine == theirs[: len(mine)]
