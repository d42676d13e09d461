"""Switches of policies: which are at work, what ops do to them, and what is refused."""

import pytest

from rapidfire_jupyter import CloneBest, Halving, Outliers, Phase, Threshold, switches
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.events import Event
from rapidfire_jupyter.ops import Op, verdict
from rapidfire_jupyter.oversight import overseeing
from rapidfire_jupyter.policies import Phases
from rapidfire_jupyter.state import State, apply
from rapidfire_jupyter.ui.entries import entry
from rapidfire_jupyter.ui.lines import magic_line
from rapidfire_jupyter.undo import opposite
from rapidfire_jupyter.verbs import parse

GIVEN = overseeing([Halving(eta=2), Outliers(name="far off")])


def op(name, mode, settings=None, by="cell"):
    args = {"name": name, "mode": mode, "settings": settings}
    return {"kind": "policy", "args": args, "by": by, "outcome": "applied", "reason": ""}


def log(*happened):
    """Events of (kind, data), in order."""
    return [Event(n, float(n), kind, None, data) for n, (kind, data) in enumerate(happened)]


def state(*happened):
    made = State()
    for event in log(*happened):
        made = apply(made, event)
    return made


def modes(overseen, known):
    return {one.key: one.mode for one in switches.all_of(overseen, known) if one.mode != "off"}


def test_policies_of_run_fit_are_on_and_all_others_off_until_they_are_switched():
    fresh = state(("overseen", switches.facts(GIVEN)))
    switched = apply(fresh, log(("op", op("threshold", "dry-run", {"limit": 3.0})))[0])
    off = apply(switched, log(("op", op("far_off", "off")))[0])

    assert modes(GIVEN, fresh) == {"halving": "on", "far_off": "on"}
    assert modes(GIVEN, off) == {"halving": "on", "threshold": "dry-run"}
    assert switches.at_work(GIVEN, off, "on") == (Halving(eta=2),)
    assert switches.at_work(GIVEN, off, "dry-run") == (Threshold(limit=3.0),)
    assert {one.key for one in switches.all_of(GIVEN, off)} > {"budget", "clone_best", "bandit"}


def test_a_dry_run_is_the_mode_of_what_run_fit_was_given_only():
    overseen = overseeing("halving", dry_run=True)
    known = state(("overseen", switches.facts(overseen)), ("op", op("outliers", "on")))

    assert modes(overseen, known) == {"halving": "dry-run", "outliers": "on"}


def test_settings_stay_until_others_are_given_and_undo_brings_the_old_ones_back():
    happened = [
        ("overseen", switches.facts(GIVEN)),
        ("op", op("halving", "on", {"eta": 3.0})),
        ("op", op("halving", "off")),
    ]
    known = state(*happened)
    back = opposite(log(*happened))

    assert known.policy("halving") == {"mode": "off", "settings": {"eta": 3.0}}
    assert back == Op("policy", None, {"name": "halving", "mode": "on", "settings": {"eta": 3.0}})
    first = opposite(log(*happened[:2]))
    assert first.args == {"name": "halving", "mode": "on", "settings": {}}
    assert next(o.policy for o in switches.all_of(GIVEN, known)) == Halving(eta=3.0)


def test_what_is_so_already_changes_nothing():
    known = state(
        ("overseen", switches.facts(GIVEN)), ("op", op("threshold", "on", {"limit": 3.0}))
    )

    def judged(name, mode, settings=None):
        args = {"name": name, "mode": mode, "settings": settings}
        return verdict(known, Op("policy", None, args), 0.0).outcome

    assert judged("halving", "on") == judged("budget", "off") == "already"
    assert judged("threshold", "on") == judged("threshold", "on", {"limit": 3.0}) == "already"
    assert judged("threshold", "on", {"limit": 2.0}) == judged("halving", "dry-run") == "applied"


def test_other_policies_of_a_later_run_fit_end_all_switches():
    other = switches.facts(overseeing("outliers"))
    known = state(("overseen", switches.facts(GIVEN)), ("op", op("halving", "off")))

    assert apply(known, log(("overseen", other))[0]).switched == {}
    assert known.switched


def test_a_policy_that_needs_a_setting_says_which():
    one = next(s for s in switches.all_of(GIVEN, State()) if s.key == "budget")

    assert one.policy is None and one.mode == "off"
    assert one.missing == "a budget needs seconds= or tokens=, got neither; give one"


@pytest.mark.parametrize(
    ("name", "mode", "settings", "said"),
    [
        ("halvin", "on", {}, "there is no policy 'halvin'; did you mean 'halving'?"),
        ("halving", "yes", {}, "a policy is 'on', 'dry-run' or 'off', got 'yes'"),
        ("halving", "on", {"eat": 2}, "Halving has no setting 'eat'; did you mean"),
        ("halving", "on", {"eta": 1}, "eta must be > 1, got 1"),
        ("budget", "on", {}, "a budget needs seconds= or tokens="),
        ("halving", "on", {"name": "x"}, "a policy keeps its name"),
        ("clone best", "on", {"changes": {"formatting_func": print}}, "written down, not code"),
    ],
)
def test_a_switch_that_cannot_be_is_refused(name, mode, settings, said):
    with pytest.raises(ConfigError) as caught:
        switches.check(GIVEN, name, mode, settings)

    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_phases_can_be_switched_but_have_no_settings():
    phases = Phases((Phase("a", until=0.5), Phase("b", clone=CloneBest(top=1))))
    overseen = overseeing(phases=list(phases.phases))

    assert switches.check(overseen, "phases", "off", {}) == "phases"
    with pytest.raises(ConfigError, match="phases have no settings to change"):
        switches.check(overseen, "phases", "on", {"until": 1})


def test_each_setting_has_its_kind_and_documentation():
    found = {one.name: one for one in switches.settings_of(CloneBest, None)}
    kinds = {name: one.kind for name, one in found.items()}

    assert found["top"].about == "How many runs are cloned."
    assert "the way drawn by the seed" in found["both"].about and "  " not in found["both"].about
    assert (kinds["top"], kinds["at"], kinds["spread"], kinds["both"], kinds["changes"]) == (
        "int",
        "list",
        "float",
        "bool",
        "fixed",
    )
    budget = {one.name: one.kind for one in switches.settings_of(type(_budget()), None)}
    assert (budget["seconds"], budget["metric"]) == ("float", "text")
    assert switches.about(Halving) == "Guarded successive halving"


def _budget():
    from rapidfire_jupyter import Budget

    return Budget(seconds=1)


def test_a_switch_is_told_as_an_event_and_as_the_line_of_magic_that_does_it():
    args = {"name": "threshold", "mode": "on", "settings": {"limit": 2.5}}
    line = magic_line("policy", None, args)
    event = log(("op", op("threshold", "on", {"limit": 2.5}, by="panel")))[0]

    assert line == "%rapidfire policy threshold on limit=2.5"
    command = parse(line.removeprefix("%rapidfire "))
    assert (command.words, dict(command.pairs)) == (("threshold", "on"), {"limit": 2.5})
    assert entry(event, 0.0)["text"] == "policy threshold is on with limit=2.5 (panel)"
    told = entry(log(("overseen", switches.facts(GIVEN)))[0], 0.0)
    assert told["text"] == "policies: Halving(eta=2); Outliers()"
