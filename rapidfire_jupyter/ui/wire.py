"""What the panel's two ends say to each other: every message between kernel and browser, as types.

The kernel's end is `ui/panel.py`, the browser's `ui/static/*.js`; both are written against this
file. All messages are custom messages of one anywidget model per experiment. The kernel speaks in
`Snapshot`, `Delta`, `Pong`, `Ack` and `Answer`; a view in `Hello`, `Bye`, `Ping`, `Ask`, `Order`.

Numbers of curves travel as binary: a `Block` describes consecutive rows of one run that logged the
same metrics; its numbers lie in the message's one buffer, little-endian float32, row after row:
step, epoch, time (seconds since the experiment's first event), then the metrics in order. A NaN or
an infinity in the buffer is a value that was logged, not a gap.

Every delta carries `seq`, one more than that of the message before it. A view that misses one asks
for a snapshot. The kernel sends at most four messages a second, and none while no view is open.
"""

from typing import Any, Literal, TypedDict

Number = float | None
Json = Any  # Any: what JSON holds (non-finite floats as the strings "NaN", "Infinity", "-Infinity")


class Head(TypedDict):
    """The experiment as a whole. Times in seconds, sizes in bytes, shares from 0 to 1."""

    name: str
    state: str  # empty, running, paused, halted, idle, ended
    read_only: bool
    reason: str  # why it is halted or read-only; "" otherwise
    progress: float
    elapsed_s: float
    eta_s: Number  # None: not known yet
    counts: dict[str, int]  # runs by status
    device: str  # "cpu", "NVIDIA H200", ...
    memory: dict[str, Number]  # used_bytes, total_bytes: of the GPU, else of this process / machine
    alerts: int
    metrics: list[str]  # logged so far, in the order to offer them
    lower_is_better: dict[str, bool]  # by metric; those that rank no run are left out
    constants: dict[str, Json]  # hyperparameters that are the same for all runs
    varying: list[str]  # those that differ: the table's columns, in order
    best: dict[str, int]  # run with the best last value, by metric that two runs or more have
    rows_per_epoch: Number  # x in rows seen = epoch * this
    first_time: float  # Unix time of the first event: zero of all times
    can: list[
        str
    ]  # what this kernel offers: "ops", "schedule", "sample", "samples", "data", "analysis"


class Row(TypedDict):
    """One run, as the table shows it."""

    id: int
    name: str
    status: str
    progress: float
    step: int
    total_steps: int | None
    chunk: int  # chunks finished
    chunk_ends: list[int]
    eta_s: Number
    params: dict[str, Json]  # values of `varying`
    last: dict[str, Number | str]  # last value by metric; non-finite ones as their names
    weight: float
    parent: int | None
    warm: bool
    clone_step: int | None
    changes: dict[str, Json]  # what a clone changed
    inexact: list[str]
    error: str
    why: str  # why a policy stopped it, if it is stopped by one
    checkpoint_step: int | None
    deleted_at: float  # seconds since first_time; 0 if it is not deleted
    parked: bool


class Block(TypedDict):
    """Consecutive rows of one run with the same metrics; `n * (3 + len(metrics))` floats."""

    run: int
    metrics: list[str]
    n: int


class Remedy(TypedDict):
    """What an alert offers: an op on its run, see `Order`."""

    label: str
    kind: str
    args: dict[str, Json]


class Entry(TypedDict):
    """One line of the events tab, and one point of interest of the timeline."""

    seq: int
    time: float  # seconds since first_time
    kind: str  # the event's kind; ops have "op"
    run: int | None
    text: str
    level: Literal["info", "alert", "error"]
    op: str  # kind of the op, "" for others
    outcome: str  # applied, already, refused; "" for others
    policy: str  # whose op or decision it is; "" for all others
    remedies: list[Remedy]  # of an alert


class Slice(TypedDict):
    """A stretch in which one run trained; times in seconds since first_time."""

    run: int
    start: float
    end: float
    steps: int


class Snapshot(TypedDict):
    """Everything; sent when a view says hello, asks, or the page was reloaded. Has the buffer."""

    type: Literal["snapshot"]
    seq: int
    head: Head
    rows: list[Row]
    blocks: list[Block]  # thinned: extremes kept
    entries: list[Entry]  # the newest 200
    slices: list[Slice]  # the newest 2,000


class Delta(TypedDict):
    """What changed. `rows` and `head` replace; `reset` empties curves before `blocks` are added."""

    type: Literal["delta"]
    seq: int
    head: Head | None
    rows: list[Row]
    gone: list[int]
    reset: list[int]
    blocks: list[Block]
    entries: list[Entry]
    slices: list[Slice]


class Pong(TypedDict):
    """The answer to a `Ping`, at once. A view that has seen less than `seq` asks for a snapshot."""

    type: Literal["pong"]
    view: str
    seq: int  # of the newest delta or snapshot sent


class Ack(TypedDict):
    """Sent at once for every order ("pending", or "refused" at the door), and when it has acted."""

    type: Literal["ack"]
    id: str
    status: Literal["pending", "applied", "already", "refused"]
    reason: str
    run: int | None  # of a clone: the new run
    step: int | None
    line: str  # the same as a magic: "%rapidfire stop 2"


class Answer(TypedDict):
    """The answer to an `Ask`; to the view that asked only (`view`)."""

    type: Literal["answer"]
    id: str
    view: str
    ok: bool
    error: str  # one line, if not ok
    data: Json  # by what was asked, see Ask; bytes come as the message's buffer


class Hello(TypedDict):
    """A view has opened. The kernel answers with a snapshot."""

    type: Literal["hello"]
    view: str  # random id


class Bye(TypedDict):
    """A view has closed."""

    type: Literal["bye"]
    view: str


class Ping(TypedDict):
    """Every 20 s; a view that is silent for 60 s counts as closed. `seq` is the last one seen."""

    type: Literal["ping"]
    view: str
    seq: int


class Order(TypedDict):
    """An op; `kind` is one of `ops.KINDS`.

    `args` holds weight (boost), weights by task (mix), changes and warm (clone), and for resume
    num_train_epochs or max_steps; for policy name, mode ("on", "dry-run", "off") and settings,
    which stay if they are left out. A clone form with several values sends one order each.
    """

    type: Literal["order"]
    view: str
    id: str  # random; an order that comes twice acts once
    kind: str
    run: int | None
    args: dict[str, Json]


class Ask(TypedDict):
    """A question.

    What each `what` takes in `args` and gets as `data`:

    - "snapshot": nothing; a Snapshot message follows.
    - "library": {"name": "plotly"}; the JavaScript source as buffer.
    - "form": {"run"}; {"fields": [Field], "warm": "" or why a warm clone cannot be made at all}.
    - "check": {"run", "changes", "warm"}; {"errors": {path or "": text}, "warm": "" or reason why
      these changes cannot be warm, "changed": {path: [old, new]}, "line": magic}.
    - "schedule": {"run", "changes", "warm"}; {"steps": [..], "parent": [..], "clone": [..],
      "from_step": int}: learning rates at steps.
    - "config": {"run"}; {"values": {path: value}}.
    - "log": {"run", "lines": 200}; {"text"}: the end of its train.log, and its trace if it failed.
    - "peek": {"run"}; {"rows": [[{"text", "learned": bool}]]}.
    - "data": nothing; {"chunks": [Chunk], "rows", "measured", "unit"}: balance of the chunks, as
      `data.balance` measures it; no chunks where they are shares of steps.
    - "export": {"format": "csv"|"parquet"|"html"|"adapter", "run"?}; {"file": name, "mime"} and the
      bytes as buffer, or {"path"} for the adapter's folder (relative to the kernel's directory).
    - "samples": {"chunk", "runs"}; {"chunks": [..], "chunk", "prompts": [Sample]}. Without a chunk,
      the newest that over half of these runs have answered after.
    - "analysis": {"metric"}; {"metric", "mode", "at", "used": runs, "effects": [EffectRow],
      "notes": [text]}: what each hyperparameter did.
    - "sample": {"runs", "prompts"}; {"predictions": {run: [text]}}.
    - "policies": nothing; {"policies": [Policy]}. {"would": key}; {"would": [text]}, what one would
      do now, and "missing": which setting it needs first.
    """

    type: Literal["ask"]
    view: str
    id: str
    what: str
    args: dict[str, Json]


class Field(TypedDict):
    """One hyperparameter of the clone form."""

    path: str  # "training_args.learning_rate"
    label: str  # "learning_rate"
    group: str  # "Training", "Adapter", "Model"
    kind: Literal["int", "float", "bool", "choice", "text", "list", "fixed"]
    value: Json
    choices: list[Json] | None
    least: Number
    most: Number
    given: bool  # the parent's config sets it; others have their default and come folded
    note: str  # why it is fixed, or its documentation's first sentence


class EffectRow(TypedDict):
    """One change of a hyperparameter, and what it did to the metric."""

    factor: str
    before: str
    after: str
    mean: float
    low: Number
    high: Number
    verdict: Literal["better", "worse", "tie", "unclear"]
    pairs: int


class Setting(TypedDict):
    """One setting of a policy."""

    name: str
    kind: Literal["int", "float", "bool", "text", "list", "fixed"]
    value: Json
    about: str


class Policy(TypedDict):
    """One policy of the tab of policies."""

    key: str
    mode: Literal["on", "dry-run", "off"]
    given: bool  # by run_fit
    about: str
    settings: list[Setting]
    done: str  # its ops, counted
    told: list[tuple[float, str]]  # the newest 20 decisions: seconds since first_time, text


class Sample(TypedDict):
    """One prompt of the Samples tab."""

    prompt: str
    reference: str
    predictions: dict[str, str]  # by run id
    scores: dict[str, dict[str, Number]]  # by run id, by metric
