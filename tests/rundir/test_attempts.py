"""What lies under an attempt, and which of it counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_spot.rundir import attempts, codec
from airflow_spot.rundir.conditional import Refused, Written
from airflow_spot.rundir.layout import claim_key, end_key, heartbeat_key
from airflow_spot.rundir.values import Attempt, AttemptState, Claim, End, Heartbeat, Notice, Phase

CLAIM = Claim(attempt=3, job="j", incarnation=1)
BEAT = Heartbeat(attempt=3, job="j", incarnation=1, phase=Phase.TRAINING)
END = End(attempt=3, job="j", incarnation=1, exit_code=0, interrupted=False, completed=True)
ID = "000000000010-a0001-aaaa"


def test_nothing_lies_there_at_first(store):
    """An attempt that never came up."""
    assert attempts.observe(store, 3) == attempts.AttemptFiles()
    assert attempts.claims(store, 3) == []
    assert attempts.end(store, 3) is None
    assert attempts.heartbeat(store, 3) is None


def test_a_claim_is_made_once(store):
    """The second job that thinks it is attempt 3 is refused."""
    assert isinstance(attempts.claim(store, CLAIM), Written)
    assert isinstance(attempts.claim(store, replace(CLAIM, job="other")), Refused)

    assert [item.job for item in attempts.claims(store, 3)] == ["j"]


def test_one_look_shows_all(store):
    """Claims, end and heartbeat, with the store's time of the last."""
    claim = attempts.claim(store, CLAIM).value
    attempts.write_heartbeat(store, BEAT)
    end = attempts.write_end(store, END).value
    found = attempts.observe(store, 3)

    assert (claim,) == found.claims
    assert (claim, end, BEAT) == (found.claim, found.end, found.heartbeat)
    assert found.heartbeat_modified == store.head(heartbeat_key(3)).modified
    assert attempts.heartbeat(store, 3) == (BEAT, found.heartbeat_modified)
    assert attempts.observe(store, 4) == attempts.AttemptFiles()


def test_the_next_look_reads_what_changed(store, faulty):
    """One LIST, and one GET of the heartbeat."""
    attempts.claim(store, CLAIM)
    attempts.write_heartbeat(store, BEAT)
    known = attempts.observe(store, 3)
    attempts.write_heartbeat(store, replace(BEAT, sequence=2))
    behind, client = faulty(store, methods=("get", "listing"))
    found = attempts.observe(behind, 3, known)

    assert found.heartbeat.sequence == 2
    assert client.log == ["listing", "get"]
    assert attempts.observe(behind, 3, found) == found
    assert client.log == ["listing", "get", "listing"]


def test_the_highest_claims_end_counts(store):
    """A service started the container again: its first life's last word says nothing any more."""
    attempts.claim(store, CLAIM)
    attempts.write_end(store, END)
    attempts.claim(store, replace(CLAIM, incarnation=2))
    assert attempts.end(store, 3) is None

    attempts.write_end(store, replace(END, incarnation=2, exit_code=1, completed=False))
    assert attempts.end(store, 3).exit_code == 1
    assert [item.incarnation for item in attempts.claims(store, 3)] == [1, 2]


def test_incarnations_are_numbers(store):
    """Ten comes after nine."""
    for number in (9, 10):
        attempts.claim(store, replace(CLAIM, incarnation=number))

    assert [item.incarnation for item in attempts.claims(store, 3)] == [9, 10]


def test_without_a_claim_the_highest_end_counts(store):
    """A claim that was lost does not hide a last word."""
    for number in (1, 2):
        attempts.write_end(store, replace(END, incarnation=number, exit_code=number))

    assert attempts.end(store, 3).exit_code == 2


def test_a_last_word_is_said_once(store):
    """The first stands."""
    attempts.write_end(store, END)

    assert isinstance(attempts.write_end(store, replace(END, exit_code=1)), Refused)
    assert attempts.end(store, 3).exit_code == 0


@pytest.mark.parametrize(
    "forged",
    [
        (claim_key(3, 1), replace(CLAIM, attempt=4)),
        (claim_key(3, 1), replace(CLAIM, incarnation=2)),
        (end_key(3, 1), replace(END, attempt=4)),
        (end_key(3, 1), replace(END, incarnation=7)),
        (heartbeat_key(3), replace(BEAT, attempt=4)),
    ],
    ids=["claim attempt", "claim incarnation", "end attempt", "end incarnation", "heartbeat attempt"],
)
def test_a_file_in_the_wrong_place_is_absent(store, forged):
    """Whose it is is told by its key and its content alike."""
    store.put(forged[0], codec.dumps(forged[1]))

    assert attempts.observe(store, 3) == attempts.AttemptFiles()
    assert attempts.heartbeat(store, 3) is None


def test_an_end_of_another_job_is_absent(store):
    """Only the job that claimed the attempt has the last word."""
    attempts.claim(store, CLAIM)
    attempts.write_end(store, replace(END, job="other"))

    assert attempts.end(store, 3) is None


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"attempt": "3"}', b"\xff", b'{"step": NaN}', b"[" * 100_000])
def test_malformed_files_are_absent(store, data, caplog):
    """Each is said, and nothing is raised."""
    for key in (claim_key(3, 1), end_key(3, 1), heartbeat_key(3), "attempts/a0003/claim-x.json"):
        store.put(key, data)

    assert attempts.observe(store, 3) == attempts.AttemptFiles()
    assert len(caplog.messages) == 3


def test_what_an_agent_says_is_cut_to_bounds(store):
    """Ids that are none, absurd counts, endless texts and metrics do not get into the record."""
    beat = replace(
        BEAT,
        step=-5,
        total_steps=10**30,
        saves=-1,
        last_error="x" * 9999,
        pin=ID,
        restored="../run.json",
        committed="x" * 9999,
        bad=("nonsense", *[ID] * 99),
        notice=Notice(source="s" * 9999, extra={"more": 1}),
        extra={"more": 1},
    )
    attempts.write_heartbeat(store, beat)
    found = attempts.observe(store, 3).heartbeat
    expected = replace(BEAT, last_error="x" * 2000, pin=ID, bad=(ID,) * 50, notice=Notice(source="s" * 2000))

    assert expected == found
    assert attempts.heartbeat(store, 3)[0] == found


@pytest.mark.parametrize(
    ("prefix", "kept"),
    [
        ("artifacts/a0003/aaaa/", True),
        ("artifacts/a0004/aaaa/", False),
        ("artifacts/a0003/../../run", False),
        ("x", False),
    ],
)
def test_artifacts_are_those_of_the_attempt(store, prefix, kept):
    """A prefix elsewhere is dropped, and metrics beyond 4 KB with a word about it."""
    attempts.write_end(store, replace(END, artifacts=prefix, metrics={"loss": "x" * 5000}))
    found = attempts.end(store, 3)

    assert (found.artifacts == prefix) is kept
    assert found.metrics == {"omitted": "more than 4096 bytes of metrics"}


def test_an_attempt_that_left_the_record_is_kept(store):
    """As the Airflow side concluded it."""
    value = Attempt(number=3, generation=1, tier="spot", market="spot", state=AttemptState.ENDED, terminal=True)
    assert attempts.outcome(store, 3) is None
    attempts.write_outcome(store, value)

    assert attempts.outcome(store, 3) == value
