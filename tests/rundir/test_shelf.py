"""The line of a training run: which checkpoints count, and what the next attempt continues from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_spot.rundir.layout import checkpoint_id, parse_checkpoint_id
from airflow_spot.rundir.shelf import Found, before, data_key_allowed, line, tip
from airflow_spot.rundir.values import Attempt, AttemptState, Manifest, Owner, Record

OWNER = Owner(deployment="d", dag_id="d", run_id="r", task_id="t")


def cid(step: int, attempt: int = 1) -> str:
    return checkpoint_id(step, attempt, "aaaa")


def found(step: int, attempt: int = 1, *ancestors: str) -> Found:
    id_ = cid(step, attempt)
    value = Manifest(checkpoint=id_, step=step, attempt=attempt, files=(), ancestors=ancestors)
    name = parse_checkpoint_id(id_)
    assert name is not None
    return Found(id_, name, value)


def record(*attempts: tuple[int, str | None], last_live: int | None = None, **fields: Any) -> Record:
    rows = tuple(
        Attempt(number=number, generation=1, tier="spot", market="spot", state=AttemptState.ENDED, pin=pin)
        for number, pin in attempts
    )
    return Record(run_key="k", owner=OWNER, spec={}, attempts=rows, last_live=last_live, **fields)


def ids(items: list[Found]) -> list[str]:
    return [item.id for item in items]


A10 = found(10)
A20 = found(20, 1, A10.id)
A30 = found(30, 1, A20.id, A10.id)
B40 = found(40, 2, A20.id, A10.id)


class TestLine:
    """Tip and ancestors."""

    def test_nothing_was_ever_live(self):
        """No attempt, no line: whatever lies there counts for nothing."""
        assert line([A10], record=record()) == []
        assert tip([A10], record()) is None

    def test_the_furthest_of_the_one_that_was_live_last(self):
        """By step, with its ancestors, tip last."""
        assert ids(line([A30, A10, A20], record=record((1, None), last_live=1))) == [A10.id, A20.id, A30.id]

    def test_not_the_highest_number(self):
        """Attempt 2 is on standby, or never went live: attempt 1 still is the line."""
        assert tip([A10, B40], record((1, None), (2, None), last_live=1)).id == A10.id

    def test_a_commit_after_the_fence_is_on_no_line(self):
        """Attempt 2 was pinned to 20 before attempt 1's 30 was seen."""
        found_ = [A10, A20, A30, B40]

        assert ids(line(found_, record=record((1, None), (2, A20.id), last_live=2))) == [A10.id, A20.id, B40.id]

    def test_a_commit_seen_before_the_pin_counts(self):
        """Attempt 1 has been fenced, and none has gone live since."""
        assert tip([A10, A20, A30], record((1, None), (2, None), last_live=1)).id == A30.id

    def test_without_a_commit_of_its_own_the_pin(self):
        """Attempt 2 was reclaimed before its first save."""
        assert tip([A10, A20, A30], record((1, None), (2, A20.id), last_live=2)).id == A20.id

    def test_from_the_beginning_there_is_no_tip(self):
        """Attempt 2 went live without a pin: what attempt 1 left is on no line."""
        assert line([A10], record=record((1, None), (2, None), last_live=2)) == []

    @pytest.mark.parametrize("fields", [{"bad": (A30.id,)}, {"struck": {A30.id: None}}], ids=["bad", "struck"])
    def test_bad_and_struck_ones_are_left_out(self, fields):
        """The one before is the tip."""
        assert tip([A10, A20, A30], record((1, None), last_live=1, **fields)).id == A20.id

    def test_a_bad_pin_leads_to_what_came_before(self):
        """By its manifest."""
        assert tip([A10, A20, A30], record((1, None), (2, A30.id), last_live=2, bad=(A30.id,))).id == A20.id

    def test_a_lost_pin_leads_to_what_came_before(self):
        """Without its manifest: the same attempt's earlier ones, else that attempt's own pin, and so on."""
        assert tip([A10, A20], record((1, None), (2, A30.id), last_live=2)).id == A20.id
        lost_twice = record((1, None), (2, A20.id), (3, B40.id), last_live=3)
        assert tip([A10, A20], lost_twice).id == A20.id
        assert tip([A10], lost_twice).id == A10.id
        assert tip([], lost_twice) is None

    def test_pins_that_form_a_ring_end(self):
        """A damaged record does not hang the loop."""
        ring = record((1, cid(5, 2)), (2, cid(5, 1)), last_live=1)

        assert line([], record=ring) == []

    def test_fresh_starts_over(self):
        """The next pin is the beginning; the old line is still known, so that nothing is deleted before."""
        fresh = record((1, None), last_live=1, fresh=True)

        assert tip([A10, A20], fresh) is None
        assert ids(line([A10, A20], record=fresh)) == [A10.id, A20.id]

    def test_of_equal_steps_the_descendant(self):
        """Two checkpoints of one step: the one that came of the other."""
        again = replace(found(30, 1, A30.id, A20.id, A10.id), id=checkpoint_id(30, 1, "0000"))

        assert tip([A10, A20, A30, again], record((1, None), last_live=1)).id == again.id


class TestSuspect:
    """A checkpoint after which the trainer failed before its first new step."""

    def test_the_one_before_is_tried(self):
        """Once."""
        suspect = record((1, None), (2, A30.id), last_live=2, suspect=(A30.id,))

        assert tip([A10, A20, A30], suspect).id == A20.id

    def test_while_it_is_tried_it_stays(self):
        """Attempt 3 was pinned to 20 and reclaimed before a save: 20 again, and 30 is not lost."""
        trying = record((2, A30.id), (3, A20.id), last_live=3, suspect=(A30.id,))

        assert tip([A10, A20, A30], trying).id == A20.id
        assert A30.id in ids(line([A10, A20, A30], record=trying))

    def test_when_both_fail_it_was_not_to_blame(self):
        """The furthest counts again: no work is thrown away for an error of the program."""
        both = record((2, A30.id), (3, A20.id), last_live=3, suspect=(A30.id, A20.id))

        assert tip([A10, A20, A30], both).id == A30.id

    def test_when_the_one_before_works_it_is_off_the_line(self):
        """Attempt 3 committed: its line does not hold the suspect."""
        own = found(25, 3, A20.id, A10.id)
        works = record((2, A30.id), (3, A20.id), last_live=3, suspect=(A30.id,))

        assert ids(line([A10, A20, A30, own], record=works)) == [A10.id, A20.id, own.id]

    def test_alone_it_is_all_there_is(self):
        """Nothing before it: it is tried again rather than everything."""
        assert tip([A10], record((1, None), last_live=1, suspect=(A10.id,))).id == A10.id


def test_before_leaves_out_what_is_known_to_be_bad():
    """Furthest first."""
    assert ids(before([A10, A20, A30], A30.id)) == [A20.id, A10.id]
    assert ids(before([A10, A20, A30], A30.id, record(bad=(A20.id,)))) == [A10.id]


@pytest.mark.parametrize(
    ("key", "allowed"),
    [
        (f"checkpoints/{A10.id}/data/a/b", True),
        (f"checkpoints/{A10.id}/data/a/data/b", True),
        (f"checkpoints/{A10.id}/manifest.json", False),
        (f"checkpoints/{A10.id}/data/../x", False),
        (f"checkpoints/{A10.id}/data/", False),
        (f"{A10.id}/data/a", False),
        ("checkpoints/x/data/a", False),
        ("artifacts/a0001/aaaa/data/a", False),
    ],
)
def test_a_manifest_may_name_data_of_checkpoints_only(key, allowed):
    """Nothing else of the run directory, nothing outside."""
    assert data_key_allowed(key) is allowed
