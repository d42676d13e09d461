"""Runs as the user holds them: always what the event log says now."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rapidfire_jupyter import folders, state, waiting
from rapidfire_jupyter.encoding import decode
from rapidfire_jupyter.errors import OpError
from rapidfire_jupyter.ops import OpHandle
from rapidfire_jupyter.state import ACTIVE, Run

if TYPE_CHECKING:
    import pandas as pd

    from rapidfire_jupyter.experiment import Experiment


class RunView:
    """One run of an experiment, as it is now."""

    def __init__(self, experiment: "Experiment", run_id: int) -> None:
        self._experiment = experiment
        self.id = run_id

    @property
    def facts(self) -> Run:
        """What the event log knows of this run."""
        return self._experiment.state.runs[self.id]

    @property
    def name(self) -> str:
        """Its name: the config's, or which hyperparameters tell it from the others."""
        return self.facts.name

    @property
    def status(self) -> str:
        """queued, running, paused, stopped, completed, failed or deleted."""
        return self.facts.status

    @property
    def config(self) -> Mapping[str, Any]:
        """Its hyperparameters by dotted name. Any: JSON values."""
        return self.facts.config

    @property
    def parent(self) -> int | None:
        """Id of the run it was cloned from."""
        return self.facts.parent

    @property
    def error(self) -> str:
        """Why it failed, in one line; empty if it did not. `trace` has the traceback."""
        return self.facts.error

    @property
    def trace(self) -> str:
        """The traceback of its last failure."""
        found = [
            e.data["trace"]
            for e in self._experiment.events
            if e.kind == "run_failed" and e.run == self.id
        ]
        return found[-1] if found else ""

    @property
    def exact(self) -> "Exactness":
        """Whether it equals plain TRL bit for bit, as far as we know; false with the reasons."""
        return Exactness(self.facts.inexact)

    @property
    def memory(self) -> "Memory | None":
        """What it takes of the device's memory; None until it was prepared."""
        peaks = [
            e.data["device_bytes"]
            for e in self._experiment.events
            if e.kind == "slice_ended" and e.run == self.id and e.data.get("device_bytes")
        ]
        known = self.facts.memory
        return Memory(known, max(peaks, default=None)) if known else None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Everything it logged, in order. Any: numbers."""
        return state.history(self._experiment.events, self.id)

    @property
    def history(self) -> "pd.DataFrame":
        """Everything it logged: step, chunk, epoch, loss, learning_rate, eval_loss, ..."""
        import pandas as pd

        ends = self.facts.chunk_ends
        rows = [{"chunk": sum(end < row["step"] for end in ends) + 1, **row} for row in self.rows]
        table = pd.DataFrame(rows)
        first = [
            c
            for c in ("step", "chunk", "epoch", "loss", "learning_rate", "eval_loss")
            if c in table
        ]
        return table[first + [c for c in table.columns if c not in first]]

    @property
    def folder(self) -> Path:
        """Its folder in the experiment's."""
        return folders.run_dir(self._experiment.folder, self.id)

    @property
    def checkpoint(self) -> Path | None:
        """Its newest good checkpoint folder; None if it has none yet."""
        from rapidfire_jupyter.training.checkpoints import newest_good

        newest, _ = newest_good(self.folder)
        return newest.path if newest else None

    def load_model(self) -> Any:
        """Load its weights on a fresh base: the finished ones, else its newest checkpoint's.

        Returns:
            (model, tokenizer). Any: Hugging Face objects.

        Raises:
            OpError: It has no weights yet, or its create_model_fn is not known in this kernel.
        """
        return self._load(unpacked=False)

    def _load(self, unpacked: bool) -> Any:
        """Its model and tokenizer. Any: Hugging Face objects.

        Args:
            unpacked: A base in 4 bit is made whole, so that an adapter can be put into it.
        """
        from rapidfire_jupyter.data.mapping import chat_template
        from rapidfire_jupyter.training import checkpoints, models

        finished = self.folder / checkpoints.FINAL
        source = finished if not checkpoints.fault(finished) else self.checkpoint
        if source is None:
            raise OpError(f"run {self.id} has no checkpoint yet; wait for its first chunk")
        model, tokenizer = self._fresh_base()
        if source != finished:  # meanwhile it may have been pruned, and have a successor
            source = self.checkpoint or source
        if unpacked and getattr(model, "is_quantized", False):
            model = model.dequantize()
        if self.config.get("chat_template") is not None:
            tokenizer.chat_template = chat_template(self.config["chat_template"])
        return models.with_weights(model, tokenizer, source, self._seed())

    def save(self, folder: "str | Path", merged: bool = False) -> Path:
        """Save its model, tokenizer and model card to a new folder.

        Args:
            merged: Put the adapter into the base's weights: the folder is then a whole model, which
                `RFModelConfig(folder)` takes as the base of new runs. A base in 4 bit is unpacked.

        Raises:
            OpError: The folder is not empty, there are no weights yet, or they cannot be merged.
        """
        from rapidfire_jupyter import sharing

        model, tokenizer = self._load(unpacked=merged)
        return sharing.save(model, tokenizer, self.card(), Path(folder), merged)

    def push_to_hub(
        self, repo_id: str, merged: bool = False, private: bool = True, token: str | None = None
    ) -> str:
        """Upload what `save` saves to the Hugging Face hub; gives the address.

        Args:
            token: None takes the one of `hf auth login`.
        """
        from rapidfire_jupyter import sharing

        model, tokenizer = self._load(unpacked=merged)
        return sharing.push(model, tokenizer, self.card(), repo_id, merged, private, token)

    def card(self) -> str:
        """Its model card: configuration, data, metrics, lineage and versions, as Markdown."""
        from rapidfire_jupyter import sharing

        facts = self._experiment_facts()
        known = self._experiment.state.runs
        return sharing.card(self.facts, known, list(self._experiment.events), facts)

    def _experiment_facts(self) -> dict[str, Any]:
        """What was written of the experiment when it began."""
        text = (self._experiment.folder / "experiment.json").read_text("utf-8")
        return dict(json.loads(text))

    def _seed(self) -> int:
        """The seed of its adapter."""
        for name in ("seed", "training_args.seed"):
            if self.config.get(name) is not None:
                return int(self.config[name])
        return int(self._experiment_facts()["seed"])

    def _recorded(self, field: str) -> dict[str, Any]:
        """The values of a field of its config that holds several.

        Raises:
            ConfigError: One was an object, which no log holds.
        """
        known = {k: v for k, v in self.config.items() if k.startswith(f"{field}.")}
        return {k.removeprefix(f"{field}."): decode(v, k) for k, v in known.items()}

    def _fresh_base(self) -> tuple[Any, Any]:
        from rapidfire_jupyter.training import models

        fit = self._experiment._fit or self._experiment._ended
        if fit is not None and self.id in fit.configs:
            return fit.executor.create_model(models.ModelConfig(fit.configs[self.id]))
        name = self.config.get("model_name")
        head = "sequence_classification" if self.facts.trainer_type == "Reward" else "causal_lm"
        try:
            values: dict[str, Any] = {
                "model_name": name,
                "model_type": self.config.get("model_type") or head,
                "model_kwargs": self._recorded("model_kwargs"),
                "tokenizer": decode(self.config.get("tokenizer"), "tokenizer"),
                "tokenizer_kwargs": self._recorded("tokenizer_kwargs"),
            }
            return models.default_create_model(values)
        except Exception as error:
            raise OpError(
                f"the base of run {self.id} ({name}) cannot be loaded by name; run its run_fit "
                "cell first, which brings create_model_fn"
            ) from error

    def peek(self) -> "Peek":
        """Its first batch, decoded; tokens that no loss is computed on are greyed."""
        return Peek.read(self.folder / "peek.json")

    def script(self) -> str:
        """A plain TRL script that trains this very run, bit for bit.

        Functions and objects of the config are imported from their modules; those of a notebook
        are in it as source, with the globals they use. For what has no source (a model as a
        teacher, a lambda, two functions of one name) it calls `fill_in`, which stops the script
        and says what to put there. Data sets and tokenizers are copied to the experiment's folder
        `data`; tokens of the hub come from the environment's HF_TOKEN.
        """
        from rapidfire_jupyter.training import script

        fit = self._experiment._fit
        if fit is None or self.id not in fit.configs:
            raise OpError("a script is made from the run's live config; run its run_fit cell first")
        return script.plain_trl(
            fit.folder,
            fit.executor.data,
            fit.executor.sets(fit.configs[self.id]),
            fit.executor.create_model,
            fit.configs[self.id],
            self.facts.chunk_ends,
        )

    def wait(self, timeout: float | None = None) -> "RunView":
        """Wait until it is no longer queued, running or paused.

        Raises:
            TimeoutError: `timeout` seconds have passed.
        """
        waiting.until(self._experiment, lambda: self.facts.status not in ACTIVE, timeout)
        return self

    def stop(self) -> OpHandle:
        """See `Experiment.stop`."""
        return self._experiment.stop(self.id)

    def resume(self, **longer: Any) -> OpHandle:
        """See `Experiment.resume`. Any: hyperparameter values."""
        return self._experiment.resume(self.id, **longer)

    def boost(self, weight: float = 2.0) -> OpHandle:
        """See `Experiment.boost`."""
        return self._experiment.boost(self.id, weight)

    def mix(self, weights: Mapping[str, float] | Sequence[float]) -> OpHandle:
        """See `Experiment.mix`."""
        return self._experiment.mix(self.id, weights)

    def clone(
        self, changes: Mapping[str, Any] | None = None, warm: bool = False, **how: Any
    ) -> OpHandle:
        """See `Experiment.clone`. Any: its keyword arguments."""
        return self._experiment.clone(self.id, changes, warm, **how)

    def delete(self) -> OpHandle:
        """See `Experiment.delete`."""
        return self._experiment.delete(self.id)

    def undelete(self) -> OpHandle:
        """See `Experiment.undelete`."""
        return self._experiment.undelete(self.id)

    def __repr__(self) -> str:
        run = self.facts
        return f"<Run {run.id} {run.name!r} {run.status} step {run.step}/{run.total_steps or '?'}>"


class Exactness:
    """True, or false with reasons."""

    def __init__(self, reasons: tuple[str, ...]) -> None:
        self.reasons = reasons

    def __bool__(self) -> bool:
        return not self.reasons

    def __repr__(self) -> str:
        return "exact" if self else "not exact: " + "; ".join(self.reasons)


class Memory:
    """Bytes that a run takes of its device, by kind; `base` may be shared with other runs.

    `peak` is the most that the device had in use in one of its slices; None where it does not tell.
    """

    def __init__(self, parts: Mapping[str, Any], peak: int | None) -> None:  # Any: JSON values
        self.base, self.weights = int(parts["base"]), int(parts["weights"])
        self.gradients, self.optimizer = int(parts["gradients"]), int(parts["optimizer"])
        self.activations, self.measured = int(parts["activations"]), bool(parts["measured"])
        self.peak = peak

    @property
    def own(self) -> int:
        """What it adds to its base."""
        return self.weights + self.gradients + self.optimizer + self.activations

    def __repr__(self) -> str:
        parts = ["base", "weights", "gradients", "optimizer", "activations"]
        text = ", ".join(f"{name} {_mib(getattr(self, name))}" for name in parts)
        text += " (measured)" if self.measured else " (estimated)"
        peak = "" if self.peak is None else f"; peak of the device {_mib(self.peak)}"
        return f"{_mib(self.base + self.own)}: {text}{peak}"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.1f} MiB"


class RunTable:
    """The runs of an experiment, in order; indexed from 0, prints as a table."""

    def __init__(self, experiment: "Experiment") -> None:
        self._experiment = experiment

    def __iter__(self) -> Iterator[RunView]:
        return iter([RunView(self._experiment, i) for i in self._experiment.state.runs])

    def __len__(self) -> int:
        return len(self._experiment.state.runs)

    def __getitem__(self, index: int) -> RunView:
        try:
            return list(self)[index]
        except IndexError:
            raise OpError(
                f"no run at position {index} of {len(self)}, counted from 0; by its number: "
                f"exp.run({index})"
            ) from None

    def frame(self) -> "pd.DataFrame":
        """A row per run: status, progress, last losses, and the hyperparameters that differ."""
        import pandas as pd

        runs = [r for r in self if r.status != "deleted"]
        names = sorted({k for r in runs for k in r.config})
        varying = [n for n in names if len({repr(r.config.get(n)) for r in runs}) > 1]
        rows = []
        for run in runs:
            facts, logged = run.facts, run.rows
            last = {
                m: next((r[m] for r in reversed(logged) if m in r), None)
                for m in ("loss", "eval_loss")
            }
            rows.append(
                {
                    "id": run.id,
                    "name": run.name,
                    "status": run.status,
                    "step": facts.step,
                    "of": facts.total_steps,
                    "chunk": f"{facts.chunk}/{len(facts.chunk_ends) or '?'}",
                    **last,
                    "weight": facts.weight,
                    "parent": facts.parent,
                    **{
                        n.removeprefix("training_args.").removeprefix(
                            "peft_config."
                        ): run.config.get(n)
                        for n in varying
                    },
                    "error": run.error[:100] or None,
                }
            )
        table = pd.DataFrame(rows)
        for column in ("of", "parent"):
            if column in table:
                table[column] = table[column].astype("Int64")
        empty = [
            c
            for c in ("parent", "error", "loss", "eval_loss")
            if c in table and table[c].isna().all()
        ]
        return table.drop(columns=empty).set_index("id") if len(table) else table

    def cost(self) -> str:
        """What training all of them costs, such as "48 runs x 72 steps x 0.031 s = 1 min 47 s".

        Empty before the first slice is over; what it has cost once nothing is left to train.
        """
        from rapidfire_jupyter import cost
        from rapidfire_jupyter.measures import measured

        price = cost.preview(self._experiment.state, measured(self._experiment.events))
        return "" if price is None else cost.in_words(price)

    def __repr__(self) -> str:
        if not len(self):
            return "no runs yet"
        return "\n".join(filter(None, (self.cost(), self.frame().to_string(na_rep=""))))

    def _repr_html_(self) -> str:
        if not len(self):
            return "no runs yet"
        price = f"<div>{told}</div>" if (told := self.cost()) else ""
        return price + str(self.frame().to_html(na_rep="", escape=True))


class Peek:
    """Decoded rows of a batch: pieces of text, each with whether a loss is computed on it."""

    def __init__(self, rows: list[list[list[Any]]]) -> None:
        self.rows = rows

    @classmethod
    def read(cls, path: Path) -> "Peek":
        """The batch that was kept when the run was prepared.

        Raises:
            OpError: It was not prepared yet.
        """
        if not path.exists():
            raise OpError(
                "this run was not prepared yet; its first batch is known in the first minute"
            )
        return cls(json.loads(path.read_text(encoding="utf-8")))

    def __repr__(self) -> str:
        lines = ["".join(t if learned else f"[{t}]" for t, learned in row) for row in self.rows]
        return "\n".join(f"{number}: {line}" for number, line in enumerate(lines))

    def _repr_html_(self) -> str:
        from html import escape

        body = []
        for row in self.rows:
            spans = [
                f"<span>{escape(t)}</span>"
                if learned
                else f'<span style="opacity:.45">{escape(t)}</span>'
                for t, learned in row
            ]
            body.append(f'<li style="white-space:pre-wrap">{"".join(spans)}</li>')
        return f"<ol start=0>{''.join(body)}</ol>"
