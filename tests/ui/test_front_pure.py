# ruff: noqa: E501  (JavaScript in texts)
"""The front end's pure functions: state, lines, numbers as text, fields."""

import json
import struct

import pytest
from front_page import parts

CURVE = """(values, steps) => {
  const curve = emptyCurve();
  values.forEach((value, i) => addPoint(curve, steps ? steps[i] : i, i / 10, i * 2, value));
  return curve;
}"""


@pytest.fixture
def js(page):
    parts(page)
    page.evaluate(f"() => {{ window.curve = {CURVE}; }}")
    return page.evaluate


def test_blocks_are_read_as_wire_lays_them_out(js):
    rows = [(1, 0.1, 2.0, 3.5, float("nan")), (2, 0.2, 4.0, 3.25, float("-inf"))]
    other = [(7, 0.5, 9.0, 1e-4)]
    data = b"".join(struct.pack(f"<{len(row)}f", *row) for row in (*rows, *other))

    found = js(
        """bytes => {
          const state = emptyState();
          addBlocks(state, [{ run: 3, metrics: ["loss", "x"], n: 2 }, { run: 4, metrics: ["lr"], n: 1 }], new DataView(Uint8Array.from(bytes).buffer));
          const read = (run, metric) => { const c = state.curves.get(run).get(metric); return [...c.step.slice(0, c.n), ...c.value.slice(0, c.n)].map(String); };
          return [read(3, "loss"), read(3, "x"), read(4, "lr").slice(0, 1), state.curves.get(3).get("loss").time[1]];
        }""",
        list(data),
    )

    assert found == [["1", "2", "3.5", "3.25"], ["1", "2", "NaN", "-Infinity"], ["7"], 4]


def test_thinning_keeps_extremes_ends_and_what_is_not_finite(js):
    found = js("""() => {
      const made = curve(Array.from({ length: 3000 }, (_, i) => (i === 1234 ? 99 : i === 1777 ? -99 : i === 2500 ? NaN : Math.sin(i / 50))));
      addPoint(made, 3000, 0, 0, 0.5);
      const values = [...made.value.slice(0, made.n)];
      return { n: made.n, first: made.step[0], last: made.step[made.n - 1], least: Math.min(...values.filter(Number.isFinite)),
        most: Math.max(...values.filter(Number.isFinite)), nans: values.filter(Number.isNaN).length, sorted: [...made.step.slice(0, made.n)].every((s, i, all) => !i || s > all[i - 1]) };
    }""")

    assert found["n"] <= 1501
    assert (found["first"], found["last"]) == (0, 3000)
    assert (found["least"], found["most"], found["nans"]) == (-99, 99, 1)
    assert found["sorted"]


def test_a_long_run_needs_no_more_memory(js):
    sizes = js("""() => {
      const made = curve([]);
      for (let i = 0; i < 50000; i += 1) addPoint(made, i, 0, 0, Math.random());
      return [made.n, made.step.length];
    }""")

    assert sizes[0] <= 3000
    assert sizes[1] <= 4096


def test_a_warm_clone_starts_on_its_parents_point_and_is_dashed(js):
    found = js("""() => {
      const state = emptyState();
      state.head = makeHead([]);
      state.rows.set(1, makeRow(1));
      state.rows.set(2, makeRow(2, { parent: 1, warm: true, clone_step: 25 }));
      state.rows.set(3, makeRow(3, { parent: 2, warm: true, clone_step: 27 }));
      state.curves.set(1, new Map([["loss", curve([5, 4, 3, 2], [10, 20, 30, 40])]]));
      state.curves.set(2, new Map([["loss", curve([3.5], [35])]]));
      state.curves.set(3, new Map([["loss", curve([1], [28])]]));
      const wish = { metric: "loss", x: "step", smooth: 0, hidden: new Set(), alone: null, selected: new Set() };
      return linesOf(state, wish, highlight(state, wish, new Map())).map((l) => [l.run, l.dashed, [...l.x], [...l.y]]);
    }""")

    assert found == [
        [1, False, [10, 20, 30, 40], [5, 4, 3, 2]],
        [2, True, [20, 35], [4, 3.5]],
        [3, True, [20, 28], [4, 1]],
    ]


def test_at_most_eight_runs_are_coloured_and_keep_their_colour(js):
    found = js("""() => {
      const state = emptyState();
      const rows = Array.from({ length: 20 }, (_, i) => makeRow(i + 1, { last: { loss: 20 - i } }));
      state.head = makeHead(rows, { lower_is_better: { loss: true } });
      for (const row of rows) state.rows.set(row.id, row);
      const wish = { metric: "loss", selected: new Set() };
      const best = highlight(state, wish, new Map());
      wish.selected = new Set([3, 11]);
      const chosen = highlight(state, wish, best);
      wish.selected = new Set([11]);
      const kept = highlight(state, wish, chosen);
      return [[...best.keys()].sort((a, b) => a - b), new Set(best.values()).size, [...chosen], [...kept]];
    }""")

    assert found[0] == [13, 14, 15, 16, 17, 18, 19, 20]
    assert found[1] == 8
    assert found[2] == [[3, 2], [11, 0]]  # both would have place 2: the second takes the first free
    assert found[3] == [[11, 0]]


def test_smoothing_is_a_debiased_average_that_leaves_gaps(js):
    smoothed = js("[...smooth([4, 2, NaN, 2], 0.5, null)].map(String)")

    assert float(smoothed[0]) == 4
    assert float(smoothed[1]) == pytest.approx((0.25 * 4 + 0.5 * 2) / 0.75)
    assert smoothed[2] == "NaN"
    assert float(smoothed[3]) == pytest.approx((0.125 * 4 + 0.25 * 2 + 0.5 * 2) / 0.875)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("0.0003", "3e-4"),
        ("1.23456", "1.235"),
        ("-12.3456", "−12.35"),
        ("0.001", "0.001"),
        ("-0.012345", "−0.0123"),
        ("NaN", "NaN"),
        ("Infinity", "∞"),
        ("0", "0"),
        ("123456", "123456"),
        ("2.5e7", "2.5e7"),
        ("null", "–"),
        ("'-Infinity'", "-Infinity"),
    ],
)
def test_numbers_read_well(js, value, text):
    assert js(f"showNumber({value})") == text


@pytest.mark.parametrize(
    ("field", "typed", "values", "error"),
    [
        ({"kind": "float", "value": 1e-3, "least": 0}, "5e-4, 2e-4", [5e-4, 2e-4], ""),
        ({"kind": "float", "value": 1e-3, "least": 0}, "-1", [], "must be at least 0"),
        ({"kind": "int", "value": 4, "least": 1}, "4 8 16", [4, 8, 16], ""),
        ({"kind": "int", "value": 4, "least": 1}, "1.5", [], "must be a whole number"),
        ({"kind": "int", "value": 4, "least": 1}, "many", [], "must be a number"),
        ({"kind": "int", "value": None}, "None", [None], ""),
        ({"kind": "bool", "value": True}, "false", [False], ""),
        ({"kind": "choice", "value": "a", "choices": ["a", "b"]}, "a | b", ["a", "b"], ""),
        (
            {"kind": "choice", "value": "a", "choices": ["a", "b"]},
            "c",
            [],
            "must be one of a, b",
        ),
        (
            {"kind": "list", "value": ["q", "v"]},
            "q, k | all-linear",
            [["q", "k"], "all-linear"],
            "",
        ),
        ({"kind": "list", "value": ["q"]}, '["a, b"]', [["a, b"]], ""),
        ({"kind": "text", "value": {"a": 1}}, "{oops", [], "is no valid JSON"),
        ({"kind": "text", "value": "x"}, "", [""], ""),
    ],
)
def test_typed_values(page, field, typed, values, error):
    parts(page)
    whole = {"choices": None, "least": None, "most": None, **field}

    found = page.evaluate("([field, typed]) => readField(field, typed)", [whole, typed])

    assert found == {"values": values, "error": error}


def test_combinations_make_a_clone_each(js):
    found = js("combinations(new Map([['a', [1, 2]], ['b', ['x', 'y']]]))")

    assert found == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    ]


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("r=4 learning_rate=0.01", "run 3"),
        ("clone of 1", "3 · clone of 1"),
        ("r=4 my own", "3 · r=4 my own"),
        ("", "run 3"),
    ],
)
def test_a_run_named_by_what_has_columns_is_shown_by_its_number(js, name, title):
    row = json.dumps({"id": 3, "name": name})

    shown = js(f"tableTitle({row}, ['peft_config.r', 'training_args.learning_rate'])")

    assert shown == title


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("ticks(0, 1, 5)", [0, 0.2, 0.4, 0.6000000000000001, 0.8, 1]),
        ("ticks(3, 3, 5)", [3]),
        ("ticks(5.72, 5.87, 2)", [5.75, 5.8, 5.8500000000000005]),
        ("[5.8, 1].map((at) => tickText(at, [at]))", ["5.8", "1"]),
        ("[5.75, 5.8].map((at) => tickText(at, [5.75, 5.8]))", ["5.75", "5.80"]),
        ("clockTicks(0, 300, 5)", [0, 60, 120, 180, 240, 300]),
        ("logTicks(-3, 0, 4)", [-3, -2, -1, 0]),
        ("logTexts([-4, -3, -2, 0, 7])", ["1e-4", "0.001", "0.01", "1", "1e7"]),
        ("logTexts([0.3625, 0.363, 0.3635])", ["2.304", "2.307", "2.309"]),
    ],
)
def test_ticks_are_round(js, call, expected):
    found = js(call)
    assert found == (expected if isinstance(expected[0], str) else pytest.approx(expected))


def test_a_log_axis_tells_small_values_apart(js):
    texts = js(
        """(() => {
          const y = [1e-4, 1e-3, 1e-2, 1];
          const line = { x: [0, 1, 2, 3], y, run: 1, slot: 0, at: [0, 1, 2, 3], label: "1" };
          const wish = { x: "step", log: true, zoom: null, marks: [], xTitle: "", yTitle: "" };
          return planChart([line], wish, 800, 300).yTicks.map((tick) => tick.text);
        })()"""
    )

    assert len(set(texts)) == len(texts) and {"1e-4", "0.001", "0.01", "0.1", "1"} <= set(texts)


def test_columns_are_in_the_order_in_which_they_are_wanted(js):
    keys = js(
        """(() => {
          const rows = [makeRow(1), makeRow(2, { parent: 1, weight: 3, status: "completed" })];
          const metrics = ["reward", "loss", "eval_reward", "eval_num_tokens", "learning_rate"];
          const lower_is_better = { reward: false, loss: true, eval_reward: false };
          const state = { head: makeHead(rows, { metrics, lower_is_better }),
                          rows: new Map(rows.map((row) => [row.id, row])) };
          const found = columnsOf(state, "learning_rate", "sans-serif");
          const weight = found.find((one) => one.key === "weight");
          return [found.map((one) => one.title), rows.map((row) => weight.text(row))];
        })()"""
    )

    assert keys[0] == ["Status", "Progress", "learning_rate (now)", "learning_rate", "r",
                       "target_modules", "reward", "loss", "eval_reward", "ETA", "Weight",
                       "Parent"]  # fmt: skip
    assert keys[1] == ["1", "–"]  # a finished run gets no more chunks


def test_clones_of_one_run_are_told_apart_by_what_changed(js):
    change = {"training_args.learning_rate": 2e-3, "peft_config.r": 4}
    row = {"id": 5, "name": "clone of 4", "parent": 4, "changes": change}

    assert js(f"runTitle(makeRow(5, {json.dumps(row)}))") == (
        "5 · clone of 4: learning_rate=0.002, r=4"
    )
    row["name"] = "mine"
    assert js(f"runTitle(makeRow(5, {json.dumps(row)}))") == "5 · mine"


def test_plotly_gets_minutes_and_other_axes_stay(js):
    line = "{ x: [0, 90, 120], y: [1, 2, 3] }"

    assert js(f"Array.from(inMinutes([{line}], 'time')[0].x)") == [0, 1.5, 2]
    assert js(f"Array.from(inMinutes([{line}], 'step')[0].x)") == [0, 90, 120]


def test_lines_are_thinned_to_pixels_with_their_extremes(js):
    found = js("""() => {
      const n = 20000;
      const x = Float64Array.from({ length: n }, (_, i) => i);
      const y = Float64Array.from({ length: n }, (_, i) => (i === 9999 ? 50 : i % 7));
      const { points, count } = toPixels(x, y, (v) => v / 40, (v) => v);
      return [count, Math.max(...points.slice(0, 2 * count).filter((_, i) => i % 2))];
    }""")

    assert found[0] <= 4 * 1001
    assert found[1] == 50


def test_a_list_in_a_list_keeps_its_brackets(js):
    assert js("showValue([0.5, 0.5])") == "0.5, 0.5"
    assert (
        js("showValue([[0, [0.5, 0.5]], [16, [0.8, 0.2]]])") == "[0, [0.5, 0.5]], [16, [0.8, 0.2]]"
    )


def test_magic_lines_are_those_of_the_verbs(js):
    from rapidfire_jupyter.verbs import parse

    for call, verb in [
        ("magicLine('stop', 2, {})", "stop"),
        ("magicLine('resume', 2, { num_train_epochs: 2 })", "resume"),
        ("magicLine('boost', 1, { weight: 3 })", "boost"),
        ("magicLine('undelete', 4, {})", "undelete"),
        ("magicLine('mix', 1, { weights: { support: 0.8, code: 0.2 } })", "mix"),
        ("magicLine('pause_all', null, {})", "pause"),
        ("magicLine('resume_all', null, {})", "resume-all"),
        ("magicLine('clone', 1, { changes: { learning_rate: 0.0005 }, warm: true })", "clone"),
    ]:
        line = js(call)
        assert line.startswith("%rapidfire ")
        assert parse(line.removeprefix("%rapidfire ")).verb == verb


def test_colours_are_those_of_the_kernels_end(js):
    from rapidfire_jupyter.ui import colors

    assert js("LIGHT") == list(colors.LIGHT)
    assert js("DARK") == list(colors.DARK)


def test_what_policies_decided_is_on_the_timeline_beside_the_ops_that_acted(js):
    found = js("""() => {
      const at = (time, over) => ({ seq: time, time, kind: "op", run: 1, text: "", level: "info", op: "stop", outcome: "applied", policy: "", remedies: [], ...over });
      const entries = [
        at(100, { policy: "halving" }),
        at(110, { outcome: "refused" }),
        at(120, { kind: "decisions", run: null, op: "", outcome: "", policy: "halving" }),
        at(130, { kind: "note", op: "", outcome: "" }),
      ];
      const rows = new Map([[1, makeRow(1)]]);
      return planTimeline({ ...emptyState(), rows, entries, slices: makeSlices([1], 12) }, 600).marks.map((one) => [one.time, one.policy]);
    }""")

    assert found == [[100, "halving"], [120, "halving"]]
