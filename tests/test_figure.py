"""Series, figures, reports, twins: the right numbers, and every text shown as text."""

import itertools
import re
from html.parser import HTMLParser

import logs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapidfire_jupyter.errors import OpError
from rapidfire_jupyter.ui import colors, exports
from rapidfire_jupyter.ui.figure import figure
from rapidfire_jupyter.ui.fold import Fold
from rapidfire_jupyter.ui.report import report_html
from rapidfire_jupyter.ui.series import best_first, series
from rapidfire_jupyter.ui.svg import Curve, chart, ticks
from rapidfire_jupyter.ui.twin import twin_html, twin_text
from rapidfire_jupyter.ui.view import Facts

EVIL = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    '"><svg onload=alert(1)>',
    "</title></style></pre></details><iframe src=//x>",
    "%{x} & <b>bold</b> \u202e {{x}}",
)
FACTS = Facts("exp", "idle")


def fold(log):
    return Fold().read(log.since(0))


@pytest.fixture
def two(tmp_path):
    """A run of 20 rows, and its warm clone of 10 more."""
    log = logs.started(tmp_path, 1)
    logs.rows(log, 1, 20)
    child = {"id": 2, "name": "warm", "trainer_type": "SFT", "config": {"peft_config.r": 1},
             "parent": 1, "warm": True, "clone_step": 12}  # fmt: skip
    logs.op(log, "clone", 1, args={"warm": True, "changes": {}}, created=child)
    logs.prepared(log, 2, step=12)
    logs.rows(log, 2, 10, 13)
    log.append("logged", 1, row={"eval_loss": 2.5, "step": 10}, source="chunk")
    return log


def test_a_warm_clone_begins_on_its_parents_point_and_is_dashed(two):
    parent, clone = series(fold(two), "loss")

    assert parent.x == tuple(range(1, 21)) and not parent.dashed
    assert clone.x == (12, *range(13, 23)) and clone.dashed
    assert clone.y[0] == parent.y[11]


@pytest.mark.parametrize(("x", "last"), [("step", 20), ("epoch", 20 / 600), ("rows", 80.0)])
def test_the_x_axis_is_what_was_asked_for(two, x, last):
    assert series(fold(two), "loss", x)[0].x[-1] == pytest.approx(last)


def test_unknown_metrics_and_axes_are_refused(two):
    with pytest.raises(OpError, match="no run has logged 'bleu'; logged: loss, grad_norm"):
        series(fold(two), "bleu")
    with pytest.raises(OpError, match="x is one of step, epoch, rows, time, got 'wall'"):
        series(fold(two), "loss", "wall")


def test_deleted_runs_are_left_out_and_nan_ranks_last(tmp_path):
    log = logs.started(tmp_path, 4)
    for run, loss in ((1, 2.0), (2, float("nan")), (3, 1.0), (4, 0.5)):
        logs.rows(log, run, 1, loss=loss)
    logs.op(log, "delete", 4)

    found = series(fold(log), "loss")

    assert [s.run for s in best_first(found, "loss")] == [3, 1, 2]


def test_the_figure_has_a_trace_of_each_run_with_its_numbers(two):
    drawn = figure(fold(two), "loss").to_dict()

    parent, clone = drawn["data"]
    assert parent["line"]["dash"] == "solid" and clone["line"]["dash"] == "dash"
    assert {parent["line"]["color"], clone["line"]["color"]} == set(colors.LIGHT[:2])
    assert tuple(parent["y"]) == series(fold(two), "loss")[0].y


def test_eight_of_many_runs_are_coloured_the_others_grey(tmp_path):
    log = logs.started(tmp_path, 20)
    for run in range(1, 21):
        logs.rows(log, run, 2, loss=float(run))

    drawn = figure(fold(log), "loss").to_dict()["data"]

    shown = {trace["name"].partition(":")[0]: trace["line"]["color"] for trace in drawn}
    assert [run for run, color in shown.items() if color != colors.GREY] == list("12345678")
    assert [shown[run] for run in "12345678"] == list(colors.LIGHT)


# ---------------------------------------------------------------------------------- escaping


class Tags(HTMLParser):
    """Collects the tags, attributes and texts of a page."""

    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.texts = set(), set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_data(self, data):
        self.texts.append(data)


def evil_log(tmp_path):
    """A log in which every text that a user can give is an attack."""
    log = logs.started(tmp_path, len(EVIL), names=dict(enumerate(EVIL, start=1)))
    for run, text in enumerate(EVIL, start=1):
        logs.rows(log, run, 3, **{f"eval_{text}": 1.0})
        log.append("run_failed", run, error=text, trace=text)
        log.append("alert", text=text)
        args = {"warm": False, "changes": {text: text}}
        child = {"id": 100 + run, "name": text, "trainer_type": "SFT", "parent": run,
                 "config": {text: text, "model_name": text}, "changes": {text: text}}  # fmt: skip
        logs.op(log, "clone", run, args=args, created=child)
        logs.op(log, "stop", run, outcome="refused", reason=text, by=text)
    return log


@pytest.mark.parametrize("page", [twin_html, report_html])
def test_no_text_becomes_a_tag(tmp_path, page):
    known = fold(evil_log(tmp_path))

    html = page(known, Facts(EVIL[0], "idle", reason=EVIL[1]))

    found = Tags()
    found.feed(html)
    assert found.tags <= {
        "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "div", "table", "tr",
        "th", "td", "b", "span", "figure", "figcaption", "svg", "g", "path", "text", "details",
        "summary", "pre",
    }  # fmt: skip
    assert not [name for name in found.attributes if name.startswith("on") or "src" in name]
    assert "alert(1)" in "".join(found.texts) and "<script" not in html.lower()


def test_the_report_stands_alone(tmp_path):
    log = logs.started(tmp_path, 3)
    for run in (1, 2, 3):
        logs.rows(log, run, 50, eval_loss=float(run))

    html = report_html(fold(log), FACTS)

    assert html.startswith("<!DOCTYPE html>") and "default-src 'none'" in html
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", html)
    assert html.count("<svg") == 4 and "run 1 has the lowest eval_loss" in html
    assert html.index('<table class="rf-t">') < html.index("<svg")
    first = html[html.index("<svg") : html.index("</svg>")]
    ends = re.findall(r'<text class="k\dt" x="([\d.]+)" y="([\d.]+)"[^>]*>(\d)</text>', first)
    heights = sorted(float(y) for _, y, _ in ends)
    assert sorted(run for _, _, run in ends) == ["1", "2", "3"]
    assert all(low + 10 < high for low, high in itertools.pairwise(heights))


def test_names_that_are_no_unicode_can_be_saved(tmp_path):
    log = logs.started(tmp_path, 1, names={1: "half \ud83d"})
    logs.rows(log, 1, 3)
    known = Fold().read(log.since(0))

    for text in (
        twin_html(known, FACTS),
        twin_text(known, FACTS),
        report_html(known, FACTS),
    ):
        assert "half ?" in text and text.encode()


def test_hover_texts_of_figures_are_escaped(tmp_path):
    known = fold(evil_log(tmp_path))

    for trace in figure(known, "loss").to_dict()["data"]:
        shown = trace["hovertemplate"].replace("<br>%{x:.6g}: %{y:.6g}<extra></extra>", "")
        assert "<" not in shown and "%{" not in shown and "<" not in trace["name"]


# ---------------------------------------------------------------------------------- the twin


def test_the_twin_of_48_runs_is_under_100_kilobytes_and_complete(tmp_path):
    log = logs.started(
        tmp_path, 48, names={i: f"learning_rate={i}e-4, r={i}" for i in range(1, 49)}
    )
    for run in range(1, 49):
        logs.rows(log, run, 600, eval_loss=run / 10)
        log.append("run_completed", run, step=600, note="")

    html = twin_html(fold(log), FACTS)

    print(f"\ntwin of 48 runs: {len(html) / 1e3:.0f} KB")
    assert len(html.encode()) <= 100_000
    assert html.count("<tr>") == 49 and html.count("<svg") == 2
    assert "run 1 has the lowest eval_loss, 0.1" in html
    assert "48 completed" in html and "<b>0.1</b>" in html
    assert "<script" not in html


def test_a_twin_without_runs_or_rows_is_a_line(tmp_path):
    assert "exp: empty; no runs yet" in twin_html(Fold(), Facts("exp", "empty"))
    log = logs.started(tmp_path, 1)
    text = twin_text(fold(log), Facts("exp", "running"))
    assert text == "exp: running; 1 queued\n  1  queued  step 0/600  r=1"
    assert "<svg" not in twin_html(fold(log), Facts("exp", "running"))


def test_a_spike_is_drawn_and_what_is_not_finite_is_not():
    values = [1.0] * 1000
    values[567], values[568] = 9.0, float("nan")

    drawn = chart("loss", [Curve("run", list(enumerate(values)))], most=40)

    heights = {
        float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", drawn.split('<g fill="none"')[1])
    }
    assert min(heights) < 40 and "nan" not in drawn
    assert drawn.count("L") < 40


@given(st.lists(st.floats(-1e12, 1e12, allow_nan=False), min_size=1, max_size=20))
def test_ticks_are_few_and_around_all_values(values):
    found = ticks(values)

    tolerance = 1e-6 * (max(values) - min(values))
    assert found[0] <= min(values) + tolerance and found[-1] >= max(values) - tolerance
    assert 2 <= len(found) <= 9 and found == sorted(found)


# ----------------------------------------------------------------------------------- exports


def test_the_csv_holds_the_log_and_no_formula(tmp_path):
    import csv
    import io

    log = logs.started(tmp_path, 2, names={1: "=cmd|' /C calc'!A0", 2: "plain"})
    logs.rows(log, 1, 3)
    logs.rows(log, 2, 2, eval_loss=float("nan"))

    text = exports.content("csv", "exp", log.events, "idle").decode()

    found = list(csv.DictReader(io.StringIO(text)))
    assert [(r["run"], r["step"], r["chunk"]) for r in found] == [
        ("1", "1", "1"), ("1", "2", "1"), ("1", "3", "1"), ("2", "1", "1"), ("2", "2", "1"),
    ]  # fmt: skip
    assert found[0]["name"] == "'=cmd|' /C calc'!A0" and found[3]["eval_loss"] == "nan"
    assert float(found[0]["loss"]) == fold(log).curves[1][0].values[0]


def test_file_names_hold_no_path():
    assert exports.file_name("../a b/<x>", "csv") == ".._a_b_x_.csv"


def test_without_plotly_the_figure_says_how_to_get_it(two, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "plotly.graph_objects", None)

    with pytest.raises(OpError, match="run `pip install plotly`"):
        figure(fold(two), "loss")


# ------------------------------------------------------------------------------------ colours


def _luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("palette", "page"), [(colors.LIGHT, 1.0), (colors.DARK, 0.0152)])
def test_colours_stand_out_three_to_one(palette, page):
    for color in palette:
        low, high = sorted((_luminance(color), page))
        assert (high + 0.05) / (low + 0.05) >= 2.99, color


def test_the_browsers_colours_are_the_same():
    from pathlib import Path

    static = Path(colors.__file__).parent / "static"
    source = "".join(f.read_text(encoding="utf-8") for f in static.glob("*.js")).upper()

    assert all(color in source for color in (*colors.LIGHT, *colors.DARK))
