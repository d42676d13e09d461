# ruff: noqa: E501  (JavaScript in texts)
"""Ops from the panel: by mouse and by keyboard, what is sent and what is told."""

import pytest
from front_page import sent, show


def orders(page):
    return [(one["kind"], one["run"], one["args"]) for one in sent(page, "order")]


def test_each_button_of_a_row_sends_its_order(page):
    show(page, {"rows": {2: {"status": "stopped"}, 3: {"weight": 3}}})

    page.locator("tr[data-run='1'] [data-op=stop]").click()
    page.locator("tr[data-run='2'] [data-op=resume]").click()
    page.locator("tr[data-run='3'] [data-op=less]").click()
    page.locator("tr[data-run='5'] [data-op=more]").click()
    page.locator("tr[data-run='6'] [data-op=delete]").click()
    page.get_by_role("button", name="Pause all").click()

    assert orders(page) == [
        ("stop", 1, {}),
        ("resume", 2, {}),
        ("boost", 3, {"weight": 2}),
        ("boost", 5, {"weight": 2}),
        ("delete", 6, {}),
        ("pause_all", None, {}),
    ]


def test_a_selection_is_stopped_at_once_and_undone_at_once(page):
    show(page, {"rows": {i: {"status": "queued"} for i in range(1, 9)}})
    for run in (1, 2, 5):
        page.locator(f"tr[data-run='{run}'] input").click()

    page.locator(".rf-footops [data-op=stop]").click()
    page.evaluate("kernel.settle()")
    assert "Stop 3 runs applied" in page.locator(".rf-notices").inner_text()
    page.locator(".rf-notices").get_by_role("button", name="Undo").click()

    stopped, resumed = orders(page)[:3], orders(page)[3:]
    assert [one[:2] for one in stopped] == [("stop", 1), ("stop", 2), ("stop", 5)]
    assert [one[:2] for one in resumed] == [("resume", 1), ("resume", 2), ("resume", 5)]


def test_pending_applied_and_refused_are_told_with_the_reason(page):
    show(page, {"rows": {1: {"status": "running"}}})
    page.locator("tr[data-run='1'] [data-op=stop]").click()

    notices = page.locator(".rf-notices")
    assert "Stop run 1 pending" in notices.inner_text()
    assert "%rapidfire stop 1" in notices.inner_text()
    page.evaluate(
        "kernel.settle('refused', 'run 1 is completed; only an active run can be stopped')"
    )

    assert "refused: run 1 is completed" in notices.inner_text()
    assert "run 1 is completed" in page.locator("[role=alert]").first.text_content()
    assert "stop refused" in page.locator("tr[data-run='1']").inner_text()


def test_a_deleted_run_can_be_brought_back_for_thirty_seconds(page):
    page.clock.install()
    show(page)
    page.locator("tr[data-run='2'] [data-op=delete]").click()
    page.evaluate("kernel.settle(); kernel.set(2, { status: 'deleted', deleted_at: 754 })")
    page.clock.run_for(1500)

    assert page.locator("tr.rf-deleted[data-run='2']").count() == 1
    page.locator("tr[data-run='2'] [data-op=delete]").click()
    assert orders(page)[-1] == ("undelete", 2, {})

    page.clock.run_for(31_000)
    page.evaluate("kernel.delta({})")
    page.clock.run_for(1500)
    assert page.locator("tr[data-run='2']").count() == 0


def test_finished_runs_are_trained_longer(page):
    show(page, {"rows": {4: {"status": "completed"}}})
    page.locator("tr[data-run='4'] [data-op=resume]").click()
    page.get_by_label("How much").fill("3")
    page.get_by_role("button", name="Train longer", exact=True).click()

    assert orders(page) == [("resume", 4, {"num_train_epochs": 3})]


def test_training_longer_begins_above_what_the_run_has_had(page):
    show(page, {"rows": {4: {"status": "completed"}}})
    page.evaluate("kernel.answers.config = { values: { 'training_args.num_train_epochs': 20 } }")
    page.locator("tr[data-run='4'] [data-op=resume]").click()
    page.wait_for_selector(".rf-longer :text('so far 20')")
    amount = page.get_by_label("How much")
    submit = page.get_by_role("button", name="Train longer", exact=True)

    assert (amount.input_value(), amount.get_attribute("min")) == ("21", "20")
    amount.fill("20")
    submit.click()
    assert "must be a number above 20" in page.locator(".rf-longer .rf-error").inner_text()
    page.get_by_label("Measure").select_option("max_steps")
    assert (amount.input_value(), amount.get_attribute("min")) == ("401", "400")
    submit.click()

    assert orders(page) == [("resume", 4, {"max_steps": 401})]


def test_pause_all_needs_something_that_trains(page):
    show(page, {"head": {"state": "idle", "counts": {"completed": 7, "stopped": 1}}})
    pause = page.get_by_role("button", name="Pause all")

    assert pause.get_attribute("aria-disabled") == "true"
    pause.click(force=True)
    assert orders(page) == []
    page.evaluate("kernel.head.counts = { queued: 1 }; kernel.delta({ head: kernel.head })")
    page.wait_for_selector("button:has-text('Pause all'):not([aria-disabled])")
    pause.click()
    assert orders(page)[0][0] == "pause_all"


def test_the_whole_head_of_a_column_sorts_and_cuts_nothing(page):
    show(page)
    for th in page.locator("th[data-key]").all():
        box = th.bounding_box()
        page.evaluate(
            "e => e.closest('.rf-scroll').scrollLeft = e.offsetLeft - 200", th.element_handle()
        )
        box = th.bounding_box()
        for x in (3, box["width"] - 3):
            before = th.get_attribute("aria-sort")
            page.mouse.click(box["x"] + x, box["y"] + 3)
            assert th.get_attribute("aria-sort") not in ("none", before)
        name = th.locator(".rf-cut")
        assert name.evaluate("e => e.scrollWidth <= e.clientWidth"), th.inner_text()
        assert th.evaluate("e => e.scrollWidth <= e.clientWidth"), th.inner_text()


def test_a_best_value_is_not_cut_off(page):
    show(page, {"rows": {1: {"last": {"loss": -0.04321, "eval_loss": 1.234}}}})
    best = page.locator("tr[data-run='1'] .rf-best > .rf-cut")

    assert best.all_inner_texts() == ["★ −0.0432", "★ 1.234"]
    assert all(best.evaluate_all("all => all.map(e => e.scrollWidth <= e.clientWidth)"))


@pytest.mark.parametrize("width", [560, 760, 890])
def test_buttons_never_cover_columns_where_room_is_short(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    show(page)

    assert not page.locator(".rf-grid [data-op]").first.is_visible()
    page.locator("tr[data-run='1'] .rf-run").click()
    page.keyboard.press("End")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.closest('tr').dataset.run") == "2"
    page.locator(".rf-foot [data-op=stop]").click()
    assert orders(page) == [("stop", 2, {})]
    titles = [one for one in page.locator("th").all_inner_texts() if one]
    assert titles.index("loss") < titles.index("learning_rate") < titles.index("ETA")


def test_the_help_closes_on_escape_and_on_a_press_elsewhere(page):
    show(page)
    ask = page.get_by_role("button", name="Keyboard help")
    box = page.locator(".rf-help")

    ask.click()
    box.click()
    assert box.is_visible() and ask.get_attribute("aria-expanded") == "true"
    page.keyboard.press("Escape")
    assert box.is_hidden() and ask.get_attribute("aria-expanded") == "false"
    ask.click()
    page.locator(".rf-name").click()
    assert box.is_hidden()
    ask.click()
    ask.click()
    assert box.is_hidden()


def test_one_run_that_logged_a_metric_gives_its_adapter(page):
    show(page, {"runs": 1, "head": {"best": {}}})
    page.get_by_role("button", name="Export").click()
    page.get_by_role("button", name="Best run's adapter").click()
    page.wait_for_selector(".rf-notices:has-text('run-1/adapter')")


@pytest.mark.parametrize(
    "head",
    [
        {"read_only": True, "reason": "another kernel (pid 7) owns it", "can": []},
        {"state": "ended", "can": []},
        {"can": []},
    ],
)
def test_without_ops_buttons_say_why(page, head):
    show(page, {"head": head})

    stop = page.locator("tr[data-run='1'] [data-op=stop]")
    assert stop.get_attribute("aria-disabled") == "true"
    assert ": " in stop.get_attribute("title")
    stop.click(force=True)
    page.get_by_role("button", name="Pause all").click(force=True)
    assert orders(page) == []
    assert "not possible" in page.locator(".rf-notices").inner_text()


def test_every_op_by_keyboard(page):
    show(
        page, {"rows": {i: {"status": "queued"} for i in range(1, 9)} | {3: {"status": "stopped"}}}
    )
    press = page.keyboard.press
    press("Tab")
    assert page.evaluate("document.activeElement.closest('.rf-top') !== null")
    press("Tab")
    assert page.evaluate("document.activeElement.closest('[role=grid]') !== null")

    press("s")  # run 1
    press("ArrowDown")
    press("+")  # run 2
    page.evaluate("kernel.settle()")
    press("ArrowDown")
    press("r")  # run 3
    press("ArrowDown")
    press("-")  # run 4
    press("ArrowDown")
    press("Space")
    press("ArrowDown")
    press("Space")
    press("Delete")  # runs 5 and 6
    page.evaluate("kernel.settle()")
    press("Control+z")
    page.evaluate("kernel.settle()")
    press("Escape")
    press("ArrowUp")
    press("c")  # run 5
    page.wait_for_selector(".rf-clone")

    assert [one[:2] for one in orders(page)] == [
        ("stop", 1),
        ("boost", 2),
        ("resume", 3),
        ("boost", 4),
        ("delete", 5),
        ("delete", 6),
        ("undelete", 5),
        ("undelete", 6),
    ]
    page.wait_for_function("document.activeElement.closest('.rf-clone') !== null")
    press("Escape")
    assert page.evaluate("document.activeElement.closest('tr')?.dataset.run") == "5"
    for _ in range(30):
        press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.op") == "delete"
    press("Enter")
    assert orders(page)[-1][:2] == ("delete", 5)
    press("Shift+Tab")
    for _ in range(30):
        press("ArrowRight")
    press("Home")
    page.keyboard.press("Enter")


def test_the_header_sorts_and_the_filter_filters(page):
    show(page)
    page.get_by_role("button", name="learning_rate").click()
    assert page.locator("th[aria-sort=ascending]").inner_text().startswith("learning_rate")
    rates = page.locator("tbody tr").evaluate_all("rows => rows.map(r => Number(r.dataset.run))")
    assert rates == [3, 7, 2, 6, 1, 5, 4, 8]
    page.get_by_label("Filter runs").fill("r=32 q_proj")

    shown = page.locator("tbody tr").evaluate_all("rows => rows.map(r => Number(r.dataset.run))")
    assert shown == [7, 1, 5]


def test_clone_form_checks_and_sends_one_order_for_each_value(page):
    show(page)
    page.locator("tr[data-run='1'] [data-op=clone]").click()
    rate = page.get_by_role("textbox", name="learning_rate")
    create = page.locator(".rf-primary")

    rate.fill("-1")
    assert "must be at least 0" in page.locator(".rf-wrong").inner_text()
    assert page.locator(".rf-diff").inner_text() == "–"
    assert page.locator(".rf-side .rf-error").inner_text() == ""
    assert create.get_attribute("aria-disabled") == "true"
    rate.fill("7")
    page.wait_for_selector(".rf-wrong:has-text('no optimizer survives it')")
    rate.fill("5e-4, 2e-4")
    page.get_by_label("lora_only").check()
    page.wait_for_selector(".rf-primary:not([aria-disabled])")
    assert "Create 4 clones" in create.inner_text()
    assert "0.001" in page.locator(".rf-diff del").first.inner_text()
    assert page.locator(".rf-preview").is_visible()
    create.click()

    changes = [args for _, _, args in orders(page)]
    assert len(changes) == 4
    assert all(one["warm"] for one in changes)
    assert changes[0]["changes"] == {"training_args.learning_rate": 0.0005}
    assert changes[3]["changes"] == {
        "training_args.learning_rate": 0.0002,
        "peft_config.bias": "lora_only",
    }
    assert page.locator(".rf-clone").count() == 0


def test_clone_form_says_why_warm_cannot_be(page):
    show(page)
    page.evaluate("kernel.answers.form = { fields: FIELDS, warm: 'run 1 has no trained step yet' }")
    page.locator("tr[data-run='1'] [data-op=clone]").click()
    page.wait_for_selector(".rf-clone")

    assert "run 1 has no trained step yet" in page.locator(".rf-start").inner_text()
    assert page.get_by_role("radio", name="Warm").is_disabled()
    assert page.get_by_label("Cold").is_checked()


def test_clone_form_refuses_changes_that_cannot_be_warm(page):
    show(page)
    page.locator("tr[data-run='1'] [data-op=clone]").click()
    page.get_by_role("textbox", name="model_name").fill("another/base")
    page.wait_for_selector(".rf-side .rf-error:has-text('another base model')")

    assert page.locator(".rf-primary").get_attribute("aria-disabled") == "true"
    page.get_by_label("Cold").check()
    page.wait_for_selector(".rf-primary:not([aria-disabled])")


def test_a_finished_parent_says_what_to_raise(page):
    show(page)
    reason = "nothing is left to train: raise num_train_epochs (or start cold)"
    page.evaluate(
        """reason => { kernel.answers.check = (args) => ({
          errors: {}, warm: args.changes["training_args.warmup_steps"] ? "" : reason,
          changed: {}, line: "" }); }""",
        reason,
    )
    page.locator("tr[data-run='1'] [data-op=clone]").click()
    page.wait_for_selector(".rf-side .rf-error:has-text('nothing is left')")

    assert page.locator(".rf-side .rf-error").inner_text() == reason
    assert page.locator(".rf-primary").get_attribute("aria-disabled") == "true"
    page.get_by_label("Cold").check()
    page.wait_for_selector(".rf-primary:not([aria-disabled])")


def test_curves_are_hidden_shown_alone_and_zoomed(page):
    show(page)

    def drawn():
        return page.locator("canvas").first.get_attribute("aria-label")

    page.locator("tr[data-run='1'] .rf-swatch").click()
    assert "7 runs" in drawn()
    page.locator("tr[data-run='2'] .rf-swatch").click(modifiers=["Alt"])
    assert "1 run." in drawn()
    page.locator("tr[data-run='2'] .rf-swatch").click()
    box = page.locator(".rf-plot").bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 104)
    page.mouse.up()
    page.evaluate("kernel.delta({})")

    assert page.get_by_role("button", name="Reset zoom").is_visible()
    page.get_by_role("button", name="Reset zoom").click()
    page.mouse.move(box["x"] + 300, box["y"] + 150)
    page.wait_for_selector(".rf-tip:not([hidden])")
    assert "learning_rate" in page.locator(".rf-tip").inner_text()


def test_tabs_appear_when_there_is_something_in_them(page):
    show(page, {"runs": 0, "points": 0})
    page.evaluate("kernel.entries = []")

    def tabs():
        return [tab.inner_text() for tab in page.get_by_role("tab").all() if tab.is_visible()]

    assert "Samples" not in tabs()
    page.evaluate("""() => {
      kernel.head = { ...kernel.head, can: ["ops", "samples", "sample"] };
      kernel.delta({ head: kernel.head, rows: [makeRow(1), makeRow(2)], slices: makeSlices([1, 2]) });
    }""")
    page.wait_for_selector("[role=tab]:has-text('Samples'):not([hidden])")
    assert "Timeline" in tabs()
    page.get_by_role("tab", name="Samples").click()
    page.wait_for_selector(".rf-samples td:has-text('It left our warehouse.')")
    page.get_by_label("Prompt").fill("Hello?")
    page.get_by_role("button", name="Ask").click()
    page.wait_for_selector(".rf-samples td:has-text('answer of 1 to Hello?')")


def test_exports_are_downloads(page):
    show(page)
    for label, name in [
        ("Log as CSV", "support-bot.csv"),
        ("Figure as PNG", "support-bot-loss.png"),
        ("Figure as SVG", "support-bot-loss.svg"),
    ]:
        page.get_by_role("button", name="Export").click()
        with page.expect_download() as download:
            page.get_by_role("button", name=label).click()
        assert download.value.suggested_filename == name
    page.get_by_role("button", name="Export").click()
    page.get_by_role("button", name="Best run's adapter").click()
    page.wait_for_selector(".rf-notices:has-text('run-1/adapter')")


def test_remedies_of_an_alert_are_one_click_each_and_asked_for_once(page):
    show(page, {"head": {"alerts": 1}})
    page.get_by_role("button", name="1 alert: show events").click()

    press = page.get_by_role("button", name="clone warm with learning rate 0.001 → 0.000333")
    press.click()
    press.click(force=True)

    assert orders(page) == [
        ("clone", 3, {"changes": {"training_args.learning_rate": 0.000333}, "warm": True})
    ]
    assert page.locator(".rf-list tbody tr").count() == 2  # the bell shows alerts and errors only
    page.get_by_role("button", name="boost run 3 to weight 2").click()
    assert orders(page)[1:] == [("boost", 3, {"weight": 2})]


def test_the_tab_that_compares_has_a_row_for_each_effect(page):
    show(page, {"head": {"can": ["ops", "analysis"]}})
    page.get_by_role("tab", name="Compare").click()
    row = page.locator("tr[data-verdict=better]")
    row.wait_for()

    assert row.inner_text().split("\t")[0] == "r: 8 → 32"
    assert "-0.12 (-0.20 to -0.04)" in row.inner_text().replace("−", "-")
    assert page.locator("tr[data-verdict=unclear] td").nth(1).inner_text() == "0.30"
    assert "differences of up to 0.5 % are a tie" in page.locator(".rf-effects").inner_text()


def test_a_run_that_a_policy_stopped_says_why(page):
    show(page, {"rows": {2: {"status": "stopped", "why": "eval_loss 3 is behind 2 of run 1"}}})

    title = page.locator("tr[data-run='2'] td:has(.rf-dot)").get_attribute("title")

    assert title == "stopped by a policy: eval_loss 3 is behind 2 of run 1"


def test_a_policy_is_switched_with_its_settings_and_undone(page):
    show(page, {"head": {"can": ["ops", "policies"]}})
    page.get_by_role("tab", name="Policies").click()
    page.wait_for_selector("[data-policy=threshold]")

    threshold = page.locator("[data-policy=threshold]")
    threshold.get_by_text("Settings").click()
    threshold.get_by_label("limit").fill("2.5")
    page.get_by_label("Policy threshold").select_option("dry-run")
    page.evaluate("kernel.settle()")
    notices = page.locator(".rf-notices")
    assert "Policy threshold dry-run applied" in notices.inner_text()
    notices.get_by_role("button", name="Undo").click()

    assert orders(page) == [
        ("policy", None, {"name": "threshold", "mode": "dry-run", "settings": {"limit": 2.5}}),
        ("policy", None, {"name": "threshold", "mode": "off", "settings": {"limit": 2}}),
    ]


def test_a_policy_tells_what_it_did_and_what_it_would_do_now(page):
    show(page, {"head": {"can": ["ops", "policies"]}})
    page.get_by_role("tab", name="Policies").click()
    page.wait_for_selector("[data-policy=halving]")
    halving = page.locator("[data-policy=halving]")

    assert "stop 1" in halving.inner_text()
    halving.get_by_role("button", name="Would do now").click()
    page.wait_for_selector("[data-policy=halving] .rf-told:not([hidden])")

    assert "(rung 0.25): stop run 2" in halving.inner_text()
    assert orders(page) == []


def test_a_setting_that_is_no_number_is_told_and_nothing_is_sent(page):
    show(page, {"head": {"can": ["ops", "policies"]}})
    page.get_by_role("tab", name="Policies").click()
    page.wait_for_selector("[data-policy=threshold]")
    threshold = page.locator("[data-policy=threshold]")
    threshold.get_by_text("Settings").click()
    threshold.get_by_label("limit").fill("much")
    threshold.get_by_role("button", name="Apply").click()

    assert "limit must be a number" in threshold.inner_text()
    assert orders(page) == []


def test_the_timeline_tells_on_hover_why_a_policy_did_something(page):
    show(page)
    page.evaluate("""() => {
      const made = (over) => ({ seq: 50, time: 300, kind: "op", run: 2, level: "info", op: "", outcome: "", policy: "halving", remedies: [], text: "", ...over });
      kernel.delta({ entries: [
        made({ op: "stop", outcome: "applied", text: "run 2 stopped at step 60 (policy:halving): eval_loss 3 is behind 2" }),
        made({ seq: 51, time: 500, kind: "decisions", run: null, text: "halving, rung 0.25: 4 of 8 go on" }),
      ] });
    }""")
    page.get_by_role("tab", name="Timeline").click()
    canvas = page.locator(".rf-lanes canvas")
    page.wait_for_function("document.querySelector('.rf-lanes canvas').getAttribute('aria-label')")
    assert "2 by policies" in canvas.get_attribute("aria-label")

    def told(run, time):
        at = page.evaluate(
            """([run, time]) => {
              const canvas = document.querySelector(".rf-lanes canvas");
              const box = canvas.getBoundingClientRect();
              const width = canvas.parentElement.clientWidth;
              const end = Math.max(...makeSlices([1]).map((one) => one.end), 500);
              return [box.x + 56 + (time / end) * (width - 72), box.y + 8 + (run - 0.5) * 18];
            }""",
            [run, time],
        )
        page.mouse.move(*at)
        return canvas.get_attribute("title")

    assert "eval_loss 3 is behind 2" in told(2, 300)
    assert "4 of 8 go on" in told(6, 500)


@pytest.mark.parametrize(("age", "told"), [(1, True), (600, False)])
def test_what_training_will_cost_is_told_once_when_it_is_known(page, age, told):
    show(page)
    page.evaluate(
        """(age) => kernel.delta({ entries: [{
          seq: 60, time: Date.now() / 1000 - kernel.head.first_time - age, kind: "cost", run: null, level: "info", op: "",
          outcome: "", policy: "", remedies: [], text: "8 runs x 400 steps x 0.5 s = 27 min, if no run is stopped early" }] })""",
        age,
    )
    page.get_by_role("tab", name="Events").click()
    page.wait_for_selector("td:has-text('8 runs x 400 steps')")

    assert ("Cost: 8 runs x 400 steps" in page.locator(".rf-notices").inner_text()) == told

    page.evaluate(
        """() => kernel.delta({ entries: [{
          seq: 90, time: Date.now() / 1000 - kernel.head.first_time, kind: "cost", run: null, level: "info", op: "",
          outcome: "", policy: "", remedies: [], text: "8 runs x 210 steps x 0.5 s = 14 min so far" }] })"""
    )
    page.wait_for_selector(
        ".rf-notices:has-text('Cost: 8 runs x 210 steps x 0.5 s = 14 min so far')"
    )
    assert "8 runs x 400 steps" not in page.locator(".rf-notices").inner_text()


def test_samples_are_of_a_chunk_that_the_runs_shown_share_until_one_is_chosen(page):
    show(page, {"head": {"can": ["ops", "samples"]}})
    page.get_by_role("tab", name="Samples").click()
    page.wait_for_selector(".rf-samples td:has-text('It left our warehouse.')")
    chunk = page.get_by_label("Chunk")
    assert chunk.input_value() == "1"

    page.locator("tr[data-run='1'] input").click()
    page.locator("tr[data-run='2'] input").click()
    page.wait_for_function("kernel.model.sent.filter((m) => m.what === 'samples').length > 1")
    chunk.select_option("2")
    page.wait_for_function(
        "kernel.model.sent.filter((m) => m.what === 'samples').at(-1).args.chunk === 2"
    )

    asked = [one["args"] for one in sent(page, "ask") if one["what"] == "samples"]
    assert asked[0]["chunk"] is None and len(asked[0]["runs"]) == 6
    assert {"chunk": None, "runs": [1, 2]} in asked


MIXED = {
    "constants": {"mixture.tasks": ["support", "code"], "mixture.weights": [0.5, 0.5]},
    "varying": ["training_args.learning_rate"],
}


def test_tasks_of_a_mixture_are_weighed_anew_and_as_before_by_undo(page):
    changed = {"mixture.weights": [[0, [0.5, 0.5]], [16, [0.8, 0.2]]]}
    show(page, {"head": MIXED, "rows": {2: {"params": changed, "status": "stopped"}}})
    page.locator("tr[data-run='2'] [data-op=mix]").click()
    form = page.locator(".rf-form")
    support, code = form.get_by_label("support"), form.get_by_label("code")
    submit = form.get_by_role("button", name="Mix anew")

    assert (support.input_value(), code.input_value()) == ("0.8", "0.2")
    support.fill("-1")
    submit.click()
    assert "weight of support must be a number from 0 on" in form.locator(".rf-error").inner_text()
    support.fill("1")
    code.fill("3")
    assert "25 %" in form.inner_text() and "75 %" in form.inner_text()
    submit.click()
    page.evaluate("kernel.settle()")
    page.locator(".rf-notices").get_by_role("button", name="Undo").click()

    assert orders(page) == [
        ("mix", 2, {"weights": {"support": 1, "code": 3}}),
        ("mix", 2, {"weights": {"support": 0.8, "code": 0.2}}),
    ]


def test_only_a_mixture_offers_to_mix(page):
    show(page)

    assert page.locator("[data-op=mix]:visible").count() == 0
