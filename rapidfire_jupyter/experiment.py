"""What the user holds: an experiment, its runs, and the ops on them.

`Experiment` opens a folder and shows what happened there; `run_fit` checks everything a user gave
and hands the training to the process's engine. Nothing here waits for training unless asked to.
"""

import inspect
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rapidfire_jupyter import folders, front_ends, op_args, showing, storage, waiting
from rapidfire_jupyter.config import refuse_unknown
from rapidfire_jupyter.errors import ConfigError, ExperimentError, OpError
from rapidfire_jupyter.events import Event
from rapidfire_jupyter.opened import Opened
from rapidfire_jupyter.ops import Op, OpHandle
from rapidfire_jupyter.runs import RunTable, RunView
from rapidfire_jupyter.state import ACTIVE, State
from rapidfire_jupyter.texts import is_text

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from rapidfire_jupyter import analyses
    from rapidfire_jupyter.config import RunConfig
    from rapidfire_jupyter.data.balance import Balance
    from rapidfire_jupyter.fit import Fit
    from rapidfire_jupyter.ranking import At
    from rapidfire_jupyter.switches import Mode
    from rapidfire_jupyter.ui.panel import Panel

_open: dict[Path, "Experiment"] = {}
_open_lock = threading.Lock()


class Experiment:
    """A named experiment on disk, live in this kernel.

    `Experiment(name)` gives the same object while it is open in this kernel; in a later kernel it
    opens the folder with all results, and the same `run_fit` goes on where training was.

    Args:
        name: Name of the folder under `root`.
        root: Where experiments are kept.

    Raises:
        ExperimentError: The name cannot be a folder's, or its log is damaged.
    """

    name: str
    folder: Path

    def __new__(cls, name: str, root: str | Path = "rapidfire_experiments") -> "Experiment":
        """Give the live object of this folder if this kernel has it open."""
        folder = folders.experiment_folder(root, name).resolve()
        with _open_lock:
            known = _open.get(folder)
            if known is not None and known._opened.is_on_disk():
                known._take_over()
                return known
            if known is not None:  # its folder was deleted
                known._abandon()
            made = super().__new__(cls)
            made._start(name, folder)
            _open[folder] = made
        front_ends.announce()
        return made

    def _start(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self._opened = Opened(folder)
        self._fit: Fit | None = None
        self._ended: Fit | None = None  # its functions still load models
        self._asked: list[OpHandle] = []
        self._panel: Panel | None = None
        self._shown_in: int | None = None  # number of the cell that run_fit showed the panel under
        self._fitting = threading.Lock()  # one run_fit at a time

    def _take_over(self) -> None:
        if self._opened.take_over():
            self._panel = None  # it shows the log as it was

    def _abandon(self) -> None:
        from rapidfire_jupyter import fitting

        if self._fit is not None:
            self._fit.halted = f"the folder of experiment {self.name!r} was deleted"
            fitting.end(self._fit)
        self._opened.abandon()

    # ---- training ----

    def run_fit(
        self,
        config_group: Any,
        create_model_fn: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        num_chunks: int | None = None,
        chunk_size: int | None = None,
        seed: int = 42,
        *,
        num_shards: int | None = None,
        trainer_type: str | type | None = None,
        slice_steps: int | None = None,
        slice_seconds: float | None = None,
        checkpoint_seconds: float = 300.0,
        keep_checkpoints: int = 2,
        eval_rows: int = 64,
        generate_rows: int = 16,
        max_new_tokens: int = 64,
        eval_budget: float = 0.1,
        strategy: Literal["shuffle", "stratified", "auto"] = "shuffle",
        stratify: str | None = None,
        isolation: Literal["mark", "cells"] = "mark",
        weight: float = 1.0,
        policies: Any = None,
        phases: Any = None,
        monitors: Any = None,
        dry_run: bool = False,
        on_alert: Any = None,
        memory: Literal["auto", "level1", "level2", "level3"] | None = None,
        device_memory: int | str | None = None,
        host_memory: int | str | None = None,
        block: bool = False,
        panel: bool = True,
        **unknown: Any,
    ) -> "Experiment":
        """Train every configuration of a group, chunk by chunk in turns; returns at once.

        Called again with the same arguments (Run All, or a new kernel after a crash) it attaches to
        the runs there are and goes on. Any: the accepted kinds of arguments share no type.

        Args:
            config_group: RFGridSearch, RFRandomSearch, an RFModelConfig, or a nested list of them.
            create_model_fn: `create_model_fn(model_config) -> (model, tokenizer)`, called once for
                each distinct set of values it reads. None loads `model_name`.
            train_dataset: datasets.Dataset or IterableDataset, list of dicts, or DataFrame; or
                `mix(...)` of several, by weights that may be compared.
            eval_dataset: As train_dataset, or a dict of such by name, each reported by itself;
                None for no evaluation.
            num_chunks: Chunks in an epoch; default 8. `num_shards` is the same.
            chunk_size: Rows in a chunk, in place of num_chunks.
            seed: Of the row order, of adapters, dropout and sampling, unless a config has its own.
            slice_steps: Optimizer steps in a slice; default is one chunk.
            slice_seconds: Seconds of a slice; default is one chunk.
            checkpoint_seconds: Longest training that a crash may lose, if a chunk is longer.
            keep_checkpoints: Newest checkpoints kept of each run, besides its best one.
            eval_rows: Rows of eval_dataset evaluated at chunk ends, evenly picked; 0 for all.
            generate_rows: Rows of eval_dataset that each run answers at chunk ends, evenly picked,
                for BLEU, chrF, ROUGE, exact match and samples; 0 for none.
            max_new_tokens: Longest answer.
            eval_budget: Share of wall time that evaluations and answers may take, from 0 to 1;
                where they would take more, they come at fewer chunk ends, the same for all runs,
                and always at the last one. 1 for all chunk ends.
            strategy: Order of rows. "shuffle" is plain TRL's; "stratified" gives each chunk its
                share of short and long rows, and of the values of `stratify`; "auto" does so if a
                shuffled chunk differs from the whole by more than chance.
            stratify: A column of train_dataset for strategy "stratified" or "auto".
            isolation: "mark" goes on while cells run and marks a run in `run.exact` if a cell may
                have drawn from its random stream; "cells" pauses while a cell runs (at most 2 s).
            weight: Share of training time among experiments of this kernel.
            policies: What stops, clones and boosts runs by itself, at chunk ends: `[Halving()]`, or
                names as `"halving"`. What a person resumes, no policy stops again. The policies of
                the last `run_fit` hold.
            phases: A list of `Phase`: screening, clones of the best, the winner alone.
            monitors: What raises alerts; None for all of them, an empty list for none.
            dry_run: Policies only tell what they would do, see `decisions()`.
            on_alert: Functions `f(alert)` that get each alert as a dict, and URLs it is posted to.
            memory: "auto" lets a run that does not fit be changed until it does, in this order:
                gradient checkpointing, 8-bit optimizer, activations in host memory, smaller
                micro-batches with the same rows per step, base in 4 bit. "level1" is gradient
                checkpointing from the start, "level2" the next two as well, "level3" all, with
                micro-batches of one row. None makes micro-batches smaller, where memory runs out.
            device_memory: What bases and runs may hold on the device at a time, as bytes, "20 GB"
                or "80%"; the rest waits in host memory or on disk. None moves nothing.
            host_memory: What may wait in host memory, likewise; beyond it is the disk. None is 80 %
                of what is free; nothing without a GPU.
            block: Wait until all runs are done.
            panel: Show the live panel under the cell, in a notebook.
            unknown: Refused, with the nearest name.

        Raises:
            ConfigError: A configuration cannot be trained.
            DataError: A data set cannot be trained on.
            ExperimentError: The experiment has other configurations or data, has ended, or
                another kernel owns it.
        """
        from rapidfire_jupyter import fitting
        from rapidfire_jupyter.oversight import overseeing
        from rapidfire_jupyter.request import Request

        known = [p for p in inspect.signature(self.run_fit).parameters if p != "unknown"]
        refuse_unknown("run_fit", unknown, known)
        if num_shards is not None:
            if num_chunks is not None:
                raise ConfigError("num_shards is another name of num_chunks; give one of them")
            num_chunks = num_shards
        if num_chunks is None and chunk_size is None:
            num_chunks = 8
        if self._opened.is_on_disk():
            self._take_over()
        self._opened.check_writable(self.name)
        oversight = overseeing(policies, phases, monitors, dry_run, on_alert)
        request = Request(
            config_group=config_group,
            create_model=create_model_fn,
            train=train_dataset,
            eval=eval_dataset,
            num_chunks=num_chunks,
            chunk_size=chunk_size,
            seed=seed,
            trainer_type=trainer_type,
            slice_steps=slice_steps,
            slice_seconds=slice_seconds,
            checkpoint_seconds=checkpoint_seconds,
            keep_checkpoints=keep_checkpoints,
            eval_rows=eval_rows,
            generate_rows=generate_rows,
            max_new_tokens=max_new_tokens,
            eval_budget=eval_budget,
            isolation=isolation,
            weight=weight,
            oversight=oversight,
            strategy=strategy,
            stratify=stratify,
            memory=memory,
            device_memory=device_memory,
            host_memory=host_memory,
        )
        with self._fitting:
            try:
                self._fit = fitting.start(
                    self.name, self.folder, self._opened.log, self.state, self._fit, request
                )
            except OSError as error:
                if error.errno not in storage.DISK_ERRORS:
                    raise
                raise ExperimentError(
                    f"the disk of {self.folder} is full or failing ({error.strerror}); free space, "
                    "then run this cell again"
                ) from error
        if panel:
            showing.show_in_notebook(self)
        if block:
            self.wait()
        return self

    # ---- what is seen ----

    def panel(self) -> "Panel":
        """The live view of this experiment; a cell that ends with it shows it.

        It may be shown any number of times; all views are of one and the same. Ops in it are those
        of this object. An ended experiment is shown as it was.
        """
        if self._panel is None or self._panel.comm is None:
            self._panel = showing.make_panel(self)
        return self._panel

    def figure(
        self, metric: str = "loss", x: Literal["step", "epoch", "rows", "time"] = "step"
    ) -> "go.Figure":
        """A metric of every run as a plotly figure. Needs the package plotly.

        Args:
            metric: A logged name, as in `results()`.
            x: "step", "epoch", "rows" seen, or "time" in seconds since the first event.

        Raises:
            OpError: No run has logged this metric, or plotly is not installed.
        """
        return showing.figure(self, metric, x)

    def report(self, path: str | Path = "report.html") -> Path:
        """Write a page with all curves, the table and the best configuration; gives its path.

        It is one file, without script, and needs no network.
        """
        return showing.export(self, path, "html")

    # ---- what there is ----

    @property
    def runs(self) -> "RunTable":
        """The runs, as a table that can be printed, indexed from 0, and asked `by id`."""
        return RunTable(self)

    @property
    def status(self) -> str:
        """One of empty, running, paused, halted, idle (nothing is left to train), ended."""
        if self._fit is not None and self._fit.halted:
            return "halted"
        if not self.state.runs:
            return "empty"
        starting = self._fitting.locked()  # its runs are known before it trains
        if not starting and (self._fit is None or self.state.ended):
            return "ended"
        if self.state.paused:
            return "paused"
        return "running" if any(r.status in ACTIVE for r in self.state.runs.values()) else "idle"

    @property
    def state(self) -> State:
        """The state as the event log gives it."""
        return self._opened.state

    @property
    def read_only(self) -> bool:
        """Whether another kernel owns the folder."""
        return self._opened.read_only

    @property
    def events(self) -> list[Event]:
        """Everything that happened, in order."""
        return self._opened.log.since(0)

    def chunks(self, tokenizer: Any = None) -> "Balance":
        """How alike the chunks of the training data are; `.figure()` draws it.

        Args:
            tokenizer: Measures again, by its tokens instead of words, for as long as this kernel
                has the data. Any: a tokenizer of transformers.

        Raises:
            OpError: Nothing was trained yet, or on a stream, whose chunks are shares of steps, or
                on a mixture, in which each run has its own order.
        """
        from rapidfire_jupyter import chunking

        return chunking.known(self, tokenizer)

    def run(self, run_id: int) -> "RunView":
        """The run with this id.

        Raises:
            OpError: There is none.
        """
        if type(run_id) is not int or run_id not in self.state.runs:
            known = ", ".join(map(str, self.state.runs)) or "none yet"
            raise OpError(f"there is no run {run_id!r:.60}; runs: {known}")
        return RunView(self, run_id)

    def results(self) -> "pd.DataFrame":
        """Every logged row of every run that is not deleted, with run, name, step and chunk."""
        from rapidfire_jupyter import findings

        return findings.results(self)

    def best(
        self,
        metric: str | None = None,
        mode: Literal["min", "max"] | None = None,
        at: "At | None" = None,
    ) -> "RunView":
        """The best run by a metric; a half-trained one never beats one that has finished.

        Args:
            metric: A logged name; None takes eval_loss, or loss where nothing is evaluated.
            mode: Which way is better; None takes "min" for names with loss, perplexity or error.
            at: "end" ranks runs that have finished, by their last value. "same_fraction" ranks all
                where they stood at the largest fraction of the schedule that those which go on
                have reached; a number is that fraction. None is "end" once nothing trains, and
                "same_fraction" before, or if no run has finished.

        Raises:
            ConfigError: `mode` or `at` is none of these.
            OpError: No run has logged this metric, or none can be ranked there.
        """
        from rapidfire_jupyter import analyses

        return analyses.best(self, metric, mode, at)

    def ranking(
        self,
        metric: str | None = None,
        mode: Literal["min", "max"] | None = None,
        at: "At | None" = None,
    ) -> "analyses.Finding":
        """All runs in order, with ties, and why those without a rank have none. Args as `best`."""
        from rapidfire_jupyter import analyses

        return analyses.rank(self, metric, mode, at)

    def compare(
        self,
        first: int,
        second: int,
        metric: str | None = None,
        mode: Literal["min", "max"] | None = None,
    ) -> "analyses.Finding":
        """Two runs side by side, at the largest fraction of the schedule that both have reached.

        Raises:
            OpError: There is no such run, or no fraction at which both have a value.
        """
        from rapidfire_jupyter import analyses

        return analyses.compare(self, first, second, metric, mode)

    def effects(
        self,
        metric: str | None = None,
        mode: Literal["min", "max"] | None = None,
        at: "At | None" = None,
        *,
        noise: float | None = None,
        seed: int = 0,
    ) -> "analyses.Finding":
        """What each hyperparameter did: paired differences over otherwise equal configs.

        Each has a 95 % bootstrap interval and a verdict; interactions of two and what cannot be
        separated are told in `notes`. Warm clones are left out.

        Args:
            metric: As in `best`.
            mode: As in `best`.
            at: "end" takes finished runs, "same_fraction" or a number all that came that far. None
                is the end if all have finished, else the fraction that all have reached: what is
                left of a grid in which policies stopped runs is no fair sample of it.
            noise: Relative difference that is a tie; None takes what `repeatability` measured.
            seed: Of the bootstrap.

        Raises:
            OpError: No run has logged the metric, or fewer than two can be compared.
        """
        from rapidfire_jupyter import analyses

        return analyses.effects(self, metric, mode, at, noise, seed)

    def importance(
        self,
        metric: str | None = None,
        mode: Literal["min", "max"] | None = None,
        at: "At | None" = None,
    ) -> "analyses.Finding":
        """How much of a metric's variance each hyperparameter explains, by fANOVA.

        Raises:
            OpError: optuna or scikit-learn is not installed, or there are too few runs.
        """
        from rapidfire_jupyter import analyses

        return analyses.importance(self, metric, mode, at)

    def repeatability(
        self, run: Any, k: int = 3, metric: str | None = None
    ) -> "analyses.Repeatability":
        """Train a config with `k` seeds in all: the run and `k` - 1 cold clones of it.

        Their spread is the noise floor: what differs by less is a tie to effects, rankings and
        policies. Called again it gives the same runs.

        Args:
            run: A run, its id, or a config that a run has. Any: one of these.
            k: How many seeds.
            metric: As in `best`.

        Raises:
            OpError: There is no such run, or it is a warm clone.
        """
        from rapidfire_jupyter import analyses

        return analyses.repeatability(self, run, k, metric)

    def samples(self, chunk: int = -1, score: str = "rougeL") -> "pd.DataFrame":
        """What each run answered to the same prompts of the eval set, with the references.

        Args:
            chunk: After which chunk; 0 is before training, -1 each run's newest, -2 the one before.
            score: The metric beside each answer: bleu, chrf, rouge1, rouge2, rougeL, exact_match.

        Raises:
            OpError: There are none of this chunk.
        """
        from rapidfire_jupyter import findings

        return findings.answers(self, chunk, score)

    def sample(
        self, run_ids: int | Sequence[int], prompts: Any, max_new_tokens: int = 128
    ) -> "pd.DataFrame":
        """Let runs answer prompts now, between two slices; a row per prompt, a column per run.

        Runs that train answer as they are; others with their finished or newest saved weights.
        Runs of one base share batches where that changes no token.
        Any: a prompt or a list of them, each a text or a list of messages. A text is put in the
        form that the run's own prompts have.

        Raises:
            OpError: A run cannot answer, or the experiment is not training here.
        """
        from rapidfire_jupyter.prompts import sample

        return sample(self, run_ids, prompts, max_new_tokens)

    def decisions(self) -> "pd.DataFrame":
        """What policies decided, in order: the op they asked for and why, and dry runs as such."""
        from rapidfire_jupyter import findings

        return findings.decisions(self)

    def policies(self) -> "pd.DataFrame":
        """All policies: how each is switched, what it has done, and what it would do now."""
        from rapidfire_jupyter import findings

        return findings.policies(self)

    def alerts(self) -> "pd.DataFrame":
        """What monitors found, in order, with the remedies that the panel offers."""
        from rapidfire_jupyter import findings

        return findings.alerts(self)

    # ---- ops ----

    def stop(self, run: int, *, by: str = "cell") -> OpHandle:
        """Stop a run at its next boundary; it is saved and can be resumed."""
        return self._submit(Op("stop", run, by=by))

    def resume(self, run: int, *, by: str = "cell", **longer: Any) -> OpHandle:
        """Let a stopped or failed run go on, or a finished one for longer.

        Args:
            run: Id of the run.
            by: Who asks.
            longer: `num_train_epochs=` or `max_steps=`. The schedule is then that of the new total:
                at each step the learning rate is what the longer schedule prescribes for it.
                Any: hyperparameter values.

        Raises:
            ConfigError: One is no hyperparameter, or has an impossible value.
        """
        return self._submit(op_args.resume(run, longer, self._live(run), by))

    def boost(self, run: int, weight: float = 2.0, *, by: str = "cell") -> OpHandle:
        """Give a run `weight` chunks for each one of a run of weight 1.

        Raises:
            OpError: The weight is no positive number.
        """
        return self._submit(op_args.boost(run, weight, by))

    def mix(
        self, run: int, weights: Mapping[str, float] | Sequence[float], *, by: str = "cell"
    ) -> OpHandle:
        """Weigh the tasks of a run's mixture anew, from its next step on.

        Args:
            run: Id of the run.
            weights: A number for each task, by name or in their order; their proportion counts.
            by: Who asks.

        Raises:
            ConfigError: They are no weights of these tasks.
        """
        return self._submit(op_args.mix(run, weights, self.run(run).config, by))

    def clone(
        self,
        run: int,
        changes: Mapping[str, Any] | None = None,
        warm: bool = False,
        *,
        name: str | None = None,
        again: bool = False,
        by: str = "cell",
        **unknown: Any,
    ) -> OpHandle:
        """Start a new run with a parent's config and some changes.

        Args:
            run: The parent.
            changes: By dotted or short name: `{"training_args.learning_rate": 5e-4}`, `{"r": 16}`.
            warm: From the parent's weights, optimizer state and place in the data, not step 0.
            again: Make another one if this very clone exists already. Any: hyperparameter values.

        Raises:
            ConfigError: A change names no hyperparameter, or has an impossible value.
            OpError: There is no such run.
        """
        if unknown:
            key, value = next(iter(unknown.items()))
            raise OpError(
                f"clone takes its changes as a dict: clone({run}, {{{key!r}: {value!r}}})"
            )
        live = self._live(self.run(run).id)
        return self._submit(op_args.clone(run, changes, warm, name, again, live, by))

    def delete(self, run: int, *, by: str = "cell") -> OpHandle:
        """Delete a run with its own folder; `undelete` brings it back within 30 seconds."""
        return self._submit(Op("delete", run, by=by))

    def undelete(self, run: int, *, by: str = "cell") -> OpHandle:
        """Bring a run back that was deleted less than 30 seconds ago."""
        return self._submit(Op("undelete", run, by=by))

    def pause_all(self, *, by: str = "cell") -> OpHandle:
        """Stop training after the current step; everything stays in memory."""
        return self._submit(Op("pause_all", by=by))

    def resume_all(self, *, by: str = "cell") -> OpHandle:
        """Go on after `pause_all`."""
        return self._submit(Op("resume_all", by=by))

    def policy(
        self, name: str, mode: "Mode" = "on", *, by: str = "cell", **settings: Any
    ) -> OpHandle:
        """Switch a policy while training goes on; `policies()` lists them.

        It holds in later kernels too, until `run_fit` is given other policies than before.

        Args:
            name: As in `run_fit`: "halving", "threshold", "clone best", ...
            mode: "on" acts, "dry-run" only tells, "off" does nothing.
            by: Who asks.
            settings: Its settings: `limit=2.0`; none leaves them as they are. Any: plain values.

        Raises:
            ConfigError: There is no such policy or setting, or a value does not fit.
        """
        from rapidfire_jupyter import findings

        args = findings.switch(self, name, mode, settings)
        return self._submit(Op("policy", None, args, by))

    def undo(self, *, by: str = "cell") -> OpHandle:
        """Take the last op back by its opposite; a delete within 30 seconds.

        Ops asked before it come first. The handle's `op` is then what was done.
        """
        return self._submit(Op("undo", by=by))

    def _live(self, run: int) -> "RunConfig | None":
        """The live config of a run, if there is one; `_submit` refuses what is no run."""
        if self._fit is None or type(run) is not int:
            return None
        return self._fit.configs.get(run)

    def _submit(self, op: Op) -> OpHandle:
        if op.run is not None and type(op.run) is not int:
            known = ", ".join(map(str, self.state.runs)) or "none yet"
            raise OpError(f"a run is named by its number, got {op.run!r:.60}; runs: {known}")
        if not is_text(op.by):
            raise OpError(f"by says who asks as a text, got {op.by!r:.60}")
        if self._fit is None:
            handle = OpHandle(op)
            reason = (
                "another kernel owns this experiment"
                if self.read_only
                else "run its run_fit cell first"
            )
            handle.settle(
                "refused", f"experiment {self.name!r} is not training here; {reason}", None, op.run
            )
            return handle
        from rapidfire_jupyter.engine import engine

        handle = engine().submit(self._fit, op)
        self._asked = [h for h in self._asked if h.status == "pending"] + [handle]
        return handle

    # ---- waiting and ending ----

    def wait(self, timeout: float | None = None) -> "Experiment":
        """Wait until every op has acted and no run is queued, running or paused.

        Interrupting it does not stop training.

        Raises:
            OpError: `timeout` is no number.
            TimeoutError: `timeout` seconds have passed.
            ExperimentError: The experiment's disk failed.
        """

        def done() -> bool:
            asked = any(h.status == "pending" for h in self._asked)
            known = self._fit.configs if self._fit is not None else {}
            active = [i for i, r in self.state.runs.items() if r.status in ACTIVE and i in known]
            # Policies may clone when nothing is left to train.
            undecided = self._fit is not None and self._fit.undecided
            return not (asked or active or undecided)

        try:
            waiting.until(self, done, timeout)
        finally:
            showing.bring_up_to_date(self)
        return self

    def end(self) -> None:
        """Save every run, free all memory, and let another kernel own the folder.

        Results stay readable.
        """
        from rapidfire_jupyter import fitting

        if self._fit is not None:
            fitting.end(self._fit)
            self._ended, self._fit = self._fit, None
        self._opened.close()
        with _open_lock:
            _open.pop(self.folder, None)
        showing.bring_up_to_date(self)

    def _ipython_display_(self) -> None:
        """As the last line of a cell: the runs, unless this very cell shows the panel."""
        if not showing.is_shown_in_this_cell(self):
            from IPython.display import display

            shown = {"text/plain": repr(self), "text/html": self.runs._repr_html_()}
            display(shown, raw=True)  # type: ignore[no-untyped-call]

    def __repr__(self) -> str:
        return f"<Experiment {self.name!r} {self.status}>\n{self.runs!r}"
