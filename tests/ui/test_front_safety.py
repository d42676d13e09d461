# ruff: noqa: E501  (JavaScript in texts)
"""Texts of an experiment are shown as text, and everybody can use the panel."""

import json

import pytest
from front_page import show

EVIL = [
    "<script>window.evil = 1</script>",
    '<img src=x onerror="window.evil = 1">',
    '</script><svg onload="window.evil = 1">',
    '"><a href="javascript:window.evil=1" onmouseover="window.evil = 1">',
]
TABS = ["Timeline", "Samples", "Policies", "Events", "Log", "Data", "Config", "Compare", "Plotly"]


@pytest.mark.parametrize("evil", EVIL)
def test_markup_in_any_text_is_only_text(page, evil):
    dialogs = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    row = {
        "name": evil,
        "status": "failed",
        "error": evil,
        "inexact": [evil],
        "params": {"training_args.learning_rate": evil, evil: [evil]},
        "last": {"loss": evil, evil: 1},
        "changes": {evil: evil},
        "parent": 2,
        "why": evil,
    }
    head = {
        "name": evil,
        "reason": evil,
        "device": evil,
        "metrics": ["loss", evil],
        "varying": ["training_args.learning_rate", evil],
        "constants": {evil: evil},
        "best": {"loss": 1, evil: 1},
        "state": "halted",
        "can": ["ops", "schedule", "sample", "samples", "data", "analysis", "policies"],
    }
    show(page, {"rows": {1: row}, "head": head})
    page.evaluate(
        """evil => {
          kernel.answers = {
            form: { fields: FIELDS.map((f) => ({ ...f, label: evil, note: evil, group: evil, value: f.kind === "text" ? evil : f.value })), warm: evil },
            config: { values: { [evil]: evil } }, log: { text: evil }, peek: { rows: [[{ text: evil, learned: true }]] },
            samples: { chunks: [1], chunk: 1, prompts: [{ prompt: evil, reference: evil, predictions: { 1: evil }, scores: { 1: { [evil]: 1 } } }] },
            data: { rows: 1, measured: 1, chunks: [{ rows: 1, words: 1, groups: { [evil]: 1 } }] }, policies: { policies: [{ key: evil, mode: "on", given: true, about: evil, done: evil, told: [[1, evil]], settings: [{ name: evil, kind: "text", value: evil, about: evil }] }] }, library: { error: evil }, sample: { error: evil },
            analysis: { metric: evil, mode: "min", at: 1, used: [1], notes: [evil], effects: [{ factor: evil, before: evil, after: evil, mean: 1, low: null, high: null, verdict: evil, pairs: 1 }] },
          };
          kernel.delta({ entries: [{ seq: 99, time: 1, kind: evil, run: 1, text: evil, level: "alert", op: "stop", outcome: "applied", policy: evil, remedies: [{ label: evil, kind: "clone", args: { changes: { [evil]: evil }, warm: false } }] }] });
        }""",
        evil,
    )
    for name in TABS:
        page.get_by_role("tab", name=name, exact=True).click()
        page.wait_for_timeout(30)
    page.get_by_role("tab", name="Curves").click()
    box = page.locator(".rf-plot").first.bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 150)
    page.locator("tr[data-run='1'] [data-op=clone]").click(force=True)
    page.get_by_role("button", name="Export").click()

    assert evil in page.locator(".rf-name").inner_text()
    svg = page.evaluate(
        """() => { const made = URL.createObjectURL; let found; URL.createObjectURL = (blob) => ((found = blob.text()), made(blob));
          [...document.querySelectorAll(".rf-item")].find((one) => one.textContent === "Figure as SVG").click(); URL.createObjectURL = made; return found; }"""
    )
    assert "<script" not in svg
    assert not page.evaluate(
        "svg => new DOMParser().parseFromString(svg, 'image/svg+xml').querySelector('parsererror, script, [onload]')",
        svg,
    )
    assert page.evaluate("window.evil") is None
    assert page.locator(".rf-panel script, .rf-panel img, .rf-panel a").count() == 0
    assert dialogs == []


def test_markup_in_names_is_text_for_plotly_too(page):
    from front_page import STATIC

    show(page, {"rows": {1: {"name": EVIL[1], "params": {"a": EVIL[0]}}}})
    page.evaluate(
        "s => { kernel.answers.library = () => ({ buffer: new TextEncoder().encode(s) }); }",
        (STATIC / "vendor" / "plotly-basic.min.js").read_text("utf-8"),
    )
    page.get_by_role("tab", name="Plotly").click()
    page.wait_for_selector(".js-plotly-plot .legendtext")

    assert "<img" in page.locator(".legendtext").first.text_content()
    assert page.locator(".js-plotly-plot img").count() == 0
    assert page.evaluate("window.evil") is None
    assert page.evaluate("typeof Plotly") == "undefined"


def violations(page):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    found = axe.Axe().run(page, context=".rf-panel").response["violations"]
    return [(one["id"], [node["html"][:160] for node in one["nodes"]][:3]) for one in found]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing(page, dark):
    rows = {
        2: {"parent": 1, "warm": True, "clone_step": 100, "inexact": ["a cell drew numbers"]},
        3: {"status": "failed", "error": "out of memory"},
    }
    can = ["ops", "schedule", "sample", "samples", "data", "analysis", "policies"]
    show(page, {"rows": rows, "head": {"alerts": 2, "can": can}}, dark=dark)
    page.locator("tr[data-run='1'] input").click()
    page.locator("tr[data-run='1'] [data-op=stop]").click()
    page.evaluate("kernel.settle('refused', 'for a reason')")
    assert violations(page) == []
    for name in [*TABS[:-1]]:
        page.get_by_role("tab", name=name, exact=True).click()
        page.wait_for_timeout(50)
        assert violations(page) == [], name
    page.get_by_role("tab", name="Curves").click()
    page.get_by_role("button", name="Numbers").click()
    page.get_by_role("button", name="Export").click()
    assert violations(page) == []
    page.get_by_role("button", name="Keyboard help").click()
    assert violations(page) == []
    page.keyboard.press("Escape")
    page.locator("tr[data-run='1'] [data-op=clone]").click()
    page.get_by_role("textbox", name="learning_rate").fill("-2")
    page.locator("summary").first.click()
    assert violations(page) == []


def test_the_summary_is_said_at_most_every_ten_seconds(page):
    page.clock.install()
    show(page)
    said = page.locator("[aria-live=polite]")
    first = said.text_content()
    assert "support-bot: training, 43 % done" in first
    for _ in range(8):
        page.evaluate(
            "kernel.delta({ head: { ...kernel.head, progress: kernel.head.progress += 0.02 } })"
        )
        page.clock.run_for(1000)
    assert said.text_content() == first
    page.clock.run_for(3000)
    page.evaluate("kernel.delta({ head: { ...kernel.head, progress: 0.9 } })")
    page.clock.run_for(1500)
    assert "90 % done" in said.text_content()


def test_shortcuts_of_the_notebook_are_kept_away(page):
    show(page)
    assert page.locator(".rf-panel").get_attribute("data-lm-suppress-shortcuts") == "true"
    assert json.dumps(page.locator("[tabindex='0']").count())
