"""Thinning: what costs too much comes at fewer chunk ends, the same ones for all runs."""

import pytest

from rapidfire_jupyter.events import Event
from rapidfire_jupyter.thinning import Costs, Thinning, costs, due, plan, text, thinnings

ALL = Thinning()


def event(seq, kind, run=None, **data):
    return Event(seq, float(seq), kind, run, data)


def test_what_fits_the_budget_or_costs_nearly_nothing_is_not_thinned():
    assert plan(Costs(100.0, 2.5, 5.0), 0.1, 1, ALL) == Thinning(1, 1, 1)
    assert plan(Costs(0.1, 1.9, 1.9), 0.1, 1, ALL) == Thinning(1, 1, 1)
    assert plan(Costs(0.1, 50.0, 50.0), 1.0, 1, ALL) is ALL


@pytest.mark.parametrize(
    ("measured", "planned"),
    [
        (Costs(100.0, 3.0, 20.0), Thinning(1, 1, 4)),
        (Costs(100.0, 30.0, 1.0), Thinning(1, 4, 1)),
        (Costs(9.0, 2.0, 600.0), Thinning(1, 2, 0)),
        (Costs(90.0, 10.0, 10.0), Thinning(1, 1, 0)),
    ],
)
def test_losses_come_first_and_answers_get_what_is_left(measured, planned):
    found = plan(measured, 0.1, 1, ALL)

    assert found == planned
    assert measured.share(found) <= 0.1 + 1e-9


def test_evaluations_only_become_rarer():
    assert plan(Costs(1000.0, 3.0, 3.0), 0.1, 5, Thinning(1, 2, 4)) == Thinning(5, 2, 4)


def test_answers_of_the_deciding_chunk_and_losses_after_it_are_thinned_and_the_last_never():
    known = [Thinning(1, 2, 4), Thinning(5, 2, 0)]

    def chunks(kind):
        return [k for k in range(9) if due(known, kind, k, k == 8)]

    assert chunks("answers") == [0, 4, 8]
    assert chunks("loss") == [0, 1, 2, 4, 6, 8]
    assert all(due([], kind, k, False) for kind in ("loss", "answers") for k in range(9))


def test_costs_and_decisions_are_read_from_the_log():
    log = [
        event(0, "fit_started"),
        event(1, "eval_probed", 1, seconds=40.0),
        event(2, "logged", 1, row={}, source="chunk", seconds=2.0),
        event(3, "eval_thinned", chunk=1, loss=1, answers=8),
        event(4, "advanced", 1, step=2, chunks=1.0),
        event(5, "slice_ended", 1, step=2, steps=2, seconds=12.0, eval_seconds=2.0),
    ]

    assert costs([*log, event(6, "advanced", 1, step=4, chunks=1.0)], 20.0) == Costs(
        15.0, 2.0, 40.0
    )
    assert costs([*log, event(6, "logged", 1, row={}, source="generation", seconds=8.0)], 0) == (
        Costs(10.0, 2.0, 8.0)
    )
    assert costs(log[:1], 0.0) is None
    assert thinnings(log) == [Thinning(1, 1, 8)]
    assert thinnings([*log, event(6, "fit_started")]) == []


def test_a_person_is_told_what_is_done_and_how_to_get_more():
    told = text(Thinning(1, 2, 0), 0.87, 0.1)

    assert "87% of the time" in told and "answers at the last chunk end only" in told
    assert "each 2nd" in told and "raise eval_budget" in told
