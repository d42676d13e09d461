"""The panel with a comm of the test: what views say, and what they are told."""

import json
import subprocess
import sys
import threading
from dataclasses import replace
from typing import ClassVar

import comm
import pytest
import tiny
import torch
from oracle import assert_same, sliced
from test_experiment import grid

from rapidfire_jupyter.errors import OpError, RapidFireError
from rapidfire_jupyter.ops import Op, OpHandle
from rapidfire_jupyter.ui.orders import MessageError, checked


class Comm(comm.base_comm.BaseComm):
    """A page: keeps what it is told, and can say something."""

    made: ClassVar[list] = []

    def publish_msg(self, msg_type, data=None, metadata=None, buffers=None, **keys):
        if msg_type == "comm_open":
            self.told, self.news, self.state = [], threading.Condition(), data["state"]
            Comm.made.append(self)
        elif msg_type == "comm_msg" and data.get("method") == "custom":
            with self.news:
                self.told.append((data["content"], [bytes(b) for b in buffers or []]))
                self.news.notify_all()

    def say(self, **content):
        """Send a custom message as a view does."""
        data = {"method": "custom", "content": content}
        self.handle_msg({"content": {"data": data}, "buffers": []})

    def wait(self, timeout=30, **wanted):
        """The first message with these values, and its buffers."""

        def found():
            for content, buffers in self.told:
                if all(content.get(k) == v for k, v in wanted.items()):
                    return content, buffers
            return None

        with self.news:
            assert self.news.wait_for(found, timeout), (wanted, self.told[-3:])
            return found()

    def ask(self, what, **args):
        """Ask, and give the answer."""
        number = f"ask-{what}-{len(self.told)}"
        self.say(type="ask", view="v", id=number, what=what, args=args)
        return self.wait(type="answer", id=number)

    def order(self, number, kind, run=None, **args):
        """Order, and give the ack of when it has acted."""
        self.say(type="order", view="v", id=number, kind=kind, run=run, args=args)
        first = self.wait(type="ack", id=number)[0]
        if first["status"] != "pending":
            return first
        with self.news:
            self.news.wait_for(lambda: len(self._acks(number)) > 1, 30)
        return self._acks(number)[-1]

    def _acks(self, number):
        return [c for c, _ in self.told if c["type"] == "ack" and c["id"] == number]


@pytest.fixture(autouse=True)
def comms(monkeypatch):
    """Comms of widgets are those of the test."""
    monkeypatch.setattr(comm, "create_comm", lambda **given: Comm(**given))
    Comm.made = []


def page_of(exp):
    """The comm of an experiment's panel, with one open view."""
    exp.panel()
    page = next(c for c in reversed(Comm.made) if "_esm" in c.state)
    page.say(type="hello", view="v")
    page.wait(type="snapshot")
    return page


@pytest.fixture
def page(experiment):
    """The page of a finished experiment of two runs, whose engine takes ops."""
    exp = experiment()
    exp.run_fit(grid(), tiny.create_model, tiny.sft_rows(16), tiny.sft_rows(30)[20:], num_chunks=2)
    exp.wait(90)
    page = page_of(exp)
    page.exp = exp
    yield page
    exp.panel().close()


# -------------------------------------------------------------------------------------- orders


def test_an_order_is_pending_at_once_and_settled_when_it_acted(page):
    page.say(type="order", view="v", id="a", kind="delete", run=2, args={})
    first, _ = page.wait(type="ack", id="a")
    settled, _ = page.wait(type="ack", id="a", status="applied")

    assert first["status"] == "pending" and first["line"] == "%rapidfire delete 2"
    assert settled["run"] == 2 and page.exp.run(2).status == "deleted"
    assert page.order("b", "undelete", 2)["status"] == "applied"
    assert [e.data["by"] for e in page.exp.events if e.kind == "op"] == ["panel", "panel"]


def test_an_order_that_comes_twice_acts_once(page):
    clone = {"changes": {"training_args.learning_rate": "5e-3"}, "warm": False}
    first = page.order("same", "clone", 1, **clone)
    page.say(type="order", view="other", id="same", kind="clone", run=1, args=clone)
    page.exp.wait(90)

    assert first["status"] == "applied" and first["run"] == 3
    assert len(page._acks("same")) == 3 and page._acks("same")[-1] == first
    assert [e.data["kind"] for e in page.exp.events if e.kind == "op"] == ["clone"]
    assert page.exp.run(3).config["training_args.learning_rate"] == 5e-3
    assert page.exp.run(3).status == "completed"


@pytest.mark.parametrize(
    ("kind", "run", "args", "reason"),
    [
        ("stop", 1, {}, "run 1 is completed; only an active run can be stopped"),
        ("stop", 77, {}, "there is no run 77; runs: 1, 2"),
        ("boost", 1, {"weight": -1}, "weight must be a number over 0 and at most 1000, got -1.0"),
        ("clone", 1, {"changes": {"r": 0}}, "RFLoraConfig: r must be >= 1, got 0"),
        ("clone", 1, {"changes": {"lerning_rate": 1}}, "did you mean 'learning_rate'"),
        ("resume", 1, {}, "run 1 has finished"),
        ("mix", 1, {"weights": {"a": 1}}, "run 1 trains on one data set"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(page, kind, run, args, reason):
    ack = page.order("x", kind, run, **args)

    assert ack["status"] == "refused" and reason in ack["reason"]


@pytest.mark.parametrize(
    "message",
    [
        {"kind": "explode", "run": 1},
        {"kind": "stop", "run": "1"},
        {"kind": "stop", "run": True},
        {"kind": "stop"},
        {"kind": "stop", "run": 1, "args": {"by": "me"}},
        {"kind": "boost", "run": 1, "args": {"weight": "2"}},
        {"kind": "boost", "run": 1, "args": {"weight": float("nan")}},
        {"kind": "boost", "run": 1, "args": {"weight": 10**400}},
        {"kind": "clone", "run": 1, "args": {"changes": [1]}},
        {"kind": "mix", "run": 1, "args": {"weights": [1, 2]}},
        {"kind": "mix", "run": 1, "args": {"weight": 1}},
        {"kind": "clone", "run": 1, "args": {"warm": 1}},
        {"kind": "clone", "run": 1, "args": {"again": True}},
        {"kind": "pause_all", "args": {"run": 1}},
        {"kind": ["stop"], "run": 1},
        {"kind": "stop", "run": 1, "args": "x" * 5000},
    ],
)
def test_an_order_of_the_wrong_shape_is_none(message):
    with pytest.raises(MessageError) as refused:
        checked(message)

    assert len(str(refused.value)) < 300 and isinstance(refused.value, RapidFireError)


def test_an_order_that_breaks_what_reads_it_is_refused_and_not_left_open(page):
    deep: list = []
    for _ in range(600):
        deep = [deep]

    huge = page.order("huge", "boost", 1, weight=10**400)
    nested = page.order("nested", "clone", 1, changes={"learning_rate": deep}, warm=False)
    page.say(type="order", view="v", id="nested", kind="clone", run=1, args={})

    assert huge["status"] == "refused" and huge["reason"].startswith("weight is a number")
    assert nested["status"] == "refused" and "\n" not in nested["reason"]
    assert page._acks("nested")[-1] == nested and len(page._acks("nested")) == 2


def test_any_failure_of_an_order_ends_in_a_refused_ack(page):
    orders = page.exp.panel()._orders

    def broken(kind, run, args):
        raise ValueError("two\nlines")

    orders._actions = replace(orders._actions, order=broken)
    ack = page.order("broken", "stop", 1)

    assert (ack["status"], ack["reason"]) == ("refused", "ValueError: two")


def test_texts_that_are_no_unicode_do_not_cost_the_message(experiment, monkeypatch):
    """As the kernel's own comm does: a lone surrogate has no bytes in UTF-8."""

    class Strict(Comm):
        def publish_msg(self, msg_type, data=None, metadata=None, buffers=None, **keys):
            json.dumps(data, ensure_ascii=False).encode()
            super().publish_msg(msg_type, data, metadata, buffers, **keys)

    monkeypatch.setattr(comm, "create_comm", lambda **given: Strict(**given))
    exp = experiment()
    page = page_of(exp)
    specs = [{"id": 1, "name": "bad \ud800 name", "trainer_type": "SFT", "config": {}}]
    exp.panel()._actions.log.append("fit_started", fit={}, runs=specs)
    exp.panel()._actions.log.append("run_failed", 1, error="\udc80", trace="")

    with page.news:
        assert page.news.wait_for(
            lambda: any(
                row["status"] == "failed" for told, _ in page.told for row in told.get("rows", [])
            ),
            20,
        )
    row = [row for told, _ in page.told for row in told.get("rows", [])][-1]

    assert (row["name"], row["error"]) == ("bad ? name", "?")
    exp.panel().close()


@pytest.mark.parametrize(
    "content",
    ["text", None, [], {}, {"type": "hello"}, {"type": "order", "view": "v"}, {"view": 7},
     {"type": "ask", "view": "v", "id": "", "what": "config"},
     {"type": "hello", "view": "v" * 999}],
)  # fmt: skip
def test_messages_that_are_none_are_ignored(page, content, capfd):
    before = len(page.told)

    page.handle_msg({"content": {"data": {"method": "custom", "content": content}}})
    page.say(type="ping", view="v", seq=0)

    page.wait(type="pong", view="v")
    assert [c["type"] for c, _ in page.told[before:]] == ["pong"]
    assert capfd.readouterr() == ("", "")


def test_an_order_before_the_view_is_known_is_taken_too(page):
    page.exp.panel()._feed.close("v")

    assert page.order("late", "boost", 1, weight=2)["status"] == "refused"
    assert page.exp.panel()._feed.views == 1


def test_then_is_called_once_before_or_after_an_op_has_acted():
    handle, seen = OpHandle(Op("stop", 1)), []
    handle.then(lambda h: seen.append(("early", h.status)))

    handle.settle("applied", "", 3, 1)
    handle.then(lambda h: seen.append(("late", h.status)))

    assert seen == [("early", "applied"), ("late", "applied")]


# ---------------------------------------------------------------------------------------- asks


def test_questions_about_a_run_are_answered(page):
    config = page.ask("config", run=1)[0]
    log = page.ask("log", run=1, lines=3)[0]
    peek = page.ask("peek", run=1)[0]

    values = config["data"]["values"]
    memory = {name: values.pop(name) for name in list(values) if name.startswith("memory.")}
    seconds = [values.pop(name) for name in list(values) if name.startswith("seconds.")]
    assert len(seconds) == 4 and " s in " in seconds[0] and seconds[3] == "0.0 s (0.0 %)"
    assert config["ok"] and values == dict(page.exp.run(1).config)
    assert len(memory) == 6 and memory["memory.activations"].endswith(" MiB (measured)")
    assert log["ok"] and len(log["data"]["text"].splitlines()) <= 3
    first = peek["data"]["rows"][0]
    assert first[0]["learned"] is False and first[-1]["learned"] is True


def test_the_log_of_a_failed_run_ends_with_its_trace(experiment):
    class Fails(tiny.Callback):
        def on_step_end(self, args, state, control, **kwargs):
            raise ValueError("<script>alert(1)</script>")

    exp = experiment()
    config = grid().runs()[0].model.copy(callbacks=[Fails])
    exp.run_fit(config, tiny.create_model, tiny.sft_rows(8), num_chunks=1, block=True)
    page = page_of(exp)

    text = page.ask("log", run=1)[0]["data"]["text"]
    exp.panel().close()

    assert text.rstrip().endswith("ValueError: <script>alert(1)</script>")


def test_the_first_batch_of_preferences_marks_the_completions_only(experiment):
    from rapidfire_jupyter import RFDPOConfig, RFLoraConfig, RFModelConfig

    arguments = RFDPOConfig(per_device_train_batch_size=2, num_train_epochs=1)
    lora = RFLoraConfig(r=4, target_modules=["q_proj"])
    config = RFModelConfig("tiny", peft_config=lora, training_args=arguments)
    exp = experiment()
    exp.run_fit(config, tiny.create_model, tiny.dpo_rows(8), num_chunks=1, block=True)
    assert exp.run(1).status == "completed", exp.run(1).error
    page = page_of(exp)

    rows = page.ask("peek", run=1)[0]["data"]["rows"]
    exp.panel().close()

    assert [row[0]["text"] for row in rows] == ["chosen: "] * 2 + ["rejected: "] * 2
    source = {row["prompt"]: row for row in tiny.dpo_rows(8)}
    for row in rows:
        kind, prompt, completion = row
        assert [part["learned"] for part in row] == [False, False, True]
        wanted = source[prompt["text"]][kind["text"][:-2]]
        assert completion["text"].startswith(wanted) and "<pad>" not in completion["text"]


def test_the_log_tells_what_was_repeated_once(page):
    from rapidfire_jupyter import folders

    warning = "lib.py:3: FutureWarning: old\n  warnings.warn(\n"
    text = f"start\n{warning}{{'loss': 1}}\n{warning}same\nsame\n\n\nend\n"
    (folders.run_dir(page.exp.panel()._actions.folder, 1) / "train.log").write_text(text)

    shown = page.ask("log", run=1)[0]["data"]["text"]

    told = ["start", "{'loss': 1}", "lib.py:3: FutureWarning: old (×2)", "  warnings.warn(",
            "same (×2)", "", "", "end"]  # fmt: skip
    assert shown.splitlines() == told


@pytest.mark.parametrize(
    ("what", "args", "error"),
    [
        ("nothing", {}, "a question is one of library, form"),
        ("config", {"run": 9}, "there is no run 9; runs: 1, 2"),
        ("config", {"run": "1"}, "there is no run '1'"),
        ("log", {"run": 1, "lines": 10**9}, "lines is a number from 1 to 2000"),
        ("export", {"format": "exe"}, "an export's format is one of csv, parquet, html, adapter"),
        ("export", {"format": ["csv"]}, "an export's format is one of csv, parquet, html, adapter"),
        ("library", {"name": "../../secret"}, "a library is one of plotly"),
        ("library", {"name": {"name": "plotly"}}, "a library is one of plotly, got {'name'"),
        ("check", {"run": 1, "changes": 3}, "changes are an object, got 3"),
    ],
)
def test_questions_that_cannot_be_answered_say_why(page, what, args, error):
    answer, buffers = page.ask(what, **args)

    assert not answer["ok"] and error in answer["error"] and buffers == []


def test_exports_are_files_and_the_adapters_folder(page):
    csv, (content,) = page.ask("export", format="csv")
    html, (body,) = page.ask("export", format="html")
    parquet, (columns,) = page.ask("export", format="parquet")
    adapter, _ = page.ask("export", format="adapter", run=1)

    lines = content.decode().splitlines()
    assert csv["data"] == {"file": "exp.csv", "mime": "text/csv"}
    assert lines[0].startswith("run,name,step,chunk,") and len(lines) == len(page.exp.results()) + 1
    assert html["data"]["mime"] == "text/html" and body.startswith(b"<!DOCTYPE html>")
    assert parquet["ok"] and columns[:4] == b"PAR1"
    assert adapter["data"]["path"].endswith("runs/1/final")


def test_plotly_is_sent_when_it_is_asked_for(page):
    answer, (source,) = page.ask("library", name="plotly")

    assert answer["ok"] and 500_000 < len(source) < 2_000_000


def test_the_clone_form_is_asked_checked_and_previewed(page):
    form = page.ask("form", run=1)[0]
    changes = {"training_args.learning_rate": "1e-3", "peft_config.r": 8}
    checked_form = page.ask("check", run=1, changes=changes, warm=True)[0]
    longer = {**changes, "training_args.num_train_epochs": 9}
    checked_longer = page.ask("check", run=1, changes=longer, warm=True)[0]
    schedule = page.ask("schedule", run=1, changes={"training_args.learning_rate": 0.5,
                        "training_args.num_train_epochs": 2}, warm=True)[0]  # fmt: skip

    assert form["data"]["warm"] == "" and len(form["data"]["fields"]) > 50
    assert checked_form["data"] == {
        "errors": {},
        "warm": "nothing is left to train: the parent has finished its schedule; "
        "raise num_train_epochs (or start cold)",
        "changed": {"peft_config.r": [4, 8], "training_args.learning_rate": [0.01, 0.001]},
        "line": "%rapidfire clone 1 training_args.learning_rate='1e-3' peft_config.r=8 --warm",
    }
    assert checked_longer["data"]["warm"] == ""
    refused = page.order("short", "clone", 1, changes=changes, warm=True)
    assert refused["status"] == "refused" and "nothing is left to train" in refused["reason"]
    assert schedule["data"]["from_step"] == 4
    assert schedule["data"]["clone"] == [None] * 4 + [0.25, 0.1875, 0.125, 0.0625, 0.0]


# -------------------------------------------------------------------------- states of an experiment


def test_the_balance_of_the_chunks_is_told_also_when_the_experiment_has_ended(page):
    first = page.ask("data")[0]["data"]
    page.exp.end()
    again = page.ask("data")[0]["data"]

    assert first == again and first["measured"] == first["rows"]
    assert len(first["chunks"]) == page.exp.chunks().rows // first["chunks"][0]["rows"]
    assert all(chunk["word_js"] <= chunk["word_limit"] for chunk in first["chunks"])


def test_an_ended_experiment_shows_its_results_and_takes_no_orders(page):
    points = sum(b["n"] for b in page.wait(type="snapshot")[0]["blocks"])
    page.exp.end()
    page.told.clear()
    page.say(type="hello", view="w")
    shown, _ = page.wait(type="snapshot")

    assert shown["head"]["state"] == "ended" and shown["head"]["read_only"]
    assert shown["head"]["can"] == ["data", "samples", "analysis", "sample", "policies"]
    assert sum(b["n"] for b in shown["blocks"]) == points
    refused = page.order("late", "boost", 1, weight=3)
    assert refused["status"] == "refused" and "is not training here" in refused["reason"]


def test_a_later_kernel_shows_the_results(experiment, tmp_path):
    exp = experiment()
    exp.run_fit(grid(), tiny.create_model, tiny.sft_rows(8), num_chunks=1, block=True)
    exp.end()

    later = experiment()
    page = page_of(later)
    shown = page.wait(type="snapshot")[0]

    assert later is not exp and shown["head"]["state"] == "ended"
    assert [row["status"] for row in shown["rows"]] == ["completed"] * 2
    assert not page.ask("form", run=1)[0]["ok"]
    later.panel().close()


def test_a_snapshot_is_sent_before_the_callback_returns(page):
    """Colab shows nothing that is sent later."""
    page.told.clear()

    page.say(type="ask", view="v", id="s", what="snapshot", args={})

    assert "snapshot" in [content["type"] for content, _ in page.told]


def test_two_panels_have_style_sheets_of_their_own(experiment):
    first, second = experiment("a").panel(), experiment("b").panel()
    opened = [c.state for c in Comm.made if "_esm" in c.state]

    assert len({state["_anywidget_id"] for state in opened}) == 2
    assert first.twin_id in opened[0]["_css"] and second.twin_id in opened[1]["_css"]
    assert first.twin_id not in opened[1]["_css"]
    first.close()
    second.close()


def test_there_is_one_panel_until_it_is_closed(page):
    first = page.exp.panel()
    assert page.exp.panel() is first

    first.close()

    assert page.exp.panel() is not first


def test_a_message_goes_to_the_shell_it_names(experiment, monkeypatch):
    class Routing(Comm):
        def _reply_subshell_for(self, data, default):
            return "main"

    monkeypatch.setattr(comm, "create_comm", lambda **given: Routing(**given))
    panel = experiment().panel()

    assert panel.comm._reply_subshell_for({}, "subshell-1") == "subshell-1"
    panel.close()


def test_watching_is_free_the_weights_are_the_same(experiment):
    """With dropout, so that a single random number drawn beside training would be seen."""
    from rapidfire_jupyter import RFLoraConfig

    lora = RFLoraConfig(r=4, target_modules=["q_proj"], lora_dropout=0.2)
    config = grid(num_train_epochs=3).runs()[0].model.copy(peft_config=lora)
    torch.set_num_threads(1)

    def train(name, watch):
        exp = experiment(name)
        args = (tiny.create_model, tiny.sft_rows(16), tiny.sft_rows(30)[20:])
        exp.run_fit(config, *args, num_chunks=2)
        if watch:
            page = page_of(exp)
            for number, what in enumerate(["form", "config", "schedule", "check", "export"] * 4):
                page.say(type="ask", view="v", id=str(number), what=what,
                         args={"run": 1, "format": "csv"})  # fmt: skip
                page.wait(type="answer", id=str(number))
                page.say(type="hello", view=f"v{number}")
        exp.wait(90)
        assert exp.run(1).exact
        if watch:
            exp.panel().close()
        return sliced(exp.run(1))

    assert_same(train("alone", False), train("watched", True))


# ------------------------------------------------------------------------------------- imports


def test_the_extension_loads_without_what_only_the_panel_needs():
    code = (
        "import sys, rapidfire_jupyter.magics, rapidfire_jupyter.experiment\n"
        "print(sorted({'torch', 'plotly', 'anywidget', 'ipywidgets', 'pandas'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert out.stdout.strip() == "[]"


def test_a_terminal_gets_a_text_table(page, capsys):
    page.exp.panel()._ipython_display_()

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("exp: idle; 2 completed")
    assert "eval_loss" in lines[1] and len(lines) == 3


def test_undo_takes_back_the_last_op(page):
    with pytest.raises(OpError, match="no op yet to undo"):
        page.exp.undo().wait(30)
    page.order("a", "delete", 2)

    assert page.exp.undo().wait(30).op.kind == "undelete" and page.exp.run(2).status == "completed"
    page.order("b", "clone", 1, changes={"learning_rate": 0.1}, warm=False)
    page.exp.wait(90)
    page.exp.undo().wait(30)
    assert page.exp.run(3).status == "deleted"


def test_exports_by_path_and_an_unknown_ending(page, tmp_path):
    from rapidfire_jupyter import showing

    assert showing.export(page.exp, tmp_path / "log.csv").read_bytes().startswith(b"run,name")
    assert page.exp.report(tmp_path / "r.html").exists()
    with pytest.raises(
        OpError, match=r"a file ends in \.csv, \.parquet, \.html, \.htm, got 'a.xls'"
    ):
        showing.export(page.exp, tmp_path / "a.xls")
    with pytest.raises(OpError, match="cannot be written"):
        showing.export(page.exp, tmp_path / "no" / "a.csv")
