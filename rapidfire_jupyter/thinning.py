"""At which chunk ends runs are evaluated: at all of them, or at fewer where that would cost much.

A decision is made once for each chunk, when the first run reaches it, from what was measured until
then, and recorded as an event; whether an evaluation is due follows from these events alone. So all
runs are evaluated at the same chunks, and after a crash as before it.

Losses come first: they are thinned if they alone cost more than the budget, answers get what is
left of it. Both only become rarer, and both are always due before training and at a run's last
chunk end. What costs less than `FREE_SECONDS` each time is never thinned.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rapidfire_jupyter.events import Event

FREE_SECONDS = 2.0
MOST = 64  # evaluated at fewer than each 64th chunk end, answers are made at the last one only
Kind = Literal["loss", "answers"]


@dataclass(frozen=True)
class Thinning:
    """From a chunk on, evaluations are due at each so-manieth chunk end; 0: at the last one only.

    It holds for answers of `chunk` itself, and for losses of the chunks after it.
    """

    chunk: int = 0
    loss: int = 1
    answers: int = 1


@dataclass(frozen=True)
class Costs:
    """Mean seconds: of a chunk's training, of its loss evaluation, of its answers."""

    training: float
    loss: float
    answers: float

    def share(self, thinning: Thinning) -> float:
        """Share of wall time that evaluations take."""
        spent = self.loss / thinning.loss
        spent += self.answers / thinning.answers if thinning.answers else 0.0
        return spent / (self.training + spent) if spent else 0.0


def thinnings(events: Iterable[Event]) -> list[Thinning]:
    """The decisions that an event log holds, oldest first."""
    found: list[Thinning] = []
    for event in events:
        if event.kind == "fit_started":
            found.clear()
        elif event.kind == "eval_thinned":
            found.append(Thinning(event.data["chunk"], event.data["loss"], event.data["answers"]))
    return found


def due(known: Sequence[Thinning], kind: Kind, chunk: int, last: bool) -> bool:
    """Whether an evaluation is due at the end of a chunk; chunk 0 is before training."""
    if chunk == 0 or last:
        return True
    if kind == "loss":
        every = next((t.loss for t in reversed(known) if t.chunk < chunk), 1)
    else:
        every = next((t.answers for t in reversed(known) if t.chunk <= chunk), 1)
    return every > 0 and chunk % every == 0


def costs(events: Iterable[Event], seconds: float) -> Costs | None:
    """What an event log says of costs; None if nothing was trained yet.

    Args:
        seconds: Trained in the slice whose end is not in the log yet; its chunks are.
    """
    spent: dict[str, list[float]] = {"chunk": [], "generation": []}
    probed = chunks = 0.0
    for event in events:
        data = event.data
        if event.kind == "slice_ended":
            seconds += data["seconds"] - data.get("eval_seconds", 0.0)
        elif event.kind == "advanced":
            chunks += data["chunks"]
        elif event.kind == "logged" and "seconds" in data:
            spent[data["source"]].append(data["seconds"])
        elif event.kind == "eval_probed":
            probed = data["seconds"]
    if chunks <= 0:
        return None
    answers = spent["generation"]
    return Costs(
        max(seconds, 0.0) / chunks,
        sum(spent["chunk"]) / max(1, len(spent["chunk"])),
        sum(answers) / len(answers) if answers else probed,
    )


def plan(measured: Costs, budget: float, chunk: int, now: Thinning) -> Thinning:
    """How evaluations are thinned from a chunk on.

    Args:
        budget: The share of wall time that they may take, from 0 to 1.
        now: How they are thinned so far; they never become more frequent again.
    """
    if budget >= 1:
        return now
    room = budget / (1 - budget) * measured.training  # seconds for each chunk
    loss = now.loss
    if measured.loss >= FREE_SECONDS:
        while measured.loss / loss > room and loss < MOST:
            loss *= 2
        room -= measured.loss / loss
    answers = now.answers
    if measured.answers >= FREE_SECONDS:
        while answers and measured.answers / answers > room:
            answers = 0 if answers >= MOST else 2 * answers
    return Thinning(chunk, loss, answers)


def text(thinning: Thinning, share: float, budget: float) -> str:
    """A decision in words."""
    losses = "each" if thinning.loss == 1 else f"each {_ordinal(thinning.loss)}"
    answers = f"at each {_ordinal(thinning.answers)} chunk end and the last one"
    if not thinning.answers:
        answers = "at the last chunk end only"
    return (
        f"evaluating at all chunk ends would take {share:.0%} of the time, over "
        f"eval_budget={budget:g}: from chunk {thinning.chunk} on, losses come at {losses} chunk "
        f"end, answers {answers}; for more, raise eval_budget, or lower generate_rows, "
        "max_new_tokens or eval_rows"
    )


def _ordinal(number: int) -> str:
    return {2: "2nd"}.get(number, f"{number}th")
