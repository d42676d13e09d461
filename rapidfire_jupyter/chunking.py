"""How `run_fit` cuts the training rows into chunks, and what it tells of that.

Any: data sets as `run_fit` takes them, chunk plans.
"""

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.data import tasks
from rapidfire_jupyter.data.balance import Balance, Strategy, balanced, measure
from rapidfire_jupyter.data.plan import ChunkPlan, make_plan
from rapidfire_jupyter.errors import ConfigError, OpError
from rapidfire_jupyter.request import Request
from rapidfire_jupyter.training import trainers

if TYPE_CHECKING:
    from rapidfire_jupyter.experiment import Experiment

FILE = "chunks.json"  # in the experiment folder: how alike the chunks are


def plan(
    request: Request, configs: list[RunConfig], train: Any, mixture: tasks.Mixture | None
) -> tuple[ChunkPlan, Balance | None, list[str]]:
    """The chunks of a request, how alike they are, and what to tell of them.

    Raises:
        ConfigError: The data cannot be cut or ordered like that, or a run would have too many.
    """
    made, notes = _plan(request, configs, train)
    made, chunks = _balanced(request, made, train, mixture)
    for number, config in enumerate(configs, start=1):
        try:
            trainers.check_length(config, made)
        except ConfigError as error:
            raise ConfigError(f"run {number}: {error}") from error
    return made, chunks, notes


def _plan(request: Request, configs: list[RunConfig], train: Any) -> tuple[ChunkPlan, list[str]]:
    """The chunk plan; fewer chunks than asked where one would hold less than a step of a run."""
    if not hasattr(train, "__len__"):
        if request.chunk_size is not None:
            raise ConfigError("chunk_size needs a train_dataset with a length; give num_chunks")
        note = "a stream: chunks are shares of steps, so runs of other batch sizes meet other rows"
        several = len(set(map(_rows_per_step, configs))) > 1
        plan = make_plan(1 << 20, request.seed, request.num_chunks, None)
        return plan, [f"data: train: {note}"] * several
    rows = len(train)
    plan = make_plan(rows, request.seed, request.num_chunks, request.chunk_size)
    asked = request.num_chunks or plan.num_chunks
    steps = min(math.ceil(rows / _rows_per_step(c)) for c in configs)
    if asked <= steps:
        return plan, []
    largest = max(_rows_per_step(c) for c in configs)
    note = (
        f"num_chunks={asked}: an epoch of {rows} rows has only {steps} optimizer "
        f"step{'s' if steps != 1 else ''} of {largest} rows, so it is cut into {steps}"
    )
    return make_plan(rows, request.seed, steps, None), [note]


def _balanced(
    request: Request, plan: ChunkPlan, train: Any, mixture: tasks.Mixture | None
) -> tuple[ChunkPlan, Balance | None]:
    """The plan in the order asked for, and how alike its chunks are.

    A stream has no such order, and in a mixture each run has its own.
    """
    if request.strategy not in get_args(Strategy):
        raise ConfigError(
            f"strategy must be one of {', '.join(get_args(Strategy))}, got {request.strategy!r}"
        )
    if mixture is not None:
        if request.strategy != "shuffle":
            raise ConfigError(
                f"strategy={request.strategy!r} orders one data set; a mixture's order is given "
                "by its weights; leave strategy out"
            )
        return replace(plan, tasks=mixture.sizes), None
    if request.strategy == "shuffle" and request.stratify is not None:
        raise ConfigError(f'stratify={request.stratify!r} needs strategy="stratified" or "auto"')
    if not hasattr(train, "__len__"):
        if request.strategy != "shuffle":
            raise ConfigError(
                f"strategy={request.strategy!r} needs all rows at hand, got a stream; leave it out"
            )
        return plan, None
    return balanced(train, plan, request.strategy, request.stratify)


def uneven(chunks: Balance | None) -> list[str]:
    """What to tell of chunks that differ from the whole, in lines."""
    if chunks is None or not chunks.uneven:
        return []
    numbers = ", ".join(map(str, chunks.uneven[:5])) + ", ..." * (len(chunks.uneven) > 5)
    return [
        f"data: chunks {numbers} differ from the whole by more than chance (see exp.chunks()); "
        'strategy="stratified" evens them out'
    ]


def known(exp: "Experiment", tokenizer: Any) -> Balance:
    """See `Experiment.chunks`."""
    file = exp.folder / FILE
    if not file.exists():
        raise OpError(
            "chunks are measured when run_fit begins, on data that is no stream and no mixture"
        )
    if tokenizer is None:
        return Balance.of(json.loads(file.read_text(encoding="utf-8")))
    fit = exp._fit or exp._ended
    if fit is None:
        raise OpError("tokens are counted in the data: run the cell with run_fit first")
    data = fit.executor.data
    return measure(data.train, data.plan, (exp.state.fit or {}).get("stratify"), tokenizer)


def _rows_per_step(config: RunConfig) -> int:
    args = trainers.given_args(config)
    if config.trainer.rewarded:
        return 1  # its steps are completions; chunks are shares of steps
    return int(args.get("per_device_train_batch_size", 8)) * int(
        args.get("gradient_accumulation_steps", 1)
    )
