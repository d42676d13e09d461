"""A run's model outside its experiment: saved to a folder or the hub, with a card that says how.

Any: models, tokenizers, and hyperparameter values as JSON holds them.
"""

import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rapidfire_jupyter import state
from rapidfire_jupyter.encoding import name_of
from rapidfire_jupyter.errors import OpError
from rapidfire_jupyter.events import Event
from rapidfire_jupyter.state import Run

MOST_OFF = 0.1  # how far merged weights may move the logits, for their precision
_HUB_ID = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")  # the hub refuses a card with another base


def save(model: Any, tokenizer: Any, card: str, folder: Path, merged: bool) -> Path:
    """Save a model, its tokenizer and its card.

    Args:
        folder: Must not exist yet, or be empty.
        merged: Put the adapter into the base's weights and save all of them.

    Raises:
        OpError: The folder holds something, or the adapter cannot be merged, or only merged.
    """
    if folder.exists() and any(folder.iterdir()):
        raise OpError(f"{folder} is not empty; give a new folder")
    if hasattr(model, "peft_config"):
        model = _merged(model) if merged else _alone(model)
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    (folder / "README.md").write_text(card, encoding="utf-8")
    return folder


def _alone(model: Any) -> Any:
    """A model with an adapter that others can load.

    Raises:
        OpError: They would get another model.
    """
    from rapidfire_jupyter.training import adapters

    init = getattr(model.active_peft_config, "init_lora_weights", None)
    if not adapters.loads_alone(model.active_peft_config):
        raise OpError(
            f"an adapter with init_lora_weights={init!r} is loaded by PEFT onto another base: its "
            "SVD is randomised and made anew; save it with merged=True"
        )
    return model


def _merged(model: Any) -> Any:
    """The base with the adapter in its weights, checked to say what the two said.

    Raises:
        OpError: The adapter cannot be put into the weights.
    """
    kind = model.active_peft_config.peft_type.value
    refused = f"an adapter of {kind} cannot be merged; save it with merged=False"
    if not hasattr(model, "merge_and_unload") or model.active_peft_config.is_prompt_learning:
        raise OpError(refused)
    before = _says(model)
    _untie(model)
    try:
        made = model.merge_and_unload()
    except Exception as error:  # PEFT's methods refuse in ways of their own
        raise OpError(f"{refused} ({error})") from error
    head = made.get_output_embeddings()
    if head is not None and not head.weight.equal(made.get_input_embeddings().weight):
        made.config.get_text_config().tie_word_embeddings = False
        made.config.tie_word_embeddings = False
    off = float((_says(made) - before).abs().max() / before.abs().max())
    if not off < MOST_OFF:
        raise OpError(f"{refused} (merged, it would say something else: its logits differ)")
    return made


def _says(model: Any) -> Any:
    """Logits of a few tokens."""
    import torch

    device = next(model.parameters()).device
    with torch.no_grad():
        return model.eval()(input_ids=torch.arange(5, device=device)[None]).logits.float()


def _untie(model: Any) -> None:
    """Part the head's weights from the embeddings', where an adapter goes into either.

    Merged into weights that both use, it would change both, or go in twice.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer
    from torch import nn

    ends = model.get_base_model().get_input_embeddings(), model.get_output_embeddings()
    if any(isinstance(end, BaseTunerLayer) for end in ends):
        embeddings, head = (getattr(end, "base_layer", end) for end in ends)
        if head is not None and head.weight is embeddings.weight:
            head.weight = nn.Parameter(head.weight.detach().clone(), requires_grad=False)


def push(
    model: Any, tokenizer: Any, card: str, repo_id: str, merged: bool, private: bool, token: Any
) -> str:
    """Upload a model, its tokenizer and its card to the hub; gives the address.

    Raises:
        OpError: The adapter cannot be merged. Errors of the hub are its own.
    """
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory() as folder:
        saved = save(model, tokenizer, card, Path(folder) / "model", merged)
        api = HfApi(token=token)
        repo = api.create_repo(repo_id, private=private, exist_ok=True)
        api.upload_folder(repo_id=repo.repo_id, folder_path=str(saved))
    return str(repo)


def card(run: Run, runs: Mapping[int, Run], events: list[Event], facts: Mapping[str, Any]) -> str:
    """The model card: what was trained, on which data, from which run, with what result.

    Args:
        facts: Of the experiment, as `experiment.json` has them.
    """
    base = str(run.config.get("model_name", ""))
    adapter = any(key.startswith("peft_config") for key in run.config)
    kind = run.trainer_type
    head = {
        **({"base_model": base} if _HUB_ID.fullmatch(base) else {}),
        "library_name": "peft" if adapter else "transformers",
        "tags": ["rapidfire-jupyter", "trl", kind.lower()],
    }
    rows = state.history(events, run.id)
    last: dict[str, Any] = {}
    for row in rows:
        last.update(row)
    exact = "yes" if not run.inexact else f"no: {'; '.join(run.inexact)}"
    lines = [
        "---",
        *(f"{key}: {json.dumps(value)}" for key, value in head.items()),
        "---",
        "",
        f"# {facts.get('name', '')}, run {run.id}: {run.name}",
        "",
        f"{kind} of `{base}` with rapidfire-jupyter and TRL; "
        f"{run.status} at step {run.step} of {run.total_steps}.",
        "",
        "## Configuration",
        "",
        *_table(("argument", "value"), [(k, _shown(k, v)) for k, v in run.config.items()]),
        "## Data",
        "",
        *_table(
            ("fact", "value"),
            [(k, facts[k]) for k in _DATA if facts.get(k) is not None],
        ),
        "## Metrics",
        "",
        *_table(("metric", "last value"), sorted((k, v) for k, v in last.items() if k != "step")),
        "## Lineage",
        "",
        *_lineage(run, runs),
        "",
        f"Equal to plain TRL bit for bit: {exact}.",
        "",
        "## Versions",
        "",
        *_table(("package", "version"), sorted(facts.get("versions", {}).items())),
    ]
    return "\n".join(lines)


_DATA = (
    *("train_rows", "tasks", "train_fingerprint", "eval_fingerprint"),
    *("seed", "num_chunks", "chunk_size"),
)


def _lineage(run: Run, runs: Mapping[int, Run]) -> list[str]:
    lines = []
    one: Run | None = run
    while one is not None and one.parent is not None:
        how = f"warm, at step {one.clone_step}" if one.warm else "cold"
        lines.append(f"- run {one.id} is a clone of run {one.parent} ({how})")
        one = runs.get(one.parent)
    return lines or [f"- run {run.id} was in the experiment from its beginning"]


def _table(head: tuple[str, str], rows: list[tuple[str, Any]]) -> list[str]:
    cells = [f"| {key} | {str(value).replace('|', chr(92) + '|')} |" for key, value in rows]
    return [f"| {head[0]} | {head[1]} |", "| --- | --- |", *cells, ""]


def _shown(key: str, value: Any) -> str:
    """A value without secrets; of code its name."""
    if isinstance(value, dict):
        if "secret" in value:
            return "***"
        if name := name_of(value):
            return f"`{name}`"
    return f"`{json.dumps(value)}`"
