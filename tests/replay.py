"""Simulated experiments for tests of decisions: no torch, but the real state and scheduler.

A run's loss falls towards a floor at a speed given by its learning rate. What makes early decisions
hard is in it: a high rate looks good early and damages what was learned, warm-up delays, a larger
rank shows only late, training noise is shared by runs that see the same rows, evaluations jitter.
"""

import math
from dataclasses import dataclass, field, replace
from random import Random

from rapidfire_jupyter.decisions import Memory, remember, to_data
from rapidfire_jupyter.events import Event
from rapidfire_jupyter.measures import Measures, Slice
from rapidfire_jupyter.ops import verdict
from rapidfire_jupyter.policies import decide_all
from rapidfire_jupyter.scheduler import next_run
from rapidfire_jupyter.state import ACTIVE, State, apply

START = 3.0
TOKENS = 64  # of a row


@dataclass
class Learner:
    """One run as it learns: `loss` is what an infinite evaluation would give."""

    config: dict
    total: int
    seed: int
    loss: float = START
    damage: float = 0.0
    step: int = 0
    luck: float = 0.0

    def rate(self, step):
        args = self.config
        warm = args.get("training_args.warmup_steps", 0.0) * self.total
        peak = args["training_args.learning_rate"]
        if step < warm:
            return peak * (step + 1) / warm
        left = (step - warm) / max(1.0, self.total - warm)
        return peak * 0.5 * (1 + math.cos(math.pi * left))

    def floor(self):
        args = self.config
        late = self.step / self.total
        value = 1.30 + (0.12 if args.get("model_name") == "small" else 0.0)
        value -= 0.03 * late * (args.get("peft_config.r", 8) == 32)
        value -= 0.05 * (args.get("peft_config.target_modules") == "all-linear")
        return value + self.luck

    def advance(self):
        rate = self.rate(self.step) / 1e-3
        batch = self.config.get("training_args.per_device_train_batch_size", 8)
        speed = 1 - math.exp(-8.0 * min(rate, 3.0) ** 0.7 * (16 / batch) ** 0.3 / self.total)
        self.damage += 0.25 * max(0.0, rate - 2.0) / self.total
        self.loss += speed * (self.floor() + 0.06 * rate + self.damage - self.loss)
        self.step += 1
        if self.config.get("diverges") and self.step > self.config["diverges"] * self.total:
            self.loss = math.nan


def grid(warm_ups=(0.0,), rates=(1e-4, 3e-4, 1e-3)):
    """The 48 configurations of the published grid, for each warm-up."""
    return [
        {
            "model_name": base,
            "peft_config.r": rank,
            "peft_config.target_modules": modules,
            "training_args.learning_rate": rate,
            "training_args.per_device_train_batch_size": batch,
            "training_args.warmup_steps": warm,
        }
        for base in ("large", "small")
        for rank in (8, 32)
        for modules in ("q_proj+v_proj", "all-linear")
        for batch in (8, 16)
        for rate in rates
        for warm in warm_ups
    ]


@dataclass
class Replay:
    """An experiment that trains chunk by chunk, with policies deciding at each chunk end."""

    configs: list
    policies: tuple = ()
    seed: int = 0
    chunks: int = 8
    steps: int = 64  # of a run with batch size 8
    evaluate: bool = True
    noise: float = 0.1
    jitter: float = 0.002
    luck: float = 0.01
    people: object = None  # called as people(replay) after each chunk
    state: State = field(default_factory=State)
    rows: dict = field(default_factory=dict)
    events: list = field(default_factory=list)
    learners: dict = field(default_factory=dict)
    log: list = field(default_factory=list)  # all decisions
    trained: dict = field(default_factory=dict)  # chunks by run
    clock: float = 0.0

    def __post_init__(self):
        specs = [
            {"id": i, "name": f"run {i}", "trainer_type": "SFT", "config": config}
            for i, config in enumerate(self.configs, start=1)
        ]
        self.emit("fit_started", runs=specs, fit={"seed": self.seed})
        for run in list(self.state.runs.values()):
            self.prepare(run)

    def emit(self, kind, run=None, /, **data):
        event = Event(len(self.events), self.clock, kind, run, data)
        self.events.append(event)
        self.state = apply(self.state, event)

    def prepare(self, run, step=0):
        batch = run.config.get("training_args.per_device_train_batch_size", 8)
        total = self.steps * 8 // batch
        ends = [total * k // self.chunks for k in range(1, self.chunks + 1)]
        parent = self.learners.get(run.parent)
        if run.warm:
            self.learners[run.id] = replace(parent, config=dict(run.config), total=total)
        else:
            draw = Random(f"{self.seed} luck {sorted(run.config.items())}")
            luck = draw.gauss(0, self.luck)
            self.learners[run.id] = Learner(dict(run.config), total, self.seed, luck=luck)
        self.rows[run.id], self.trained[run.id] = [], 0
        facts = {"total_steps": total, "chunk_ends": ends, "base": "", "step": step}
        self.emit("run_prepared", run.id, **facts)

    def train_chunk(self, run):
        learner, known = self.learners[run], self.state.runs[run]
        end = next(e for e in known.chunk_ends if e > learner.step)
        first, rows = learner.step, self.rows[run]
        self.emit("slice_started", run, step=first)
        own = Random(f"{self.seed} rows {run} {end}")
        while learner.step < end:
            rate = learner.rate(learner.step)
            learner.advance()
            place = round(learner.step / learner.total * self.steps)
            shared = Random(f"{self.seed} {place}").gauss(0, self.noise)
            loss = learner.loss * math.exp(shared + own.gauss(0, self.noise / 5))
            seen = learner.step * 8 * self.steps // learner.total * TOKENS
            row = {"step": learner.step, "loss": loss, "learning_rate": rate, "num_tokens": seen}
            rows.append(row)
        if self.evaluate:
            value = learner.loss * math.exp(own.gauss(0, self.jitter))
            rows.append({"step": end, "eval_loss": value})
        self.trained[run] += 1
        self.clock += 10.0
        self.emit("advanced", run, step=end, chunks=1)
        self.emit("slice_ended", run, step=end, steps=end - first, seconds=10.0)
        if end == known.total_steps:
            self.emit("run_completed", run, step=end)

    @property
    def measures(self):
        ended = [e for e in self.events if e.kind == "slice_ended"]
        slices = [Slice(e.run, e.time, e.data["step"], e.data["steps"], 10.0) for e in ended]
        return Measures(tuple(slices))

    @property
    def memory(self) -> Memory:
        return remember(self.events)

    def act(self, op):
        """Let an op act as the engine would: judged, then an event."""
        judged = verdict(self.state, op, self.clock)
        data = {"kind": op.kind, "args": dict(op.args), "by": op.by, "reason": judged.reason}
        effect = {}
        if judged.outcome == "applied" and op.kind == "clone":
            parent, number = self.state.runs[op.run], max(self.state.runs) + 1
            effect["created"] = {
                "id": number,
                "name": f"clone of {op.run}",
                "trainer_type": "SFT",
                "config": {**parent.config, **op.args["changes"]},
                "parent": op.run,
                "warm": op.args["warm"],
                "changes": dict(op.args["changes"]),
                "clone_step": parent.step if op.args["warm"] else None,
            }
        if judged.outcome == "applied" and op.kind == "boost":
            effect["weight"] = op.args["weight"]
        self.emit("op", op.run, **data, outcome=judged.outcome, **effect)
        if "created" in effect:
            run = self.state.runs[effect["created"]["id"]]
            self.prepare(run, run.clone_step or 0)

    def decide(self):
        found = decide_all(
            self.policies, self.state, self.rows, self.memory, self.measures, self.seed
        )
        if found:
            self.emit("decisions", None, **to_data(found))
        for one in found:
            if one.op is not None:
                self.act(one.op)
        self.log += found

    def run(self):
        """Train until nothing is left; gives itself."""
        for _ in range(100_000):
            if self.policies:
                self.decide()
            run = next_run(self.state, self.state.runs)
            if run is None:
                return self
            self.train_chunk(run)
            if self.people is not None:
                self.people(self)
        raise AssertionError("the experiment does not end")

    # ---- what came of it ----

    @property
    def cost(self):
        """Share of what training all runs of the grid to the end takes."""
        return sum(self.trained.values()) / (len(self.configs) * self.chunks)

    def winner(self):
        """The completed run with the best last evaluation."""
        finals = {
            i: self.rows[i][-1]["eval_loss"]
            for i, run in self.state.runs.items()
            if run.status == "completed" and math.isfinite(self.rows[i][-1]["eval_loss"])
        }
        return min(finals, key=finals.get)

    def regret(self, exhaustive):
        """By how much the winner's true loss is over that of the best run of a whole grid."""
        best = min(o.loss for o in exhaustive.learners.values() if math.isfinite(o.loss))
        return self.learners[self.winner()].loss / best - 1

    def stopped(self):
        return {i for i, run in self.state.runs.items() if run.status == "stopped"}

    def active(self):
        return {i for i, run in self.state.runs.items() if run.status in ACTIVE}
