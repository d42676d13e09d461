"""Texts that users hand over: what is whole, what can be a path, and that the rest is refused."""

import uuid
from pathlib import Path

import pytest
from IPython.core.error import UsageError

from rapidfire_jupyter import Experiment
from rapidfire_jupyter.errors import ConfigError, ExperimentError, OpError
from rapidfire_jupyter.magics import run_magic
from rapidfire_jupyter.metric import lower_is_better
from rapidfire_jupyter.texts import is_path, is_text, is_whole

HALF = "\ud800"  # of a surrogate pair


def test_a_text_is_whole_if_no_part_of_it_is_half_a_character():
    assert is_text("how \U0001f642") and is_text("")
    assert not is_text(HALF) and not is_text(3) and not is_text(None)
    assert is_whole([{"role": "user", "content": "how"}, {("a",): object()}])
    assert not is_whole([{"role": "user", "content": [{"text": HALF}]}])


def test_a_path_is_what_a_file_system_takes():
    assert is_path("a/b.html") and is_path(Path("ü")) and is_path("caf\udce9")  # no UTF-8 name
    assert not any(map(is_path, (HALF, "a\0b", 3, None, b"a")))


def test_paths_that_are_none_are_refused(tmp_path):
    exp = Experiment(f"paths-{uuid.uuid4().hex}", tmp_path)  # a magic looks for it by its name

    for path in (HALF, "a\0.html", 3):
        with pytest.raises(ExperimentError, match="root is a folder's path, got"):
            Experiment("other", path)
        with pytest.raises(OpError, match="a path is a text or a Path, got"):
            exp.report(path)
    with pytest.raises(OpError, match="a path is a text or a Path, got"):
        run_magic(f"export {HALF}.html --exp {exp.name}", None, {"exp": exp})
    with pytest.raises(UsageError, match="half of a surrogate pair"):
        run_magic("run", f"experiment: {HALF}", {})


def test_arguments_of_another_kind_are_refused_by_what_was_given(tmp_path):
    exp = Experiment("exp", tmp_path)

    for ask, text in (
        (lambda: exp.run([1]), r"there is no run \[1\]"),
        (lambda: exp.stop(1, by=3), "by says who asks as a text, got 3"),
        (lambda: exp.wait("soon"), "timeout is a number of seconds, got 'soon'"),
        (lambda: exp.repeatability("first"), "there is no run 'first'"),
    ):
        with pytest.raises(OpError, match=text):
            ask()
    with pytest.raises(ConfigError, match=r"mode is 'min' or 'max', .* got 'minimize'"):
        lower_is_better("loss", "minimize")
