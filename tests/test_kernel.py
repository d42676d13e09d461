"""Real kernels: where text goes, interrupts, cells beside training, and how kernels end.

Kernels that are only opened to be ended are forked from one process that has imported everything;
each is a whole ipykernel that leaves through Python's own exit.
"""

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.connect import write_connection_file
from jupyter_client.manager import KernelManager
from oracle import assert_same, sliced

from rapidfire_jupyter import Experiment
from rapidfire_jupyter.training.checkpoints import newest_good

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
EXIT_SECONDS = 4.0  # until everything is saved; what Python's own end takes comes on top

# What a first cell of a notebook has: imports and definitions.
DEFINITIONS = """
import random, threading, warnings
import numpy as np, tiny, torch
from rapidfire_jupyter import Experiment, RFLoraConfig, RFModelConfig, RFSFTConfig
from rapidfire_jupyter.waiting import until
torch.set_num_threads(1)
DROPOUT = {"dropout": 0.1}

def config(dropout=None, callbacks=None, **given):
    args = dict(learning_rate=1e-2, per_device_train_batch_size=2, num_train_epochs=1)
    return RFModelConfig(
        "tiny",
        peft_config=RFLoraConfig(r=4, target_modules=["q_proj"]),
        model_kwargs=dropout or {},
        callbacks=callbacks or [],
        training_args=RFSFTConfig(**{**args, "logging_steps": 1, **given}),
    )

def at(exp, run, rows):
    "Wait until a run has logged some rows."
    return until(exp, lambda: len(exp.run(run).rows) >= rows, 60)
"""


@dataclass(frozen=True)
class Answer:
    """What a cell gave: "" as error if it was good, and its texts in order."""

    error: str
    text: str


class Kernel:
    """A notebook's end of a kernel. What cells output is kept by cell, also what comes too late."""

    def __init__(self, client):
        self.client = client
        self.texts = defaultdict(str)  # by the request that an output belongs to
        client.start_channels(hb=False)
        client.wait_for_ready(timeout=60)

    def start(self, code):
        """Send a cell; gives its request."""
        return self.client.execute(textwrap.dedent(code))

    def outputs(self, request):
        """Read outputs of all cells until this one is done; yields the texts of this one."""
        while True:
            message = self.client.get_iopub_msg(timeout=60)
            content, parent = message["content"], message["parent_header"].get("msg_id")
            if message["msg_type"] == "stream":
                self.texts[parent] += content["text"]
            elif message["msg_type"] in ("display_data", "execute_result"):
                self.texts[parent] += content["data"]["text/plain"] + "\n"
            if parent == request:
                if content.get("execution_state") == "idle":
                    return
                yield self.texts[parent]

    def finish(self, request):
        """Wait for a cell."""
        for _ in self.outputs(request):
            pass
        while True:
            reply = self.client.get_shell_msg(timeout=60)
            if reply["parent_header"]["msg_id"] == request:
                break
        content = reply["content"]
        failed = content["status"] != "ok"
        error = f"{content['ename']}: {content['evalue']}" if failed else ""
        return Answer(error, self.texts[request])

    def run(self, code):
        """Run a cell; gives its error and text."""
        return self.finish(self.start(code))

    def good(self, code):
        """Run a cell that must not fail; gives its text."""
        answer = self.run(code)
        assert not answer.error, answer
        return answer.text

    def value(self, expression):
        """What an expression gives, by way of JSON."""
        return json.loads(self.good(f"import json; print(json.dumps({expression}))"))

    def close(self):
        self.client.stop_channels()


def environment(folder):
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
    return os.environ | {
        "PYTHONPATH": paths,
        "IPYTHONDIR": str(folder / "ipython"),
        "HF_HUB_OFFLINE": "1",
    }


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """A kernel of this Python, fresh, in a folder of its own."""
    folder = tmp_path_factory.mktemp("notebook")
    manager = KernelManager(kernel_name="python3")
    manager.kernel_spec.argv[0] = sys.executable
    manager.start_kernel(cwd=str(folder), env=environment(folder))
    kernel = Kernel(manager.client())
    kernel.manager, kernel.folder = manager, folder
    yield kernel
    kernel.close()
    manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def ready(notebook):
    """The kernel with `DEFINITIONS`, and what runs end with beside which no cell runs."""
    notebook.good(DEFINITIONS)
    notebook.good(
        """
        exp = Experiment("undisturbed")
        configs = [config(DROPOUT, num_train_epochs=3), config(num_train_epochs=3)]
        exp.run_fit(configs, tiny.create_model, tiny.sft_rows(12), num_chunks=3, block=True)
        exp.end()
        """
    )
    undisturbed = Experiment("undisturbed", root=notebook.folder / "rapidfire_experiments")
    notebook.undisturbed = [sliced(run) for run in undisturbed.runs]
    undisturbed.end()
    return notebook


def ended(kernel, name, run):
    """What a run of an experiment in this kernel's folder ended with."""
    exp = Experiment(name, root=kernel.folder / "rapidfire_experiments")
    try:
        return sliced(exp.run(run))
    finally:
        exp.end()


class Kernels:
    """Forks kernels from one process in which everything is imported."""

    def __init__(self, folder):
        self._folder, self._count = folder, 0
        self._process = subprocess.Popen(
            [sys.executable, "-c", _FORKING],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(folder) | {"OMP_NUM_THREADS": "1"},
        )

    def open(self, folder):
        """Start a kernel in a folder."""
        self._count += 1
        file, _ = write_connection_file(str(self._folder / f"connection-{self._count}.json"))
        self._process.stdin.write(json.dumps([file, str(folder)]) + "\n")
        self._process.stdin.flush()
        pid = int(self._process.stdout.readline())
        client = BlockingKernelClient(connection_file=file)
        client.load_connection_file()
        kernel = Kernel(client)
        kernel.pid, kernel.folder = pid, folder
        kernel.good(DEFINITIONS)
        return kernel

    def end(self, kernel, act):
        """Do what ends a kernel; gives when that was, in Unix time, and its exit code."""
        begin = gone(kernel.pid, lambda: act(kernel))
        kernel.close()
        self._process.stdin.write(json.dumps(kernel.pid) + "\n")
        self._process.stdin.flush()
        return begin, int(self._process.stdout.readline())

    def close(self):
        self._process.stdin.close()
        self._process.wait(60)


_FORKING = """
import json, os, sys
import tiny, torch
from rapidfire_jupyter import fitting
from trl import SFTTrainer, SFTConfig
from ipykernel.kernelapp import IPKernelApp

for line in sys.stdin:
    asked = json.loads(line)
    if isinstance(asked, int):
        print(os.waitstatus_to_exitcode(os.waitpid(asked, 0)[1]), flush=True)
        continue
    file, folder = asked
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.chdir(folder)
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        with open("kernel.log", "a") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        IPKernelApp.launch_instance(argv=["-f", file])
        break
    print(pid, flush=True)
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """Where kernels come from that start quickly."""
    forking = Kernels(tmp_path_factory.mktemp("kernels"))
    yield forking
    forking.close()


def ask_to_shut_down(kernel):
    kernel.client.shutdown()


def leave(kernel):
    kernel.start("exit()")


def terminate(kernel):
    os.kill(kernel.pid, signal.SIGTERM)


def kill(kernel):
    os.kill(kernel.pid, signal.SIGKILL)


def gone(pid, act):
    """Do what ends a process and wait until it has ended; gives when it was done, in Unix time."""
    handle = os.pidfd_open(pid)
    try:
        begin = time.time()
        act()
        assert select.select([handle], [], [], 60)[0], "the process did not end"
        return begin
    finally:
        os.close(handle)


# ------------------------------------------------------------------------------ where text goes


def test_every_cell_shows_its_own_text_only_and_no_text_is_lost(notebook):
    first = notebook.start(
        """
        import time
        begin = time.process_time()
        import logging, random, sys, threading, warnings
        random.seed(1)
        import tiny, torch
        import numpy as np
        from tqdm.auto import tqdm
        from IPython.display import display
        from rapidfire_jupyter import Experiment, RFLoraConfig, RFModelConfig, RFSFTConfig
        from rapidfire_jupyter.waiting import until
        torch.set_num_threads(1)
        torch.manual_seed(1), np.random.seed(1)

        def create_model(values):
            print("text of create_model_fn")
            warnings.warn("warning of create_model_fn")
            for _ in tqdm(range(2), desc="bar of create_model_fn"):
                pass
            return tiny.create_model(values)

        class Talks(tiny.Callback):
            def on_step_end(self, args, state, control, **kwargs):
                print("text of step", state.global_step)
                print("error of step", state.global_step, file=sys.stderr)
                logging.getLogger("transformers").error("record of step %d", state.global_step)
                display(f"display of step {state.global_step}")
                warnings.warn(f"warning of step {state.global_step}")

        talk = RFModelConfig(
            "tiny",
            peft_config=RFLoraConfig(r=4, target_modules=["q_proj"]),
            callbacks=[Talks],
            training_args=RFSFTConfig(
                per_device_train_batch_size=2, num_train_epochs=2, logging_steps=1
            ),
        )
        exp = Experiment("talk")
        exp.run_fit(
                talk, create_model, tiny.sft_rows(12), tiny.sft_rows(16)[12:],
                num_chunks=3, panel=False,
            )
        spent = time.process_time() - begin
        """
    )
    first_text = notebook.finish(first).text
    second = notebook.start(
        """
        until(exp, lambda: len(exp.run(1).rows) >= 2, 60)
        print("text of the second cell")
        until(exp, lambda: len(exp.run(1).rows) >= 4, 60)
        """
    )
    third = notebook.start(
        """
        %%capture captured
        until(exp, lambda: len(exp.run(1).rows) >= 6, 60)
        print("text of the third cell")
        """
    )
    fourth = notebook.start("exp.wait(); print(captured.stdout + captured.stderr); 4")
    for cell in (second, third, fourth):
        assert not notebook.finish(cell).error
    drawn = notebook.value("[random.random(), float(np.random.rand()), float(torch.rand(()))]")
    alone = notebook.value(
        "[random.seed(1), np.random.seed(1), torch.manual_seed(1)] and "
        "[random.random(), float(np.random.rand()), float(torch.rand(()))]"
    )
    log = (notebook.folder / "rapidfire_experiments/talk/runs/1/train.log").read_text()

    announced = (
        "1 run\n"
        "data: train: 12 rows are few: under 1,000, runs may differ by chance; "
        "eval: 25.0 % of all rows are for evaluation; 5 % to 20 % is usual\n"
        "no GPU found: training on the CPU (use_cpu=True)\n"
    )
    assert first_text == notebook.texts[first] == announced
    assert notebook.texts[second] == "text of the second cell\n"
    assert notebook.texts[third] == ""
    assert notebook.texts[fourth] == "text of the third cell\n\n4\n"
    assert notebook.value("spent") < 10
    for text in ("text", "error", "record", "display", "warning"):
        shown = [n for n in range(1, 13) if f"{text} of step {n}" in log]
        assert shown == list(range(1, 13)), text
    assert log.count("text of create_model_fn") == log.count("bar of create_model_fn") == 1
    assert "warning of create_model_fn" in log
    assert drawn == alone  # and no random number of the user's was used up


# ------------------------------------------------------------------------------------- interrupts


def test_an_interrupt_ends_a_wait_in_its_cell_and_not_the_training(ready):
    ready.good(
        """
        class Gate(tiny.Callback):
            def on_step_begin(self, args, state, control, **kwargs):
                if state.global_step == 4:
                    assert gate.wait(60)

        gate = threading.Event()
        exp = Experiment("interrupted")
        configs = [config(callbacks=[Gate], num_train_epochs=3), config(num_train_epochs=3)]
        exp.run_fit(configs, tiny.create_model, tiny.sft_rows(12), num_chunks=3)
        """
    )
    waiting = ready.start("print('waiting'); exp.wait()")
    for text in ready.outputs(waiting):
        if "waiting" in text:
            ready.manager.interrupt_kernel()
            break
    interrupted = ready.finish(waiting)
    status = ready.value("[run.status for run in exp.runs]")
    ready.manager.interrupt_kernel()  # no cell runs now
    ready.good("gate.set(); exp.wait(60)")

    assert interrupted.error.startswith("KeyboardInterrupt") and status[0] == "running"
    assert ready.value("[run.status for run in exp.runs]") == ["completed"] * 2
    assert_same(ended(ready, "interrupted", 1), ready.undisturbed[1], "interrupted")
    assert_same(ended(ready, "interrupted", 2), ready.undisturbed[1], "interrupted")


# ------------------------------------------------------------------------------ a second kernel

GATED = """
class Gate(tiny.Callback):
    "Holds its run in the middle of step 4 until a cell opens the gate."
    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step == 3:
            here.set()
            assert gate.wait(60)

here, gate = threading.Event(), threading.Event()
"""


def test_a_second_kernel_reads_an_experiment_that_another_one_trains(ready, kernels):
    ready.good(
        f"""{GATED}
exp = Experiment("shared")
exp.run_fit(config(callbacks=[Gate]), tiny.create_model, tiny.sft_rows(12), num_chunks=3)
until(exp, lambda: len(exp.run(1).rows) >= 3, 60)
"""
    )
    second = kernels.open(ready.folder)

    rows = second.good("exp = Experiment('shared'); print(len(exp.results()) >= 3, exp.runs[0].id)")
    refused = second.run(
        "exp.run_fit(config(), tiny.create_model, tiny.sft_rows(12), num_chunks=3)"
    )
    stop = second.good("exp.stop(1)")
    ready.good("gate.set(); exp.wait()")
    owner = ready.value("__import__('os').getpid()")
    kernels.end(second, kill)

    assert rows == "True 1\n"
    assert refused.error == (
        f"ExperimentError: experiment 'shared' is open in another kernel (process {owner}); "
        "shut that kernel down, or use another name"
    )
    assert "another kernel owns this experiment" in stop
    assert ready.value("[run.status for run in exp.runs]") == ["completed"]


# ---------------------------------------------------------------------------------- cells beside


def test_a_run_that_draws_is_marked_if_a_cell_reseeded_beside_it_and_another_is_not(ready):
    ready.good(
        f"""{GATED}
exp = Experiment("marked")
configs = [config(drop, callbacks=[Gate], num_train_epochs=3) for drop in (DROPOUT, None)]
exp.run_fit(configs, tiny.create_model, tiny.sft_rows(12), num_chunks=3)
"""
    )
    ready.good("until(exp, lambda: all(run.facts.total_steps for run in exp.runs), 60)")
    ready.good("assert here.wait(60); torch.manual_seed(999); np.random.seed(1); gate.set()")
    ready.good("exp.wait()")

    exact = ready.value("[[bool(run.exact), str(run.exact)] for run in exp.runs]")

    assert exact[0][0] is False and 'isolation="cells"' in exact[0][1]
    assert exact[1] == [True, "exact"]
    assert_same(ended(ready, "marked", 2), ready.undisturbed[1], "draws nothing")


def test_cells_that_use_our_api_or_print_leave_a_run_that_draws_exact(ready):
    ready.good("%load_ext rapidfire_jupyter")
    ready.good(
        """
        exp = Experiment("harmless")
        draws = config(DROPOUT, num_train_epochs=3)
        exp.run_fit(draws, tiny.create_model, tiny.sft_rows(12), num_chunks=3)
        """
    )
    ready.good("until(exp, lambda: len(exp.run(1).rows) >= 3, 60)")
    ready.good("print(exp.status); exp.runs")
    ready.good("%rapidfire status")
    ready.good("for run in exp.runs:\n    print(run.id, run.rows[-1]['loss'])")
    ready.good("exp.stop(1).wait(60)")
    ready.good("exp.resume(1).wait(60)")
    ready.good("exp.wait()")

    assert ready.value("[run.status for run in exp.runs]") == ["completed"]
    assert ready.value("str(exp.run(1).exact)") == "exact"
    assert_same(ended(ready, "harmless", 1), ready.undisturbed[0], "harmless cells")


def test_what_the_starting_cell_does_afterwards_counts_too(ready):
    ready.good(
        f"""{GATED}
exp = Experiment("same cell")
exp.run_fit(config(DROPOUT, [Gate]), tiny.create_model, tiny.sft_rows(12), num_chunks=3)
assert here.wait(60)
torch.manual_seed(999)
gate.set()
"""
    )
    ready.good("exp.wait()")

    assert ready.value("bool(exp.run(1).exact)") is False


def test_cells_isolation_keeps_a_reseeding_cell_out_of_a_run_that_draws(ready):
    ready.good(
        """
        exp = Experiment("cells")
        draws = config(DROPOUT, num_train_epochs=3)
        exp.run_fit(
            draws, tiny.create_model, tiny.sft_rows(12), num_chunks=3, isolation="cells"
        )
        """
    )
    ready.good("until(exp, lambda: len(exp.run(1).rows) >= 3, 60)")
    first = ready.value(
        "[torch.manual_seed(999), np.random.seed(1)] and [torch.rand(2).tolist(), np.random.rand()]"
    )
    second = ready.value("[torch.rand(2).tolist(), np.random.rand()]")
    ready.good("exp.wait()")
    third = ready.value("[torch.rand(2).tolist(), np.random.rand()]")
    alone = ready.value(
        "[torch.manual_seed(999), np.random.seed(1)] and "
        "[[torch.rand(2).tolist(), np.random.rand()] for _ in range(3)]"
    )

    assert [first, second, third] == alone  # the cells had the user's own streams
    assert ready.value("str(exp.run(1).exact)") == "exact"
    assert_same(ended(ready, "cells", 1), ready.undisturbed[0], "cells")


def test_a_cell_that_takes_long_pauses_training_for_two_seconds_only_and_marks_it(ready):
    ready.good(
        """
        exp = Experiment("long cell")
        draws = config(DROPOUT, num_train_epochs=6)
        exp.run_fit(draws, tiny.create_model, tiny.sft_rows(12), num_chunks=6, isolation="cells")
        """
    )
    ready.good("until(exp, lambda: len(exp.run(1).rows) >= 2, 60)")
    ready.good(
        """
        logged = threading.Event()
        exp._opened.log.subscribe(lambda event: event.kind == "logged" and logged.set())
        begin = time.monotonic()
        assert logged.wait(60)
        waited = time.monotonic() - begin
        """
    )
    ready.good("exp.wait()")

    assert ready.value("waited") > 1.5
    assert ready.value("bool(exp.run(1).exact)") is False


# ------------------------------------------------------------------------------ how kernels end

EIGHT = """
exp = Experiment("eight")
before = len(exp.events)
configs = [config(DROPOUT, seed=seed, num_train_epochs=2) for seed in range(8)]
exp.run_fit(configs, tiny.create_model, tiny.sft_rows(12), num_chunks=2, slice_steps=1)
"""
ALL_TRAIN = """
until(exp, lambda: len({e.run for e in exp.events[before:] if e.kind == "logged"}) == 8, 60)
"""


def check_saved(folder, flushed):
    """Every run has a good checkpoint: where it was if it was flushed, else one chunk back.

    Gives when the last thing was written, in Unix time.
    """
    exp = Experiment("eight", root=folder / "rapidfire_experiments")
    try:
        assert not exp.read_only and [run.status for run in exp.runs] != ["completed"] * 8
        for run in exp.runs:
            good, skipped = newest_good(run.folder)
            logged = max(row["step"] for row in run.rows)
            saved = good.step if good else 0
            chunk = max(end for end in (0, *run.facts.chunk_ends) if end < logged)
            assert not skipped
            assert saved >= (logged if flushed else chunk), (run, saved, logged)
        return exp.events[-1].time
    finally:
        exp.end()


def test_however_kernels_end_the_same_cells_go_on_in_the_next_one(
    kernels, tmp_path, monkeypatch, capsys
):
    untouched = tmp_path / "untouched"
    untouched.mkdir()
    monkeypatch.chdir(untouched)
    names = {}
    exec(f"{DEFINITIONS}\n{EIGHT}\nexp.wait()\nexp.end()", names)

    for end in (ask_to_shut_down, leave, terminate, kill):
        kernel = kernels.open(tmp_path)
        kernel.good(EIGHT)
        kernel.good(ALL_TRAIN)
        begin, code = kernels.end(kernel, end)
        saved = check_saved(tmp_path, flushed=end is not kill)
        with capsys.disabled():
            print(f"\n{end.__name__}: saved in {saved - begin:.2f} s", end=" ")
        assert saved - begin < EXIT_SECONDS, end
        assert code == {terminate: -signal.SIGTERM, kill: -signal.SIGKILL}.get(end, 0), end
    kernel = kernels.open(tmp_path)
    kernel.good(EIGHT + "exp.wait()")
    statuses = kernel.value("[run.status for run in exp.runs]")
    exact = kernel.value("[str(run.exact) for run in exp.runs]")
    kernels.end(kernel, kill)

    assert statuses == ["completed"] * 8 and exact == ["exact"] * 8
    for run, alone in zip(range(1, 9), map(sliced, names["exp"].runs), strict=True):
        assert_same(ended(kernel, "eight", run), alone, f"run {run}")


def test_a_kernel_that_jupyter_shuts_down_saves_every_run(ready, capsys):
    ready.good(EIGHT)
    ready.good(ALL_TRAIN)

    begin = gone(ready.manager.provisioner.pid, ready.manager.shutdown_kernel)
    saved = check_saved(ready.folder, flushed=True)

    with capsys.disabled():
        print(f"\nshutdown_kernel: saved in {saved - begin:.2f} s", end=" ")
    assert saved - begin < EXIT_SECONDS
