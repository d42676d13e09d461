"""`%rapidfire` and `%%rapidfire`: reading lines and YAML, and the whole in a real kernel."""

import json
import os
import shutil
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from jupyter_client.manager import KernelManager
from traitlets.config import Config

from rapidfire_jupyter import List, Range, completion, doctor, magics, verbs, yaml_body
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.state import Run

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "pandas", "trl", "transformers", "datasets")


# ---------------------------------------------------------------------------------------- one line


def test_line_is_read_into_verb_words_pairs_and_options():
    command = verbs.parse("clone 1 learning_rate=5e-4 --warm target_modules=[q_proj, v_proj]")

    assert command.verb == "clone"
    assert command.words == ("1",)
    assert command.pairs == {"learning_rate": 5e-4, "target_modules": ["q_proj", "v_proj"]}
    assert command.options == {"--warm": ""}


@pytest.mark.parametrize("line", ["stop 1 --exp 'my runs'", "stop 1 --exp='my runs'"])
def test_option_values_may_be_quoted(line):
    assert verbs.parse(line).options == {"--exp": "my runs"}


def test_empty_line_asks_for_help():
    assert verbs.parse("  ").verb == "help"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5e-4", 5e-4),
        ("1E5", 1e5),
        ("1e-04", 1e-4),
        (".5", 0.5),
        ("1.", 1.0),
        ("-2", -2),
        ("1_000", 1000),
        ("true", True),
        ("False", False),
        ("None", None),
        ("no", "no"),
        ("010", "010"),
        ("2024-01-01", "2024-01-01"),
        ("all-linear", "all-linear"),
        ("'5e-4'", "5e-4"),
        ("[q_proj, v_proj]", ["q_proj", "v_proj"]),
        ("{dropout: 0.1}", {"dropout": 0.1}),
    ],
)
def test_values_are_read_as_yaml_1_2(text, value):
    found = yaml_body.read_value(text)

    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("stpo 2", "unknown verb 'stpo', did you mean 'stop'? usage: %rapidfire stop ID [ID ...]"),
        ("xyzzy", "unknown verb 'xyzzy'; usage: %rapidfire VERB ..., with one of status, runs"),
        ("stop", "stop needs a run id; usage: %rapidfire stop ID [ID ...]"),
        ("boost 1 2 3", "boost takes no '3'; usage: %rapidfire boost ID [2]"),
        ("stop 1 lr=3 --exp", "--exp needs a value"),
        ("clone 1 --wram", "unknown option '--wram'; usage: %rapidfire clone ID [NAME=VALUE ...]"),
        ("clone 1 --wram", "; did you mean '--warm'"),
        ("clone 1 --warm=yes", "--warm takes no value"),
        ("clone 1 r=4 r=8", "r is given twice"),
        ("clone 1 r= 4", "write NAME=VALUE without spaces, got 'r='"),
        ("clone 1 target_modules=[q_proj", "] is missing at the end of"),
        ("clone 1 name='a", "' is missing at the end of"),
        ("clone 1 r=@x", "cannot read '@x'"),
        ("clone 1 r=*x", "cannot read '*x': references (*) are refused"),
    ],
)
def test_wrong_line_is_refused_with_usage(line, error):
    with pytest.raises(UsageError) as refused:
        verbs.parse(line)

    assert error in str(refused.value)
    assert "\n" not in str(refused.value)


def test_run_without_a_cell_and_other_verbs_with_one_are_refused():
    with pytest.raises(UsageError, match="start it with %%rapidfire run"):
        magics.run_magic("run", None, {})
    with pytest.raises(UsageError, match="only run takes a cell; usage: %rapidfire stop ID"):
        magics.run_magic("stop 1", "text", {})


def test_help_names_every_verb_and_shows_an_example_of_run():
    assert all(f"  {verb}" in verbs.help_text() for verb in verbs.VERBS)
    assert verbs.help_text("clone").startswith("%rapidfire clone ID [NAME=VALUE ...] [--warm]")
    assert "{grid: [8, 32]}" in verbs.help_text("run")


def test_example_of_help_is_a_valid_body():
    values, _ = yaml_body.read_body(yaml_body.EXAMPLE.partition("\n")[2])

    assert values["training_args"] == {"learning_rate": {"grid": [1e-3, 1e-4]}}


# -------------------------------------------------------------------------------------- a YAML body

MINIMAL = "experiment: a\nmodel_name: m\ntrain_dataset: rows\n"


def test_body_gives_values_and_the_lines_of_their_keys():
    values, lines = yaml_body.read_body(MINIMAL + "training_args:\n  learning_rate: 1e-4\n")

    assert values["training_args"] == {"learning_rate": 1e-4}
    assert lines == {"experiment": 2, "model_name": 3, "train_dataset": 4, "training_args": 5}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (MINIMAL + "trainig_args: {}\n", "line 5 of the cell: unknown key 'trainig_args'; did you"),
        (MINIMAL + "num_chunk: 3\n", "'num_chunks'"),
        (MINIMAL + "qqq: 3\n", "keys: experiment, root"),
        ("experiment: a\n", "the YAML body needs model_name, train_dataset"),
        ("", "must be lines of `key: value`"),
        ("- a\n", "must be lines of `key: value`"),
        ("experiment: a\n  b: c\n", "line 3 of the cell: mapping values are not allowed here"),
        ("experiment: [a\n", "line 3 of the cell: "),
        ("experiment: a\nexperiment: b\n", "line 3 of the cell: experiment is given twice"),
        ("1: b\n", "line 2 of the cell: a key must be a text"),
        ("a: &x [1]\nb: *x\n", "line 3 of the cell: references (*) are refused"),
        ("a: !!python/object/apply:os.getcwd []\n", "line 2 of the cell: could not determine"),
        (f"a: {'[' * 30}{']' * 30}\n", "more than 20 levels"),
        (f"a: {'x' * 70_000}\n", "has 70004 bytes, more than 65536"),
    ],
)
def test_wrong_body_is_refused_with_its_line(body, error):
    with pytest.raises(UsageError) as refused:
        yaml_body.read_body(body)

    assert error in str(refused.value)
    assert "\n" not in str(refused.value)


def test_grid_and_range_become_choices_at_any_depth():
    found = yaml_body.with_choices(
        {
            "r": {"grid": [8, 32]},
            "rate": {"range": [1e-5, 1e-3], "log": True},
            "steps": [{"range": [1, 9], "step": 2}],
            "target_modules": ["q_proj"],
            "whole": {"grid": [{"r": {"grid": [1, 2]}}]},
        }
    )

    assert found == {
        "r": List([8, 32]),
        "rate": Range(1e-5, 1e-3, log=True),
        "steps": [Range(1, 9, step=2)],
        "target_modules": ["q_proj"],
        "whole": List([{"r": List([1, 2])}]),
    }


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ({"grid": 8}, r"grid takes a list: \{grid: \[8, 32\]\}, got \{'grid': 8\}"),
        ({"grid": [8], "log": True}, "grid takes a list"),
        ({"grid": []}, "List must hold at least one value"),
        ({"range": [1]}, "range takes two numbers"),
        ({"range": [1, 2], "stp": 1}, "range takes two numbers"),
        ({"range": [2, 1]}, "swap them"),
    ],
)
def test_wrong_choices_are_refused(value, error):
    with pytest.raises(ConfigError, match=error):
        yaml_body.with_choices(value)


def test_names_stand_for_notebook_variables():
    names = {"score": len, "length": max}

    assert yaml_body.named("compute_metrics", "score", names) is len
    assert yaml_body.named("reward_funcs", ["score", "length"], names) == [len, max]
    assert yaml_body.named("formatting_func", List(["score", "length"]), names) == List([len, max])
    assert yaml_body.named("eval_dataset", None, names) is None


def test_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="has no variable 'scor'; did you mean 'score'"):
        yaml_body.named("compute_metrics", "scor", {"score": len})
    with pytest.raises(ConfigError, match="takes the name of a notebook variable, got 3"):
        yaml_body.named("train_dataset", 3, {})
    with pytest.raises(ConfigError, match="has no variable 'open'; define it in a cell first"):
        yaml_body.named("reward_funcs", "open", {})


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ("as: 3x", "as takes the name of a variable, got '3x'"),
        ("as: rows", "the notebook has another variable 'rows'; add as: NAME"),
        ("root: [a]", r"line 5 of the cell: root takes a text, got \['a'\]"),
        ("trainer_type: PPO", "trainer_type must be one of SFT, DPO, GRPO, RLOO, .*got 'PPO'"),
        (
            "eval_dataset: row",
            "line 5 of the cell: eval_dataset: the notebook has no variable 'row'",
        ),
        ("num_chunks: {grid: [1, 2]}", "line 5 of the cell: num_chunks takes one value"),
        ("peft_config: [r]", "line 5 of the cell: peft_config takes the arguments of RFLoraConfig"),
    ],
)
def test_body_that_cannot_be_trained_is_refused_before_anything_starts(more, error, tmp_path):
    root = "" if "root" in more else f"\nroot: {tmp_path}"

    with pytest.raises((UsageError, ConfigError), match=error):
        yaml_body.run_body(MINIMAL + more + root, {"rows": []})

    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------ doctor, shim, names


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """An IPython shell that leaves this process's modules and the user's history alone."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    return InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))


@pytest.mark.parametrize(
    ("facts", "advice"),
    [
        (("cuda", True, 24.0), "bf16=True (TRL's default); LoRA up to about 8.0 B parameters"),
        (("cuda", True, 24.0), "27 B in 4 bit, all weights 1.6 B"),
        (("cuda", False, 16.0), "fp16=True, bf16=False: this GPU only emulates bf16"),
        (("cpu", False, 12.0), "about 2.0 B parameters, all weights 0.4 B in float32"),
        (("mps", True, 18.0), "LoRA up to about 6.0 B parameters in 16 bit"),
    ],
)
def test_the_doctor_advises_on_precision_by_chip_and_memory(facts, advice):
    assert advice in doctor.precision_advice(*facts)


def test_versions_are_held_against_the_lower_bounds():
    found = dict.fromkeys(doctor.BOUNDS, "99.0") | {"trl": "1.9.0", "peft": None}

    lines = doctor.version_lines(found)

    assert "ok       torch 99.0 (needs >= 2.6)" in lines
    assert any(line.startswith("too old  trl 1.9.0") and "pip install -U" in line for line in lines)
    assert any(line.startswith("missing  peft - ") for line in lines)


def test_another_package_called_rapidfire_is_told_at_load(shell, tmp_path, monkeypatch, capsys):
    (tmp_path / "rapidfire").mkdir()
    (tmp_path / "rapidfire" / "__init__.py").write_text("raise SystemExit('never imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "rapidfire", raising=False)

    magics.load_ipython_extension(shell)

    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert "hides ours; use %load_ext rapidfire_jupyter" in printed


def test_our_shim_is_known_without_importing_it(tmp_path, monkeypatch):
    shutil.copy(ROOT / "rapidfire_jupyter" / "_shim.py", tmp_path / "rapidfire.py")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "rapidfire", raising=False)

    assert doctor.shim() == ("ok", str(tmp_path / "rapidfire.py"))
    assert "rapidfire" not in sys.modules


def test_hyperparameters_are_offered_short_where_the_name_is_clear():
    config = {
        "trainer_type": "SFT",
        "model_name": "m",
        "model_kwargs.dropout": 0.1,
        "peft_config.r": 8,
        "training_args.seed": 1,
        "seed": 2,
    }

    offered = completion.hyperparameters(Run(1, "a", "SFT", config))

    given = ["model_name", "model_kwargs.dropout", "r", "training_args.seed", "seed"]
    assert offered[:5] == given
    assert "trainer_type" not in offered


def test_trls_warning_of_its_experimental_part_is_silenced(shell, monkeypatch):
    monkeypatch.delenv("TRL_EXPERIMENTAL_SILENCE", raising=False)

    magics.load_ipython_extension(shell)

    assert os.environ["TRL_EXPERIMENTAL_SILENCE"] == "1"


def test_loading_twice_leaves_one_matcher_and_unloading_none(shell):
    magics.load_ipython_extension(shell)
    magics.load_ipython_extension(shell)

    assert [m.matcher_identifier for m in shell.Completer.custom_matchers] == [magics.MATCHER]
    magics.unload_ipython_extension(shell)
    magics.unload_ipython_extension(shell)
    assert shell.Completer.custom_matchers == []
    assert shell.find_line_magic("rapidfire") is None
    assert shell.find_cell_magic("rapidfire") is None


# ------------------------------------------------------------------------------------ a real kernel


@dataclass
class Answer:
    """What a cell gave."""

    status: str = ""
    ename: str = ""
    out: str = ""
    err: str = ""
    shown: str = ""
    traceback: list[str] = field(default_factory=list)


class Kernel:
    """One IPython kernel process, asked as a notebook asks it."""

    def __init__(self, folder):
        (folder / "shim").mkdir()
        shutil.copy(ROOT / "rapidfire_jupyter" / "_shim.py", folder / "shim" / "rapidfire.py")
        paths = (folder / "shim", ROOT, ROOT / "tests")
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "IPYTHONDIR": str(folder / "ipython"),
            "HF_HUB_OFFLINE": "1",
        }
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=str(folder), env=env)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def run(self, code):
        answer = Answer()

        def take(message):
            content = message["content"]
            if message["msg_type"] == "stream":
                name = "out" if content["name"] == "stdout" else "err"
                setattr(answer, name, getattr(answer, name) + content["text"])
            elif message["msg_type"] in ("execute_result", "display_data"):
                answer.shown = content["data"].get("text/plain", "")
            elif message["msg_type"] == "error":
                answer.traceback = content["traceback"]

        reply = self.client.execute_interactive(
            textwrap.dedent(code), output_hook=take, timeout=60
        )["content"]
        answer.status, answer.ename = reply["status"], reply.get("ename", "")
        return answer

    def good(self, code):
        answer = self.run(code)
        assert answer.status == "ok", answer
        return answer

    def value(self, expression):
        return json.loads(self.good(f"import json; print(json.dumps({expression}))").out)

    def op(self, line):
        """Ask for an op, wait until it has acted, and give its outcome and new run."""
        self.good(f"h = %rapidfire {line}\nh = h if isinstance(h, list) else [h]")
        return self.value("[[x.wait(60).status, x.run_id, x.op.by] for x in h]")

    def statuses(self, exp="exp"):
        return self.value(f"{{run.id: run.status for run in {exp}.runs}}")

    def complete(self, code, cursor=None):
        reply = self.client.complete(code, cursor, reply=True, timeout=30)["content"]
        types = reply["metadata"]["_jupyter_types_experimental"]
        return reply["matches"], [one["type"] for one in types]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """A kernel in which the extension was loaded, by its short name, before anything else."""
    started = Kernel(tmp_path_factory.mktemp("kernel"))
    started.first = json.loads(
        started.good(
            f"""
            import json, sys, time
            begin = time.process_time()
            get_ipython().run_line_magic("load_ext", "rapidfire")
            spent = time.process_time() - begin
            print(json.dumps([spent, [m for m in {HEAVY} if m in sys.modules]]))
            """
        ).out
    )
    yield started
    started.close()


BODY = """\
%%rapidfire run
experiment: main
model_name: tiny
create_model_fn: make_model
train_dataset: rows
peft_config:
  r: {grid: [2, 4]}
  target_modules: [q_proj, v_proj]
training_args:
  learning_rate: 1e-3
  per_device_train_batch_size: 4
  num_train_epochs: 2
  logging_steps: 1
num_chunks: 2
"""


@pytest.fixture(scope="module")
def main(kernel):
    """The kernel with an experiment `exp` of two finished runs, made by a YAML cell."""
    kernel.good(
        """
        import tiny, torch
        torch.set_num_threads(1)
        rows, make_model = tiny.sft_rows(24), tiny.create_model
        """
    )
    kernel.made = kernel.good(BODY)
    kernel.waited = kernel.good("%rapidfire wait")
    return kernel


def test_load_is_quick_and_pulls_in_nothing_heavy(kernel):
    seconds, heavy = kernel.first

    assert heavy == []
    assert seconds < 0.15


def test_both_names_load_and_loading_again_is_harmless(kernel):
    assert "already loaded" in kernel.good("%load_ext rapidfire").out
    assert kernel.good("%load_ext rapidfire_jupyter").out == ""
    assert kernel.value("len(get_ipython().Completer.custom_matchers)") == 1
    assert "%rapidfire VERB" in kernel.good("%rapidfire").shown


def test_yaml_cell_trains_and_binds_the_experiment(main):
    assert "2 runs: 2 peft_config.r" in main.made.out
    assert "<Experiment" not in main.made.shown  # a table under the panel would not move
    assert main.good("exp").shown.startswith("<Experiment 'main'")
    configs = main.value("[dict(run.config) for run in exp.runs]")
    assert [config["peft_config.r"] for config in configs] == [2, 4]
    assert [config["training_args.learning_rate"] for config in configs] == [1e-3, 1e-3]
    assert main.value("[run.facts.total_steps for run in exp.runs]") == [12, 12]


def test_same_yaml_cell_again_attaches(main):
    before = main.value("len(exp.events)")

    main.good(BODY)

    assert main.value("len(exp.events)") == before


def test_wait_status_runs_and_results_show_where_training_stands(main):
    line, price = main.waited.shown.splitlines()
    assert line == "main: idle; 2 runs (2 completed)"
    assert price.startswith("  cost: 2 runs x 12 steps x ") and price.endswith(" so far")
    assert main.good("%rapidfire status").shown == main.waited.shown
    assert "completed" in main.good("%rapidfire runs").shown
    assert main.value("len(_)") == 2
    main.good("table = %rapidfire results loss")
    assert main.value("list(table.columns)") == ["run", "name", "step", "chunk", "loss"]
    assert main.value("[len(table), int(table.loss.isna().sum())]") == [24, 0]
    assert "learning_rate" in main.good("%rapidfire results").shown


def test_ops_act_and_say_that_a_magic_asked(main):
    assert main.op("pause") == [["applied", None, "magic"]]
    assert main.op("resume 2 num_train_epochs=200") == [["applied", 2, "magic"]]
    assert main.op("boost 2 3") == [["applied", 2, "magic"]]
    assert main.op("clone 2 learning_rate=5e-4 --warm") == [["applied", 3, "magic"]]
    assert main.op("clone 2 learning_rate=5e-4 --warm") == [["already", 3, "magic"]]
    main.good("rank = 8")
    assert main.op("clone 1 r={rank} --again --name 'rank {rank}'") == [["applied", 4, "magic"]]
    assert main.statuses() == {"1": "completed", "2": "paused", "3": "paused", "4": "paused"}
    facts = "[exp.run(3).config['training_args.learning_rate'], exp.run(3).facts.warm, "
    assert main.value(facts + "exp.run(2).facts.weight]") == [5e-4, True, 3.0]
    assert main.value("[exp.run(4).name, exp.run(4).config['peft_config.r']]") == ["rank 8", 8]

    assert main.op("stop 2 3") == [["applied", 2, "magic"], ["applied", 3, "magic"]]
    assert main.op("delete 4") == [["applied", 4, "magic"]]
    assert main.statuses() == {"1": "completed", "2": "stopped", "3": "stopped", "4": "deleted"}
    assert main.op("undelete 4") == [["applied", 4, "magic"]]
    assert main.statuses()["4"] == "paused"  # as it was before
    refused = main.run("%rapidfire wait 0.05")
    assert refused.err.strip() == "UsageError: experiment 'main' is still training after 0.05 s"

    assert main.op("resume-all") == [["applied", None, "magic"]]
    waited = main.good("%rapidfire wait")
    assert waited.shown.splitlines()[0] == "main: idle; 4 runs (2 completed, 2 stopped)"


def test_undo_export_and_panel(main):
    assert main.op("delete 4") == [["applied", 4, "magic"]]
    assert main.op("undo") == [["applied", 4, "magic"]]
    assert main.statuses()["4"] == "completed"

    assert main.good("%rapidfire export 'my log.csv'").shown == "my log.csv"
    assert main.value("open('my log.csv').read().startswith('run,name,step,chunk')") is True
    refused = main.run("%rapidfire export log.xls")
    assert refused.err.startswith("UsageError: a file ends in .csv, .parquet, .html, .htm, got")
    missing = main.run("%rapidfire export")
    assert missing.err.startswith("UsageError: export needs FILE; usage: %rapidfire export FILE ")

    main.good("shown = %rapidfire panel main")
    assert main.value("shown is exp.panel()") is True
    unknown = main.run("%rapidfire panel mein")
    assert "there is no experiment 'mein'; experiments: main; did you mean 'main'?" in unknown.err


def test_op_is_answered_at_once_while_training(main):
    main.op("resume 2 num_train_epochs=300")

    answer = main.good("%rapidfire stop 2")

    assert answer.shown.startswith("<stop run 2 ")
    main.good("%rapidfire wait")
    assert main.statuses()["2"] == "stopped"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (
            "%rapidfire stpo 2",
            "unknown verb 'stpo', did you mean 'stop'? usage: %rapidfire stop ID",
        ),
        ("%rapidfire stop 77", "there is no run 77; runs: 1, 2"),
        ("%rapidfire stop one", "a run id is a whole number, got 'one'; usage: %rapidfire stop"),
        ("%rapidfire boost 1 -3", "weight must be a number over 0"),
        ("%rapidfire boost 1 much", "WEIGHT is a number, got 'much'"),
        ("%rapidfire clone 1 lerning_rate=3", "did you mean 'learning_rate'"),
        ("%rapidfire clone 1 r=0", "r must be >= 1, got 0"),
        ("%rapidfire results los", "no run has logged 'los'"),
        ("%rapidfire status --exp man", "there is no experiment 'man'; experiments: main"),
        (
            BODY.replace("make_model", "mak_model"),
            "has no variable 'mak_model'; did you mean 'make",
        ),
        (BODY.replace("learning_rate", "lerning_rate"), "line 9 of the cell: RFSFTConfig has no"),
        (BODY.replace("[2, 4]", "[2]"), "has 2 configurations, not 1"),
        (
            BODY.replace("main", "new").replace("1e-3", "{range: [1e-5, 1e-3]}"),
            "num_runs: N draws that many",
        ),
    ],
)
def test_errors_are_one_line_without_traceback(main, code, error):
    answer = main.run(code)

    assert answer.ename == "UsageError"
    assert answer.traceback == []
    assert error in answer.err
    assert answer.err.strip().count("\n") == 0


def test_completion_offers_what_may_follow(main):
    assert main.complete("%rapidfire st") == (["status", "stop"], ["verb", "verb"])
    assert main.complete("%%rapidfire r") == (["run"], ["verb"])
    ids, types = main.complete("x = 1\n%rapidfire stop 1 ")
    assert ids == ["2", "3", "4"]
    assert types[0].startswith("stopped · r=4")
    names, _ = main.complete("%rapidfire clone 1 ")
    assert names[:4] == ["model_name=", "r=", "target_modules=", "learning_rate="]
    assert main.complete("%rapidfire clone 1 lora_al")[0] == ["lora_alpha="]
    assert main.complete("%rapidfire clone 1 --")[0] == ["--warm", "--again", "--name", "--exp"]
    assert main.complete("%rapidfire results lo")[0] == ["loss"]
    assert main.complete("%rapidfire status --exp ")[0] == ["main"]
    assert main.complete("%rapidfire resume 1 num")[0] == ["num_train_epochs="]


def test_completion_replaces_only_the_word_before_the_cursor(main):
    reply = main.client.complete("%rapidfire clo 1", 14, reply=True, timeout=30)["content"]

    assert reply["matches"] == ["clone"]
    assert (reply["cursor_start"], reply["cursor_end"]) == (11, 14)


def test_reload_and_unload_leave_training_alone_and_several_experiments_need_a_name(main):
    short = BODY.replace("main", "short").replace("epochs: 2", "epochs: 6") + "as: short\n"
    main.good(short)
    main.good("%load_ext rapidfire_jupyter")
    main.good("%reload_ext rapidfire")
    main.good("%reload_ext rapidfire_jupyter")
    assert "training goes on: short" in main.good("%unload_ext rapidfire").out
    assert "not found" in main.run("%rapidfire status").err
    main.good("%load_ext rapidfire")

    refused = main.run("%rapidfire runs")

    assert "several experiments could be meant: main, short; add --exp NAME" in refused.err
    waited = main.good("%rapidfire wait --exp short")
    assert waited.shown.splitlines()[0] == "short: idle; 2 runs (2 completed)"
    assert main.value("[run.facts.step for run in short.runs]") == [36, 36]
    assert main.value("[e.kind for e in short.events if e.kind == 'op']") == []
    assert main.good("%rapidfire status").shown.count(": idle; ") == 2
    main.good("short.end()")
    assert main.good("%rapidfire status").shown.startswith("main: ")
    assert main.good("%rapidfire status --exp short").shown.startswith("short: ended; 2 runs")


def test_range_is_drawn_from_and_seeds_may_be_a_grid(main):
    body = BODY.replace("main", "drawn").replace("num_train_epochs: 2", "max_steps: 1")
    body = body.replace("1e-3", "{range: [1e-5, 1e-3], log: true}")
    main.good(body + "as: drawn\nnum_runs: 2\nseed: {grid: [1, 2]}\n")
    main.good("%rapidfire wait --exp drawn")

    configs = main.value("[dict(run.config) for run in drawn.runs]")

    assert len(configs) == 2
    assert all(1e-5 <= c["training_args.learning_rate"] <= 1e-3 for c in configs)
    assert {config["seed"] for config in configs} <= {1, 2}
    main.good("drawn.end()")


def test_doctor_reports_versions_and_failures(main):
    main.good("def broken(config):\n    raise ValueError('no such model')")
    main.good(BODY.replace("main", "bad").replace("make_model", "broken") + "as: bad\n")
    main.good("%rapidfire wait --exp bad")

    report = main.good("%rapidfire doctor").shown

    assert "ok       torch" in report
    assert "shim     ok: %load_ext rapidfire works" in report
    assert "bad: idle; 2 runs (2 failed)" in report
    assert "run 1 failed: ValueError: no such model" in report
    main.good("bad.end()")


def test_the_doctor_says_what_tells_how_busy_a_gpu_is():
    assert doctor.use_lines(cuda=True, library=False) == [
        "use      not measured: how busy the GPU is needs pip install nvidia-ml-py"
    ]
    assert doctor.use_lines(cuda=True, library=True) == doctor.use_lines(False, False) == []
