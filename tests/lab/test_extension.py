"""The labextension in a real JupyterLab: sidebar, status bar, panel, notifications and guard."""

import re

import pytest
from browser import ask_kernel, command, kernel_ready, open_notebook, ready, run_all

pytestmark = pytest.mark.slow

TRAIN = """
%load_ext rapidfire_jupyter
import time
import tiny
from rapidfire_jupyter import Experiment, List, RFGridSearch, RFModelConfig
from rapidfire_jupyter import RFLoraConfig, RFSFTConfig
from rapidfire_jupyter.waiting import until

class Slow(tiny.Callback):
    "Leaves the cores to the browser."
    def on_step_begin(self, *args, **kwargs):
        time.sleep(0.05)

def grid(rates, epochs, callbacks=(Slow,)):
    return RFGridSearch(
        RFModelConfig(
            "tiny",
            peft_config=RFLoraConfig(r=4, target_modules=["q_proj"]),
            callbacks=[kind() for kind in callbacks],
            training_args=RFSFTConfig(
                learning_rate=List(rates), per_device_train_batch_size=2,
                num_train_epochs=epochs, logging_steps=1,
            ),
        ),
        trainer_type="SFT",
    )

mark = 42
"""
LONG = """
exp = Experiment("{name}")
exp.run_fit(grid([1e-2, 1e-3], 200), tiny.create_model, tiny.sft_rows(16), num_chunks=4)
until(exp, lambda: all(r.checkpoint_step for r in exp.state.runs.values()), 120)
"""
HOSTILE = "<img src=x onerror=globalThis.hit=1>"


def start(page, lab, name, *cells):
    """A notebook that trains, and the sidebar open."""
    open_notebook(page, lab, f"{name}.ipynb", [TRAIN, *cells])
    command(page, "rapidfire:show-runs")
    run_all(page)


@pytest.fixture
def training(page, lab, name):
    """A page with a notebook whose kernel trains two long runs."""
    start(page, lab, name, LONG.format(name=name))
    page.wait_for_selector(".rf-Run")
    return page


def runs(page):
    """The sidebar's lines."""
    return page.locator(".rf-Run")


def sidebar(page):
    """The panel in the notebook has buttons of the same names."""
    return page.locator(".rf-Sidebar")


LOSSES = "() => [...document.querySelectorAll('.rf-Loss')].map(one => one.textContent).join()"


def losses(page):
    """The losses that the sidebar shows, which are others after each update."""
    return page.evaluate(LOSSES)


def guard_dialog(page):
    """The guard's question."""
    return page.locator(".jp-Dialog", has=page.locator(".rf-Guard"))


def keep(page):
    """Answer the guard's question with no."""
    guard_dialog(page).wait_for()
    guard_dialog(page).get_by_role("button", name="Keep training").click()
    guard_dialog(page).wait_for(state="detached")


def test_the_sidebar_lists_runs_and_the_status_bar_sums_them_up(training):
    page = training

    page.wait_for_function(
        "() => [...document.querySelectorAll('.rf-Loss')]"
        ".every(loss => /^\\d\\.\\d{3}$/.test(loss.textContent))"
    )
    assert runs(page).count() == 2
    statuses = " ".join(page.locator(".rf-Status").all_inner_texts())
    assert re.search(r"running( · \d+ min)?", statuses), statuses
    text = page.locator(".rf-StatusItem").inner_text()
    assert re.fullmatch(r"RF 0/2 · \d+ %( · ETA [\d a-z]+)?", text), text


def test_stop_resume_and_boost_act_in_the_kernel(training):
    page = training

    sidebar(page).get_by_role("button", name="Stop run 1").click()
    page.locator(".rf-Run.rf-mod-stopped").wait_for()
    assert ask_kernel(page, "exp.run(1).status") == "stopped"
    sidebar(page).get_by_role("button", name="Resume run 1").click()
    page.locator(".rf-Run.rf-mod-stopped").wait_for(state="detached")
    assert ask_kernel(page, "exp.run(1).status") in ("queued", "running")
    sidebar(page).get_by_role("button", name="Boost run 2: twice the share").click()
    sidebar(page).get_by_text("×2").wait_for()
    assert ask_kernel(page, "exp.state.runs[2].weight") == 2.0
    sidebar(page).get_by_role("button", name="Run 2: back to its normal share").click()
    sidebar(page).get_by_text("×2").wait_for(state="detached")
    assert ask_kernel(page, "exp.state.runs[2].weight") == 1.0


@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_nothing_is_wrong_for_who_cannot_see_or_click(training, theme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = training
    command(page, "apputils:change-theme", theme=f"JupyterLab {theme}")
    page.wait_for_selector(f"body[data-jp-theme-name='JupyterLab {theme}']", state="attached")
    page.locator("#jupyterlab-splash").wait_for(state="detached")

    for part in (".rf-Sidebar", ".rf-StatusItem"):
        found = axe.run(page, context=part)
        assert found.violations_count == 0, found.generate_report()
    sidebar(page).get_by_role("button", name="Stop run 1").focus()
    page.keyboard.press("Enter")
    page.locator(".rf-Run.rf-mod-stopped").wait_for()


def test_pause_all_and_resume_all_are_commands(training):
    page = training

    command(page, "rapidfire:pause-all")
    page.locator(".rf-Run.rf-mod-paused").first.wait_for()
    assert "paused" in page.locator(".rf-StatusItem").inner_text()
    command(page, "rapidfire:resume-all")
    page.locator(".rf-Run.rf-mod-running").first.wait_for()
    assert ask_kernel(page, "exp.status") == "running"


def test_names_and_errors_of_runs_are_shown_as_text(page, lab):
    hostile = f"""
class Failing(tiny.Callback):
    def on_step_begin(self, *args, **kwargs):
        raise ValueError("{HOSTILE}</script><script>globalThis.hit=1</script>")

exp = Experiment("hostile {HOSTILE.replace("/", "")}")

def fit():
    group = grid([1e-2], 1, (Failing,))
    exp.run_fit(group, tiny.create_model, tiny.sft_rows(8), num_chunks=1, panel=False)
    return exp.wait(60).status
"""
    start(page, lab, "hostile", hostile)
    page.get_by_text("empty · no runs yet").wait_for()

    assert ask_kernel(page, "fit()") == "idle"
    page.locator(".rf-Run.rf-mod-failed").wait_for()
    page.get_by_text("run 1 failed: ValueError: <img src=x").first.wait_for()
    assert HOSTILE in page.locator(".rf-Experiment h3").inner_text()
    assert HOSTILE in page.locator(".rf-Run .rf-Error").inner_text()
    assert page.locator(".rf-Sidebar img, .rf-Sidebar script").count() == 0
    assert page.evaluate("() => globalThis.hit") is None


PATHS = {
    "kernel menu: restart": ("kernelmenu:restart", {}),
    "notebook: restart": ("notebook:restart-kernel", {}),
    "restart and run all": ("notebook:restart-run-all", {}),
    "restart and clear": ("notebook:restart-clear-output", {}),
    "run menu: restart and run all": ("runmenu:restart-and-run-all", {}),
    "kernel menu: shut down": ("kernelmenu:shutdown", {}),
    "notebook: shut down": ("notebook:shutdown-kernel", {}),
    "close and shut down": ("notebook:close-and-shutdown", {}),
    "file menu: close and clean up": ("filemenu:close-and-cleanup", {}),
    "file menu: shut down the server": ("filemenu:shutdown", {}),
}
CALLS = {
    "running panel: one session": "app.serviceManager.sessions.shutdown("
    "[...app.serviceManager.sessions.running()][0].id)",
    "running panel: all sessions": "app.serviceManager.sessions.shutdownAll()",
    "one kernel": "app.serviceManager.kernels.shutdown(context.session.kernel.id)",
    "all kernels": "app.serviceManager.kernels.shutdownAll()",
    "change kernel": "context.changeKernel({name: 'python3'})",
    "restart by code": "context.restartKernel()",
    "shut down by code": "context.shutdown().catch(() => undefined)",
}


def test_every_guarded_path_asks_and_no_keeps_the_kernel(training):
    page = training
    asked = []

    for name, (path, arguments) in PATHS.items():
        command(page, path, **arguments)
        keep(page)
        asked.append(name)
    for name, call in CALLS.items():
        page.evaluate(
            "code => { const app = window.jupyterapp; const context = "
            "app.shell.currentWidget.sessionContext; void eval(code); }",
            call,
        )
        keep(page)
        asked.append(name)

    assert asked == [*PATHS, *CALLS]
    assert page.locator(".jp-Dialog").count() == 0
    assert ask_kernel(page, "mark") == 42
    assert ask_kernel(page, "exp.status") == "running"


def test_the_running_panels_buttons_ask(training):
    page = training
    command(page, "running:show-panel")
    kernels = page.locator(".jp-RunningSessions-section").nth(1)
    item = kernels.locator(".jp-RunningSessions-item", has_text=".ipynb").last

    item.hover()
    kernels.locator("[title='Shut Down']").first.click(force=True)
    keep(page)
    page.get_by_label("Kernels toolbar").get_by_text("Shut Down All").click()
    own = page.locator(".jp-Dialog:not(:has(.rf-Guard)) .jp-mod-accept")
    own.click()
    keep(page)

    assert ask_kernel(page, "mark") == 42


def test_the_question_says_how_old_the_last_checkpoint_is(training):
    page = training
    for _ in range(2):  # what is told next may still be from before the checkpoint
        known = losses(page)
        page.wait_for_function(f"known => ({LOSSES})() !== known", arg=known)
    command(page, "notebook:restart-kernel")

    text = guard_dialog(page).inner_text()

    assert re.search(r"2 runs are unfinished.*; last checkpoint \d+ (s|min) ago\.", text), text
    assert "last checkpoint is lost" in text


def test_a_yes_restarts_at_once_and_then_nothing_asks(training):
    page = training
    command(page, "notebook:restart-kernel")

    guard_dialog(page).get_by_role("button", name="Restart the kernel").click()
    page.locator(".rf-Empty").wait_for()
    kernel_ready(page)

    assert "mark" not in ask_kernel(page, "dir()")
    command(page, "notebook:restart-kernel")
    page.locator(".jp-Dialog").wait_for()
    assert guard_dialog(page).count() == 0
    page.locator(".jp-Dialog .jp-mod-reject").click()


def test_the_sidebar_and_the_guard_are_back_after_a_reload(training):
    page = training
    command(page, "docmanager:save")

    page.reload()
    ready(page)
    kernel_ready(page)
    page.wait_for_selector(".rf-Run", state="attached")
    command(page, "notebook:restart-kernel")
    keep(page)

    assert ask_kernel(page, "mark") == 42


def test_a_kernel_without_an_open_notebook_is_seen_and_guarded(training):
    page = training

    page.evaluate("() => window.jupyterapp.shell.currentWidget.dispose()")
    page.wait_for_selector(".rf-Run")
    sidebar(page).get_by_role("button", name="Stop run 2").click()
    page.locator(".rf-Run.rf-mod-stopped").wait_for()
    page.evaluate("() => void window.jupyterapp.serviceManager.sessions.shutdownAll()")
    keep(page)

    assert (
        page.evaluate("() => [...window.jupyterapp.serviceManager.kernels.running()].length") == 1
    )


def test_the_guard_can_be_switched_off(training):
    page = training

    command(page, "rapidfire:toggle-guard")
    page.wait_for_function("() => !window.jupyterapp.commands.isToggled('rapidfire:toggle-guard')")
    command(page, "notebook:restart-kernel")
    page.locator(".jp-Dialog").wait_for()

    assert guard_dialog(page).count() == 0
    page.locator(".jp-Dialog .jp-mod-reject").click()
    command(page, "rapidfire:toggle-guard")
    page.wait_for_function("() => window.jupyterapp.commands.isToggled('rapidfire:toggle-guard')")


def test_the_end_of_training_is_told_and_then_nothing_asks(training):
    page = training

    ask_kernel(page, "[exp.stop(1).wait().status, exp.stop(2).wait().status]")
    page.get_by_text("nothing is left to train; 0 of 2 runs finished").first.wait_for()
    assert page.locator(".rf-StatusItem").inner_text() == "RF 2/2 · idle"
    command(page, "notebook:shutdown-kernel")
    page.wait_for_function(
        "() => [...window.jupyterapp.serviceManager.kernels.running()].length === 0"
    )


def test_the_notebook_is_saved_when_its_experiment_starts(training):
    page = training

    page.wait_for_function(
        "() => !window.jupyterapp.shell.currentWidget.context.model.dirty", timeout=30_000
    )


def test_the_panel_opens_in_the_main_area_once(training):
    page = training

    page.locator(".rf-StatusItem button").click()
    page.locator(".rf-Panel .jupyter-widgets, .rf-Panel .lm-Widget").first.wait_for()
    command(page, "rapidfire:open-panel")

    assert page.locator(".rf-Panel").count() == 1


FAILS = """
class Failing(tiny.Callback):
    def on_step_begin(self, *args, **kwargs):
        raise ValueError("no memory")

for name, rates in (("first", [1e-2]), ("second", [1e-2, 1e-3])):
    exp = Experiment(name)
    group = grid(rates, 1, (Failing,))
    exp.run_fit(group, tiny.create_model, tiny.sft_rows(8), num_chunks=1, panel=False, block=True)
    time.sleep(8)
    if name == "first":
        exp.end()  # its notification stays, its experiment goes
"""


def test_the_notebook_in_front_comes_first_and_failures_are_one_notification(training, lab):
    page = training
    start(page, lab, "fails", FAILS)
    toasts = page.locator(".Toastify__toast", has_text="failed")
    page.get_by_text(re.compile(r"^3 runs failed, last: second: ")).first.wait_for()

    assert toasts.count() == 1
    command(page, "rapidfire:open-panel")

    page.locator(".rf-Panel .jupyter-widgets, .rf-Panel .lm-Widget").first.wait_for()
    title = page.evaluate("() => window.jupyterapp.shell.currentWidget.title.label")
    assert title == "second"  # the other notebook's experiment is the one that trains
    assert page.locator(".jp-Dialog").count() == 0


def test_the_panel_opens_its_notebook_if_that_is_closed(training):
    page = training
    page.evaluate("() => window.jupyterapp.shell.currentWidget.dispose()")

    sidebar(page).get_by_role("button", name="Open panel").click()

    page.locator(".rf-Panel .jupyter-widgets, .rf-Panel .lm-Widget").first.wait_for()


def test_a_kernel_without_rapidfire_shows_nothing_and_is_not_disturbed(page, lab):
    open_notebook(page, lab, "plain.ipynb", ["mark = 1"])
    run_all(page)
    command(page, "rapidfire:show-runs")

    page.get_by_text("No running kernel has an experiment.").wait_for()
    assert page.locator(".rf-StatusItem").is_hidden()
    assert ask_kernel(page, "mark") == 1
    assert [e for e in page.errors if "rapidfire" in e.lower()] == []
