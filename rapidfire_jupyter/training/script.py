"""The plain TRL script of a run: no engine, no chunks, the same numbers bit for bit.

It reads the data sets from a copy beside it. Functions and objects of the config are in it as
`source.py` writes them: imported, or as source; what has none is a place to fill in.

Any: the user's functions and callbacks, and values of configs.
"""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from rapidfire_jupyter import mixture, storage
from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.data import tasks
from rapidfire_jupyter.data.mapping import chat_template
from rapidfire_jupyter.data.mixing import mixed_rows, tasks_rows, turns
from rapidfire_jupyter.data.plan import ChunkPlan, shuffled_order, stratified_order
from rapidfire_jupyter.data.sets import fingerprint
from rapidfire_jupyter.training import frozen, models, prepared, token_budget, trainers
from rapidfire_jupyter.training.source import Writer

_ORDER = '''
{function}

class PlanOrder(torch.utils.data.Sampler):
    """The kept rows in the experiment's order: {what} of all rows for each epoch."""

    def __init__(self, kept):
        self.index = {{row: i for i, row in enumerate(kept)}}
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = {call}
        self.epoch += 1
        return iter([self.index[row] for row in order if row in self.index])

    def __len__(self):
        return {length}
'''

_CHUNKS = """
class AtChunkEnds(TrainerCallback):
    '''Evaluate and save where the experiment's chunks end.'''

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step in {ends}:
            control.should_evaluate = control.should_evaluate or {evaluate}
            control.should_save = control.should_save or {save}
"""

_USE_ORDER = """
kept = trainer.train_dataset["{column}"]
trainer.train_dataset = trainer.train_dataset.remove_columns("{column}")
if {always} or len(kept) < {rows}:
    order = PlanOrder(kept)
    trainer._get_train_sampler = lambda dataset=None: order
"""


def plain_trl(
    folder: Path,
    data: trainers.FitData,
    sets: tuple[Any, Any],
    create_model: models.CreateModel,
    config: RunConfig,
    chunk_ends: Sequence[int],
) -> str:
    """Write the script of a run; puts a copy of the data sets under `folder`/data.

    Args:
        folder: The experiment's folder.
        data: The data sets of the fit.
        sets: Both data sets as the run's trainer gets them.
        create_model: The user's create_model_fn.
        config: The run's.
        chunk_ends: Steps at which its chunks end, for the strategies "chunk".
    """
    train = _saved(folder / "data", "train", sets[0], sets[0] is data.train)
    writer = Writer(folder / "data")
    trainer_class, args_class = trainers.trainer_classes(config)
    ours = trainers.own_arguments(config)
    for one in (args_class,) if ours else (args_class, trainer_class):
        writer.name_of(one)
    values = trainers.argument_values(config, data.seed)
    values.pop("save_total_limit", None)
    ordered = prepared.follows_plan(config, sets[0])
    body = [
        f"torch.set_num_threads({torch.get_num_threads()})",
        f"set_seed({data.seed})  # as the experiment does before it loads a base",
        *_model_lines(writer, create_model, config, trainers.run_seed(config, data.seed)),
        f"train_dataset = {train}",
        f"eval_dataset = {_eval_sets(folder / 'data', sets[1], data.eval)}",
    ]  # fmt: skip
    if config.model.chat_template is not None:
        body.insert(3, f"tokenizer.chat_template = {chat_template(config.model.chat_template)!r}")
    if config.model.formatting_func is not None:
        name = getattr(config.model.formatting_func, "__name__", "formatting_func")
        body.append(f"# both as {name} (formatting_func) gave them")
    if ordered:
        body.append(
            f'train_dataset = train_dataset.add_column("{prepared.ROW_COLUMN}", '
            "list(range(len(train_dataset))))"
        )
    keywords = _keywords(writer, config)
    reference = _reference(writer, create_model, config)
    if reference:
        keywords["ref_model"] = reference
    if ours:
        writer.sources.append(inspect.getsource(inspect.getmodule(trainer_class) or trainer_class))
        keywords.update({k: writer.value(v) for k, v in ours.items()})
    max_tokens = trainers.token_budget(config)
    if max_tokens is not None:
        writer.sources.append(inspect.getsource(token_budget))
    given = trainers.given_args(config)
    at_chunks = {kind: given.get(f"{kind}_strategy") == "chunk" for kind in ("eval", "save")}
    if any(at_chunks.values()):
        writer.need("from transformers import TrainerCallback")
        ends = sorted(set(chunk_ends))
        writer.sources.append(
            _CHUNKS.format(ends=ends, evaluate=at_chunks["eval"], save=at_chunks["save"])
        )
        others = keywords.get("callbacks", "[]").strip("[]")
        keywords["callbacks"] = f"[{others}{', ' if others else ''}AtChunkEnds()]"
    body += [
        f"args = {args_class.__name__}(",
        '    output_dir="plain_trl",',
        *[f"    {k}={writer.value(v, k)}," for k, v in values.items()],
        ")",
        *_adapter_lines(writer, trainer_class, config),
        f"trainer = {trainer_class.__name__}(",
        "    model=model,",
        "    args=args,",
        "    train_dataset=train_dataset,",
        "    eval_dataset=eval_dataset,",
        "    processing_class=tokenizer,",
        *[f"    {k}={v}," for k, v in keywords.items()],
        ")",
    ]
    if ordered:
        body.append(
            _USE_ORDER.format(
                column=prepared.ROW_COLUMN,
                rows=data.plan.rows,
                always=bool(data.plan.strata or data.plan.tasks),
            ).strip()
        )
    if max_tokens is not None:
        body.append(f"compute_in_parts(trainer, {max_tokens})")
    body += ["trainer.train()", 'trainer.save_model("plain_trl/final")', "trainer.save_state()"]
    head = [
        f'"""Plain TRL: {config.trainer.name} run as experiment {folder.name!r} trains it."""',
        "import json",
        "from collections.abc import Sequence",
        "import torch",
        "from datasets import load_from_disk",
        "from transformers import set_seed",
        *writer.imports,
    ]
    return (
        "\n".join(
            [*head, _order(folder, data.plan, config) if ordered else "", *writer.sources, *body]
        )
        + "\n"
    )


def _eval_sets(folder: Path, dataset: Any, given: Any) -> str:
    """How the eval data is loaded; several by the name of their task."""
    own = tasks.by_name(given)
    loads = {
        name: _saved(folder, _file("eval", name), one, one is own[name])
        for name, one in tasks.by_name(dataset).items()
    }
    if isinstance(dataset, dict):
        return "{" + ", ".join(f"{name!r}: {load}" for name, load in loads.items()) + "}"
    return loads.get("", "None")


def _file(kind: str, task: str) -> str:
    return f"{kind}-of-{task}" if task else kind


def _order(folder: Path, plan: ChunkPlan, config: RunConfig) -> str:
    """The order of rows, by the very functions that the experiment uses; strata are in a file."""
    length = "len(self.index)"
    if plan.tasks:
        times, rows = mixture.in_parts(config.model.mixture["weights"]), plan.rows
        function = "\n\n".join(inspect.getsource(one) for one in (tasks_rows, turns, mixed_rows))
        function = f"from collections.abc import Iterable\n\n{function}"
        call = (
            f"mixed_rows(tasks_rows({plan.tasks}, self.index), {times}, {plan.seed}, "
            f"self.epoch * {rows}, (self.epoch + 1) * {rows})"
        )
        what, length = "a mixture of tasks by weights, from a seeded permutation", str(rows)
    elif not plan.strata:
        call = f"shuffled_order({plan.rows}, {plan.seed}, self.epoch)"
        function, what = inspect.getsource(shuffled_order), "a seeded permutation"
    else:
        path = folder / "data" / "strata.json"
        storage.write_json(path, list(plan.strata))
        call = f"stratified_order(STRATA, {plan.seed}, self.epoch)"
        function, what = inspect.getsource(stratified_order), "a seeded, stratified permutation"
        function = f"{function}\n\nSTRATA = json.load(open({str(path)!r}))"
    return _ORDER.format(function=function, what=what, call=call, length=length)


def _saved(folder: Path, name: str, dataset: Any, given: bool) -> str:
    """Save a data set; one that is not as the user gave it has its content in its name.

    Returns:
        Source that gives it.
    """
    import datasets

    if not hasattr(dataset, "__len__"):
        return "...  # a stream has no copy: put here what run_fit was given"
    target = folder / (name if given else f"{name}-{fingerprint(dataset)}")
    if not target.exists():
        silent = datasets.are_progress_bars_disabled()
        datasets.disable_progress_bars()
        try:
            dataset.save_to_disk(str(target))
        finally:
            if not silent:
                datasets.enable_progress_bars()
    return f"load_from_disk({str(target)!r})"


def _model_lines(
    writer: Writer, create_model: Callable[..., Any], config: RunConfig, seed: int
) -> list[str]:
    call = _model_call(writer, create_model, config)
    lines = [f"model, tokenizer = {call}"]
    if create_model is models.default_create_model and config.trainer.rows == "Reward":
        lines.append(f"{writer.name_of(models.draw_head)}(model, {seed})")
    return lines


def _model_call(writer: Writer, create_model: Callable[..., Any], config: RunConfig) -> str:
    reads = models.ModelConfig(config)
    values = {key: reads[key] for key in reads}
    inner = ", ".join(f"{k!r}: {writer.value(v, k)}" for k, v in values.items())
    return f"{writer.name_of(create_model)}({{{inner}}})"


def _keywords(writer: Writer, config: RunConfig) -> dict[str, str]:
    model = config.model
    keywords = {k: writer.value(v, k) for k, v in (model.trainer_kwargs or {}).items()}
    takes = trainers.keywords_of(trainers.trainer_classes(config)[0])
    if model.peft_config is not None and "peft_config" in takes:
        keywords["peft_config"] = _adapter(writer, config)
    if "reward_funcs" in takes and model.reward_funcs is not None:
        keywords["reward_funcs"] = _rewards(writer, model.reward_funcs)
    if "compute_metrics" in takes and model.compute_metrics is not None:
        keywords["compute_metrics"] = writer.value(model.compute_metrics, "compute_metrics")
    if model.data_collator is not None:
        keywords["data_collator"] = writer.value(model.data_collator, "data_collator")
    if model.callbacks:
        keywords["callbacks"] = f"[{', '.join(writer.callback(c) for c in model.callbacks)}]"
    return keywords


def _adapter_lines(writer: Writer, trainer_class: Any, config: RunConfig) -> list[str]:
    """The adapter around the model, where the trainer does not put it there."""
    known = trainers.keywords_of(trainer_class)
    if config.model.peft_config is None or "peft_config" in known:
        return []
    writer.need("from peft import get_peft_model")
    return ["set_seed(args.seed)", f"model = get_peft_model(model, {_adapter(writer, config)})"]


def _adapter(writer: Writer, config: RunConfig) -> str:
    adapter = config.model.peft_config
    given = getattr(adapter, "given", None)
    target = getattr(adapter, "target", ("peft", type(adapter).__name__))
    writer.need(f"from {target[0]} import {target[1]}")
    values = given if given is not None else _peft_given(adapter)
    return f"{target[1]}({', '.join(f'{k}={writer.value(v, k)}' for k, v in values.items())})"


def _rewards(writer: Writer, given: Any) -> str:
    """Reward functions one by one, so that each of which there is no source is named."""
    if not isinstance(given, list | tuple):
        return writer.value(given, "reward_funcs")
    return f"[{', '.join(writer.value(one, 'reward_funcs') for one in given)}]"


def _peft_given(peft_config: Any) -> dict[str, Any]:
    """The arguments of a PEFT config that differ from what it has by default."""
    plain = type(peft_config)()
    names = [f.name for f in dataclasses.fields(peft_config) if f.init]
    values = {n: getattr(peft_config, n) for n in names}
    return {n: v for n, v in values.items() if n != "peft_type" and v != getattr(plain, n)}


def _reference(writer: Writer, create_model: Callable[..., Any], config: RunConfig) -> str:
    """The reference model of DPO and KTO, where TRL does not make it from the adapter's base."""
    model = config.model
    if "ref_model" in (model.trainer_kwargs or {}):
        return ""
    if model.ref_model_name is not None:
        writer.need("from trl.trainer.utils import create_model_from_path")
        options = f", **{writer.value(model.ref_model_kwargs)}" if model.ref_model_kwargs else ""
        return f"create_model_from_path({model.ref_model_name!r}{options})"
    if frozen.base_is_reference(config):
        return f"{_model_call(writer, create_model, config)}[0].eval()"
    return ""
