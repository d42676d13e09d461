"""The panel in real kernels, without a browser: clicks, traffic, reloads, floods, leaks."""

import base64
import os
import statistics
import sys

import nbformat
import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from page import Page
from test_kernel import DEFINITIONS, environment

from rapidfire_jupyter import Experiment
from rapidfire_jupyter.ui.curves import unpack

pytestmark = pytest.mark.slow
CLICKS = int(os.environ.get("RAPIDFIRE_CLICKS", "40"))
LONG = 400  # epochs: trains until it is stopped


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A fresh kernel with a page, a subshell and `DEFINITIONS`."""
    folder = tmp_path_factory.mktemp("page")
    manager = KernelManager(kernel_name="python3")
    manager.kernel_spec.argv[0] = sys.executable
    manager.start_kernel(cwd=str(folder), env=environment(folder) | {"OMP_NUM_THREADS": "1"})
    page = Page(manager.client())
    page.folder = folder
    page.open_subshell()
    page.good(DEFINITIONS)
    page.good("import pathlib, time, gc, ipywidgets, comm")
    yield page
    page.close()
    manager.shutdown_kernel(now=True)


@pytest.fixture
def training(page):
    """An experiment that trains for as long as one likes, with one open view."""
    page.good(
        f"""
        exp = Experiment("live")
        configs = [config(num_train_epochs={LONG}, learning_rate=r) for r in (1e-3, 1e-4)]
        exp.run_fit(configs, tiny.create_model, tiny.sft_rows(400), num_chunks=2, slice_steps=9)
        at(exp, 1, 3);
        """
    )
    opened(page)
    yield page
    page.say({"type": "bye", "view": "v"})
    page.good("exp.pause_all().wait(30); exp.end(); import shutil; shutil.rmtree(exp.folder)")


def opened(page):
    """Open the view "v"; gives its snapshot."""
    since = len(page.messages)
    page.say({"type": "hello", "view": "v"})
    return page.until(lambda: page.heard(since, type="snapshot"))


def clicks(page, first, count=CLICKS):
    """Boosts of run 1, each by another weight; gives the seconds until each was acknowledged."""
    weights = (2.0, 3.0)
    found = []
    for number in range(count):
        order = {"kind": "boost", "run": 1, "args": {"weight": weights[number % 2]}}
        seconds, ack = page.click(f"{first}-{number}", **order)
        assert ack["status"] in ("pending", "applied"), ack
        found.append(seconds)
    return found


def report(what, seconds):
    cuts = statistics.quantiles(seconds, n=20)
    print(f"\n{what}: p50 {1e3 * cuts[9]:.1f} ms, p95 {1e3 * cuts[18]:.1f} ms")


# -------------------------------------------------------------------------------------- clicks


def test_clicks_are_acknowledged_while_it_trains(training):
    seconds = clicks(training, "training")

    report("click to ack while training", seconds)
    assert statistics.median(seconds) < 1.0


@pytest.mark.parametrize(
    "wait", ["time.sleep(0.02)", "sum(range(2000))"], ids=["sleeping", "computing"]
)
def test_clicks_are_acknowledged_and_act_while_a_cell_blocks(training, wait):
    stop = training.folder / "go"
    cell = training.start(f"while not pathlib.Path('go').exists():\n    {wait}")

    try:
        seconds = clicks(training, wait)
        since = len(training.messages)
        training.say({"type": "order", "view": "v", "id": wait, "kind": "stop", "run": 2})
        settled = training.until(
            lambda: training.heard(since, type="ack", id=wait, status="applied")
        )
    finally:
        stop.touch()
        answer = training.finish(cell)
        stop.unlink()

    report(f"click to ack while a cell runs {wait}", seconds)
    assert not answer.error and settled[2]["line"] == "%rapidfire stop 2"


def test_clicks_are_acknowledged_while_nothing_trains(training):
    training.good("exp.pause_all().wait(30)")

    seconds = clicks(training, "idle")

    report("click to ack while idle", seconds)
    assert statistics.median(seconds) < 1.0


# --------------------------------------------------------------------------------------- traffic


def test_the_wire_is_quiet_while_it_trains_and_silent_without_a_view(training):
    since = len(training.messages)
    first = training.messages[-1][0]
    training.until(lambda: training.messages[-1][0] - first > 10)
    told = [m for m in training.messages[since:] if m[2]["type"] == "delta"]
    seconds = told[-1][0] - told[0][0]

    training.say({"type": "bye", "view": "v"})
    training.good("exp._panel._feed.join(10)")
    before = len(training.messages)
    training.good("n = len(exp.run(1).rows) + 5; at(exp, 1, n);")

    rate, size = (len(told) - 1) / seconds, sum(m[4] for m in told[1:]) / seconds
    print(f"\nwhile training: {rate:.2f} messages/s, {size / 1e3:.1f} KB/s")
    assert rate <= 4.1 and size <= 20_000
    assert [m[2]["seq"] for m in told] == list(range(told[0][2]["seq"], told[-1][2]["seq"] + 1))
    assert len(training.messages) == before


def test_48_runs_with_10_rows_a_second_are_few_and_small_messages(page):
    page.good(
        """
        import logs
        from rapidfire_jupyter.ui.actions import Actions, Standing
        from rapidfire_jupyter.ui.panel import Panel
        log = logs.started(pathlib.Path("."), 48)
        none = lambda *args: None
        standing = lambda: Standing("running", False, "")
        panel = Panel(Actions("load", pathlib.Path("."), log, none, standing, none, none, none,
                              none, lambda: False))
        stop, step = threading.Event(), 0

        def load():
            global step
            while not stop.wait(0.1):
                step += 1
                for run in range(1, 49):
                    logs.rows(log, run, 1, step)

        thread = threading.Thread(target=load)
        thread.start()
        """
    )
    entry = opened(page)
    first = sum(block["n"] for block in entry[2]["blocks"])

    page.until(lambda: page.messages[-1][0] - entry[0] > 15)
    rows = 48 * page.value("step") - first
    page.good("stop.set(); thread.join(); panel.close()")

    told = [m for m in page.messages if m[2]["type"] == "delta" and m[0] > entry[0]]
    seconds = told[-1][0] - told[0][0]
    rate, size = (len(told) - 1) / seconds, sum(m[4] for m in told[1:]) / seconds
    print(f"\n{rows / seconds:.0f} rows/s: {rate:.2f} messages/s, {size / 1e3:.1f} KB/s")
    assert rate <= 4.1 and size <= 20_000


def test_a_snapshot_after_a_flood_equals_the_log(training):
    cell = training.start(
        """
        line = "x" * 9_999
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            print(line)
            time.sleep(0.002)
        """
    )
    training.finish(cell)
    training.good("exp.pause_all().wait(30)")

    entry = opened(training)

    assert_equals_log(training, entry)


def assert_equals_log(page, entry):
    """A snapshot and what follows hold every point of the log."""
    expected = page.value(
        "{r.id: [[row['step'], row['loss']] for row in r.rows if 'loss' in row] for r in exp.runs}"
    )
    points = unpack(entry[2]["blocks"], entry[3][0])
    for run, rows in expected.items():
        found = {p.step: p.values[p.metrics.index("loss")] for p in points.get(int(run), [])}
        thinned = len(rows) > 6000
        assert thinned or len(found) == len(rows)
        assert all(found[step] == pytest.approx(loss, rel=1e-5) for step, loss in rows
                   if step in found)  # fmt: skip


def test_a_page_that_loads_again_gets_every_point(training):
    training.good("exp.pause_all().wait(30)")
    training.updates.clear()
    training.comm_msg({"method": "request_state"})
    training.until(lambda: any("_esm" in state for state in training.updates))

    for _ in range(10):
        entry = opened(training)
        assert_equals_log(training, entry)


# --------------------------------------------------------------------------------------- leaks


def census(page):
    """Widgets, comms and threads of the kernel."""
    page.good("gc.collect();")
    return page.value(
        "[len(ipywidgets.widgets.widget._instances), len(comm.get_comm_manager().comms), "
        "sum(t.name.startswith('rapidfire-panel') for t in threading.enumerate())]"
    )


def test_opening_and_closing_a_hundred_times_leaves_nothing(training):
    training.good("exp.pause_all().wait(30); exp.panel().close();")
    before = census(training)

    for number in range(100):
        training.good("exp.panel();")
        training.say({"type": "hello", "view": f"v{number}"})
        training.until(lambda: training.messages[-1][1] == training.panel())
        if number % 2:
            training.say({"type": "bye", "view": f"v{number}"})
        training.good("feed = exp.panel()._feed; exp.panel().close(); feed.join(10); del feed")

    assert census(training) == before


# ------------------------------------------------------------------------------------- outputs


def test_the_cell_of_run_fit_shows_the_panel_and_its_twin_once(page):
    since = len(page.outputs_seen)
    page.good(
        """
        exp = Experiment("shown")
        exp.run_fit(config(), tiny.create_model, tiny.sft_rows(8), num_chunks=2, block=True)
        exp.end()
        """
    )

    shown = page.outputs_seen[since:]
    views = [c for k, c in shown if "application/vnd.jupyter.widget-view+json" in c["data"]]
    twins = [c for k, c in shown if c.get("transient", {}).get("display_id")]
    assert len(views) == 1
    assert next(k for k, c in shown if c in twins) == "display_data"
    last = twins[-1]["data"]
    assert "1 completed" in last["text/html"] and "<svg" in last["text/html"]
    assert "1 completed" in last["text/plain"]


def test_panel_false_shows_nothing(page):
    since = len(page.outputs_seen)

    page.good(
        """
        exp = Experiment("hidden")
        exp.run_fit(config(), tiny.create_model, tiny.sft_rows(8), num_chunks=2, panel=False)
        exp.wait(60)
        exp.end()
        """
    )

    assert page.outputs_seen[since:] == []
    assert (
        Experiment("hidden", root=page.folder / "rapidfire_experiments").panel().facts().status
        == "ended"
    )


CELLS = [
    DEFINITIONS,
    """
exp = Experiment("stored")
exp.run_fit(config(num_train_epochs=3), tiny.create_model, tiny.sft_rows(8), num_chunks=2)
""",
    "print('between')",
    "exp.wait();",
    "exp.best('loss').id",
]


def test_an_executed_notebook_holds_the_final_picture_and_no_text_in_a_wrong_cell(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in CELLS])
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}})

    client.execute(env=environment(tmp_path))

    outputs = [cell.outputs for cell in notebook.cells]
    texts = ["".join(o.get("text", "") for o in cell if o.output_type == "stream")
             for cell in outputs]  # fmt: skip
    assert texts[1].startswith("1 run\n") and [texts[0], *texts[2:]] == ["", "between\n", "", ""]
    (twin,) = [o.data["text/html"] for o in outputs[1] if "text/html" in o.get("data", {})]
    assert "stored: idle; 1 completed" in twin and "<svg" in twin and "<script" not in twin
    assert outputs[4][0].data["text/plain"] == "1" and outputs[3] == []
    stored = notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    (saved,) = [m["state"]["_snap"] for m in stored.values() if m["state"].get("_snap")]
    assert saved["type"] == "snapshot" and saved["head"]["state"] == "idle"
    points = unpack(saved["blocks"], base64.b64decode(saved["buffer64"]))
    assert len(points[1]) == len(
        Experiment("stored", tmp_path / "rapidfire_experiments").run(1).rows
    )
    size = len(nbformat.writes(notebook))
    print(f"\nexecuted notebook: {size / 1e3:.0f} KB")
    assert size <= 1_000_000
