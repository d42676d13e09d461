"""What the engine and a run's thread say to each other: commands in, reports out, plain data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.training import checkpoints, trainers
from rapidfire_jupyter.training.estimates import UNKNOWN, Footprint, Largest
from rapidfire_jupyter.training.frozen import FrozenModels
from rapidfire_jupyter.training.gauge import Reading
from rapidfire_jupyter.training.generating import Generations
from rapidfire_jupyter.training.memory import Phase
from rapidfire_jupyter.training.mixed import Loan, Mixer
from rapidfire_jupyter.training.models import Base
from rapidfire_jupyter.training.prepared import PreparedData
from rapidfire_jupyter.training.references import References
from rapidfire_jupyter.training.rehearsals import Rehearsals
from rapidfire_jupyter.training.residency import Room


@dataclass(frozen=True)
class Task:
    """What a session needs to know of its run.

    Attributes:
        generations: Those with which it may sample together; None if what they hold may be away.
        base: Gives the run's base model; called in the run's thread, seeded with the fit's seed.
        resume: A good checkpoint to go on from, or None.
        source: A parent's checkpoint that a warm clone starts from.
        emit: Appends an event: `emit(kind, **data)`. Called in the run's thread.
        room: Its place on a device whose memory has a budget.
    """

    run_id: int
    config: RunConfig
    run_dir: Path
    data: trainers.FitData
    prepared: PreparedData
    frozen: FrozenModels
    references: References
    rehearsals: Rehearsals
    mixer: Mixer
    generations: Generations | None
    base: Callable[[], Base]
    resume: checkpoints.Checkpoint | None
    source: Path | None
    emit: Callable[..., Any]
    room: Room | None = None


@dataclass(frozen=True)
class Advance:
    """Train to a boundary at or after step `until` or `deadline` (monotonic seconds), or a save."""

    until: int
    deadline: float | None = None


@dataclass(frozen=True)
class Save:
    """Write a checkpoint into the run's staging folder.

    Attributes:
        beside: Rows that the engine has logged for this run in this session.
    """

    beside: int = 0


@dataclass(frozen=True)
class SaveFinal:
    """Write the finished model into the run's staging folder."""


@dataclass(frozen=True)
class Observe:
    """Evaluate at a chunk end, changing nothing."""


@dataclass(frozen=True)
class Ask:
    """Prompts of a person, texts or messages, and the longest answer in tokens."""

    prompts: tuple[str | tuple[Mapping[str, Any], ...], ...]  # Any: JSON values of messages
    max_new_tokens: int


@dataclass(frozen=True)
class Lend:
    """Tell what this run is asked, and lend its adapter for a shared batch.

    Attributes:
        asked: By a person; None: at chunk ends.
    """

    asked: Ask | None = None


@dataclass(frozen=True)
class Decode:
    """Answer prompts, changing nothing: token ids of prompts, longest answer in tokens."""

    prompts: tuple[tuple[int, ...], ...]
    max_new_tokens: int


@dataclass(frozen=True)
class Mix:
    """Answer prompts for several runs in shared batches, changing nothing; the first is this one.

    Attributes:
        loans: What each run lends; alike.
    """

    loans: tuple[Loan, ...]
    prompts: tuple[tuple[int, ...], ...]
    max_new_tokens: int


@dataclass(frozen=True)
class Probe:
    """Tell what answers would take, from a few tokens of one batch, changing nothing.

    Attributes:
        loans: Of all that would answer in shared batches, this one first; none if it answers alone.
    """

    loans: tuple[Loan, ...]
    prompts: tuple[tuple[int, ...], ...]
    max_new_tokens: int


@dataclass(frozen=True)
class Spell:
    """Tell answers, token ids, as texts."""

    answers: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Score:
    """Judge the answers to what this run is asked: their token ids."""

    answers: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Continue:
    """Go on with the chunk evaluation that the run is parked in, if an op did not make it leave."""


@dataclass(frozen=True)
class AbortEvaluation:
    """Leave the evaluation that the run is parked in; it will be done again."""


@dataclass(frozen=True)
class Close:
    """Unwind and end the thread, changing nothing more."""


Command = (
    Advance
    | Save
    | SaveFinal
    | Observe
    | Lend
    | Decode
    | Mix
    | Probe
    | Spell
    | Score
    | Continue
    | AbortEvaluation
    | Close
)


@dataclass(frozen=True)
class Prepared:
    """The trainer is built and rehearsed; training would go on from `step`.

    Attributes:
        disk_bytes: Size of one checkpoint, estimated.
        notes: What the user should know of how it starts.
        needs: The memory it takes.
    """

    schedule: trainers.Schedule
    step: int
    base: str
    disk_bytes: int
    inexact: tuple[str, ...]
    notes: tuple[str, ...]
    needs: Footprint


@dataclass(frozen=True)
class Parked:
    """At a boundary, or inside an evaluation.

    Attributes:
        save_wanted: The user's save strategy asks for a checkpoint here.
        ending: This was the last step.
        begun: `train()` has been entered in this session; before that there is nothing to save.
        read: What was measured since the report before.
    """

    step: int
    in_evaluation: bool = False
    save_wanted: bool = False
    ending: bool = False
    begun: bool = True
    read: Reading = field(default_factory=Reading)


@dataclass(frozen=True)
class Saved:
    """A folder was staged at `step`, after `rows` logged rows; `best_step` must be kept too."""

    folder: Path
    step: int
    rows: int
    best_step: int | None


@dataclass(frozen=True)
class SaveFailed:
    """A checkpoint could not be written; the run itself is as it was.

    Attributes:
        kind: FileNotFoundError where what was being written is gone, else OSError: the disk.
    """

    error: str
    kind: type[OSError] = OSError


@dataclass(frozen=True)
class Observed:
    """Metrics of a chunk evaluation at `step`.

    Attributes:
        metrics: None if there are none: the trainer evaluates by itself, or it was left early.
        left: It was left early, and is to be done again.
        losses: Of single eval rows; none where they are not known.
    """

    metrics: dict[str, float] | None
    step: int
    left: bool = False
    losses: tuple[float, ...] = ()


@dataclass(frozen=True)
class Lent:
    """What a run is asked: token ids of prompts; none if it is asked nothing.

    Attributes:
        max_new_tokens: Longest answer in tokens.
        batch_rows: Prompts that it answers at once.
        loan: Its adapter, for a batch with other runs; None if it answers alone.
        error: Why it cannot be asked, in one line.
    """

    prompts: tuple[tuple[int, ...], ...]
    max_new_tokens: int
    batch_rows: int
    step: int
    loan: Loan | None = None
    error: str = ""


@dataclass(frozen=True)
class Decoded:
    """Answers as token ids.

    Attributes:
        answers: None if there are none: it was left early, or failed.
        left: It was left early, and is to be done again.
        error: Why it failed, in one line.
    """

    answers: tuple[tuple[int, ...], ...] | None
    step: int
    left: bool = False
    error: str = ""


@dataclass(frozen=True)
class Mixed:
    """Answers of several runs as token ids, by run and prompt; None where a run answers alone.

    Attributes:
        answers: None if there are none: it was left early, or failed.
        left: It was left early, and is to be done again.
    """

    answers: tuple[tuple[tuple[int, ...] | None, ...], ...] | None
    step: int
    left: bool = False


@dataclass(frozen=True)
class Probed:
    """What the answers of one run would take.

    Attributes:
        seconds: At their longest; None if it was left early, or failed.
        left: It was left early, and is to be done again.
    """

    seconds: float | None
    step: int
    left: bool = False


LEFT = Observed | Decoded | Mixed | Probed  # what ends when an evaluation is left


@dataclass(frozen=True)
class Spelt:
    """Answers as texts."""

    texts: tuple[str, ...]


@dataclass(frozen=True)
class Scored:
    """Metrics of a set of answers, and each of them with its prompt, references and scores.

    Any: JSON values.
    """

    metrics: dict[str, float]
    samples: tuple[dict[str, Any], ...]
    step: int


@dataclass(frozen=True)
class Finished:
    """`train()` returned at `step`; the thread waits for SaveFinal and Close."""

    step: int


@dataclass(frozen=True)
class Failed:
    """The run raised. `error` is one line, `trace` the whole traceback as text.

    Attributes:
        storage: The disk failed it.
        memory: In which phase memory ran out; "" if something else was wrong.
        largest: What is known of its largest micro-batch then.
        parked_at: The step of its last boundary, where it is again: it can be saved, and is to be
            closed. None: its thread has ended.
    """

    error: str
    trace: str
    storage: bool
    memory: Phase = ""
    parked_at: int | None = None
    largest: Largest = UNKNOWN

    @property
    def is_over(self) -> bool:
        """Whether its thread has ended."""
        return self.parked_at is None


@dataclass(frozen=True)
class Closed:
    """The thread has ended at the engine's wish."""


Report = (
    Prepared
    | Parked
    | Saved
    | SaveFailed
    | Observed
    | Lent
    | Decoded
    | Mixed
    | Probed
    | Spelt
    | Scored
    | Finished
    | Failed
    | Closed
)
