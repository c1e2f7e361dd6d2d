"""What is refused while a DAG is parsed, and with which words."""

from __future__ import annotations

from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_spot import Tier
from airflow_spot.errors import ConfigurationError
from airflow_spot.operators import arguments

GOOD: dict[str, Any] = {
    "job_definition": "train",
    "tiers": [Tier.spot("spot"), Tier.on_demand("on-demand")],
    "command": ["python", "train.py"],
    "deadline": None,
    "expected_duration": None,
    "downstream_duration": timedelta(0),
    "changeover": timedelta(minutes=15),
    "poll_interval": 30,
    "on_infeasible": "promote",
    "on_clear": "resume",
    "agent": True,
    "success_object": None,
    "trust_exit_code": False,
    "keep_checkpoints": 3,
    "max_reclaims": None,
    "promote_after_reclaims": None,
    "max_infrastructure_failures": 5,
    "environment": None,
    "scheduling_priority_override": None,
    "policy": None,
}


def given(**changes: Any) -> Any:
    values = GOOD | changes
    return SimpleNamespace(**values | {"tiers": arguments.plain_tiers(values["tiers"])})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"deadline": timedelta(hours=3), "expected_duration": "2h"},
        {"deadline": "{{ params.deadline }}", "expected_duration": "{{ params.expected }}"},
        {"deadline": "2020-01-01T00:00:00+00:00", "expected_duration": 60},
        {"tiers": "{{ var.json.tiers }}", "deadline": "PT3H", "expected_duration": "PT2H"},
        {"tiers": [{"market": "spot", "job_queue": "{{ var.value.queue }}", "price": "{{ var.value.price }}"}]},
        {"agent": False, "trust_exit_code": True},
        {"agent": False, "success_object": "s3://bucket/done"},
        {"poll_interval": "{{ params.poll }}"},
    ],
    ids=lambda changes: ",".join(changes) or "plain",
)
def test_good_arguments(changes: dict[str, Any]) -> None:
    """Good arguments, templates and a past deadline pass."""
    arguments.check(given(**changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"job_definition": ""}, "name of a Batch job definition"),
        ({"environment": ["A=1"]}, "give a mapping"),
        ({"scheduling_priority_override": "high"}, "give a whole number"),
        ({"success_object": "done.txt"}, "address of an object"),
        ({"policy": "greedy"}, "a value of airflow_spot.policies"),
        ({"policy": {"name": "greedy"}}, "policy 'greedy' is unknown"),
        ({"tiers": [{"market": "spot", "job_queue": "a", "price": float("nan")}]}, "USD per hour"),
        ({"tiers": [{"market": "spot", "job_queue": "a", "speed": float("inf")}]}, "above 0"),
        ({"command": "python train.py"}, "give a list of words"),
        ({"tiers": []}, "give at least one"),
        ({"tiers": [Tier.spot("a"), Tier.on_demand("a")]}, "share the job queue 'a'"),
        ({"tiers": [Tier.spot("a"), Tier.spot("b")]}, "are named 'spot'"),
        ({"tiers": [Tier.spot("a"), Tier.on_demand("b", max_wait="20m")]}, "max_wait on the last tier"),
        ({"tiers": [{"market": "cheap", "job_queue": "a"}]}, "give one of"),
        ({"tiers": [{"market": "spot", "queue": "a"}]}, "a tier holds ['queue']"),
        ({"tiers": [{"market": "spot", "job_queue": "a", "price": "much"}]}, "give a number"),
        ({"deadline": timedelta(hours=1)}, "without expected_duration"),
        ({"deadline": "PT1H", "expected_duration": 60, "tiers": [Tier.spot("a")]}, "with spot tiers only"),
        ({"deadline": timedelta(hours=-1), "expected_duration": 60}, "not negative"),
        ({"deadline": datetime(2026, 1, 1), "expected_duration": 60}, "no time zone"),  # noqa: DTZ001
        ({"deadline": "2026-01-01T00:00:00", "expected_duration": 60}, "no time zone"),
        ({"deadline": "soon", "expected_duration": 60}, "is not a duration"),
        ({"expected_duration": 0}, "more than 0 seconds"),
        ({"expected_duration": timedelta(seconds=-5)}, "not negative"),
        ({"changeover": "-5"}, "not negative"),
        ({"poll_interval": 0}, "more than 0 seconds"),
        ({"on_infeasible": "explode"}, "give 'promote' or 'fail'"),
        ({"on_clear": "again"}, "give 'resume' or 'fresh'"),
        ({"agent": False}, "give success_object="),
        ({"max_reclaims": -1}, "whole number of at least 0"),
        ({"keep_checkpoints": 0}, "whole number of at least 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_arguments(changes: dict[str, Any], said: str) -> None:
    """Each wrong argument is refused with what was given and what to give instead."""
    with pytest.raises(ConfigurationError) as caught:
        arguments.check(given(**changes))
    assert said in str(caught.value)


@pytest.mark.parametrize("tiers", [3, None, Tier.spot("a"), [3], "nothing"])
def test_tiers_that_are_none(tiers: Any) -> None:
    """Whatever is no list of tiers is refused by name."""
    with pytest.raises(ConfigurationError, match="tiers"):
        arguments.read_tiers(arguments.plain_tiers(tiers))


@pytest.mark.parametrize("name", sorted(arguments.FOREIGN))
def test_foreign_arguments(name: str) -> None:
    """An argument of BatchOperator that we do not take is refused with what to write instead."""
    with pytest.raises(ConfigurationError) as caught:
        arguments.refuse_unknown([name], {"tiers"})
    assert str(caught.value).endswith(arguments.FOREIGN[name])


def test_misspelt_argument() -> None:
    """A misspelt argument is refused with the nearest name."""
    with pytest.raises(ConfigurationError, match="did you mean 'poll_interval'"):
        arguments.refuse_unknown(["pol_interval"], {"poll_interval", "tiers"})


def test_tiers_survive_a_template_field() -> None:
    """Tiers come back from the plain dicts, and from the JSON, that a template field holds."""
    tiers = (Tier.spot("a", price=0.5, max_wait="20m"), Tier.on_demand("b", name="od", speed=2.0))
    plain = arguments.plain_tiers(tiers)
    assert arguments.read_tiers(plain) == tiers
    text = '[{"market": "spot", "job_queue": "a", "price": "0.5", "max_wait": "20m"}, '
    text += '{"market": "on_demand", "job_queue": "b", "name": "od", "speed": 2}]'
    assert arguments.read_tiers(text) == tiers


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, None), ("", None), (timedelta(hours=3), "PT10800S"), ("6h30m", "PT23400S"),
     ("2026-01-01T01:00:00+01:00", "2026-01-01T00:00:00+00:00")],
)  # fmt: skip
def test_deadline_as_the_record_keeps_it(value: Any, text: str | None) -> None:
    """A deadline is kept as an ISO instant or an ISO duration."""
    assert arguments.deadline_text(value) == text
