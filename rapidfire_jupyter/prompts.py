"""A person lets runs answer: what is asked is checked in the cell, the engine has it answered."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rapidfire_jupyter.errors import OpError
from rapidfire_jupyter.texts import is_whole

MOST_PROMPTS, MOST_TOKENS = 256, 4096
_MESSAGE = '{"role": "user", "content": "..."}'

if TYPE_CHECKING:
    from concurrent.futures import Future

    import pandas as pd

    from rapidfire_jupyter.experiment import Experiment


def sample(exp: "Experiment", run_ids: Any, prompts: Any, max_new_tokens: int) -> "pd.DataFrame":
    """See `Experiment.sample`."""
    import pandas as pd

    from rapidfire_jupyter import isolation

    runs, given = _several(run_ids), _prompts(prompts)
    waiting = ask(exp, runs, given, max_new_tokens)
    with isolation.waiting():
        told = waiting.result()
    return pd.DataFrame({"prompt": given, **{f"run {run}": told[run] for run in runs}})


def ask(
    exp: "Experiment", runs: list[Any], prompts: list[Any], max_new_tokens: int
) -> "Future[dict[int, tuple[str, ...]]]":
    """Ask runs; their answers come later. Any: of a person, checked here.

    Raises:
        OpError: They are no runs or no prompts, or the experiment is not training here.
    """
    from rapidfire_jupyter.engine import engine
    from rapidfire_jupyter.training.messages import Ask

    for run in runs:
        exp.run(run)
    if not runs:
        raise OpError("no run is asked; give the number of one or more")
    if not 0 < len(prompts) <= MOST_PROMPTS:
        raise OpError(f"1 to {MOST_PROMPTS} prompts are answered at a time, got {len(prompts)}")
    for prompt in prompts:
        _check(prompt)
    if type(max_new_tokens) is not int or not 0 < max_new_tokens <= MOST_TOKENS:
        raise OpError(f"max_new_tokens is from 1 to {MOST_TOKENS}, got {max_new_tokens!r}")
    if exp._fit is None:
        raise OpError(
            "the experiment is not training here: run its run_fit cell first, or use "
            "run.load_model()"
        )
    formed = tuple(prompt if isinstance(prompt, str) else tuple(prompt) for prompt in prompts)
    return engine().ask(exp._fit, runs, Ask(formed, max_new_tokens))


def _several(given: Any) -> list[Any]:  # Any: what a person gave
    """A list of what was given, by itself or as several."""
    one = isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable)
    return [given] if one else list(given)


def _prompts(given: Any) -> list[Any]:  # Any: what a person gave
    """A list of prompts, also of a single one: a text, or a conversation."""
    prompts = _several(given)
    is_conversation = prompts and given is not prompts[0] and isinstance(prompts[0], Mapping)
    return [prompts] if is_conversation else prompts


def _check(prompt: Any) -> None:
    """Refuse what is no prompt. Any: what a person gave.

    Raises:
        OpError: It is none.
    """
    if isinstance(prompt, list | tuple) and prompt:
        for message in prompt:
            _check_message(message)
    elif not isinstance(prompt, str) or not prompt.strip():
        raise OpError(
            f"a prompt is a text or a list of messages, got {prompt!r:.60}; write "
            f'"how do I cancel?" or [{_MESSAGE}]'
        )
    if not is_whole(prompt):
        raise OpError(
            f"a prompt has whole characters, got half of a surrogate pair in {prompt!r:.60}; write "
            "the whole character, or leave it out"
        )


def _check_message(message: Any) -> None:  # Any: what a person gave
    if not isinstance(message, Mapping):
        raise OpError(f"a message is a dict, got {message!r:.60}; write {_MESSAGE}")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role.strip():
        raise OpError(f"a message has a role, got {message!r:.80}; write {_MESSAGE}")
    if content is None and message.get("tool_calls"):
        return
    parts = isinstance(content, list) and content and all(isinstance(p, Mapping) for p in content)
    if not isinstance(content, str) and not parts:
        raise OpError(
            f"the content of a message is a text, or a list of parts, got {message!r:.80}; write "
            f"{_MESSAGE}"
        )
