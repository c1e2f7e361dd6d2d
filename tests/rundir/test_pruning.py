"""What is deleted, and what never is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_spot.errors import StoreUnavailable
from airflow_spot.rundir import checkpoints, codec
from airflow_spot.rundir.layout import checkpoint_id, manifest_key
from airflow_spot.rundir.values import Attempt, AttemptState, Owner, Record

OWNER = Owner(deployment="d", dag_id="d", run_id="r", task_id="t")


def attempt(number, state=AttemptState.LIVE, pin=None):
    return Attempt(number=number, generation=1, tier="spot", market="spot", state=state, pin=pin)


def record(*attempts, last_live=1, keep=2, **fields):
    fields = {"next_attempt": 9, "spec": {"keep_checkpoints": keep}, **fields}
    return Record(run_key="k", owner=OWNER, attempts=attempts, last_live=last_live, **fields)


@pytest.fixture
def commit(memory, tmp_path):
    """Commit one changed file beside one that never changes."""
    (tmp_path / "same").write_text("vocabulary")

    def make(step, number=1, ancestors=(), reuse=()):
        (tmp_path / "model").write_text(f"weights {step} {number}")
        return checkpoints.commit(
            memory,
            tmp_path,
            step=step,
            attempt=number,
            job="j",
            ancestors=ancestors,
            reuse=reuse,
            may_commit=lambda: True,
        )

    return make


@pytest.fixture
def five(commit):
    """A line of five; each reuses the file that never changes."""
    made = []
    for step in (10, 20, 30, 40, 50):
        before = tuple(item.checkpoint for item in reversed(made))
        made.append(commit(step, ancestors=before, reuse=made[-1].files if made else ()))
    return [item.checkpoint for item in made]


class TestStrike:
    """Which ids go into the record."""

    def test_the_last_few_of_the_line_stay(self, memory, clock, five):
        """``keep_checkpoints`` of them, the tip included."""
        assert checkpoints.prune(memory, record(attempt(1)), clock()).strike == tuple(five[:3])

    def test_the_tip_stays_whatever_the_number(self, memory, clock, five):
        """Keeping none would lose the training."""
        assert checkpoints.prune(memory, record(attempt(1), keep=0), clock()).strike == tuple(five[:4])

    def test_three_stay_by_default(self, memory, clock, five):
        """As the operator's argument says."""
        assert checkpoints.prune(memory, record(attempt(1), spec={}), clock()).strike == tuple(five[:2])

    @pytest.mark.parametrize(
        ("state", "kept"), [(AttemptState.CLOSING, True), (AttemptState.STANDBY, True), (AttemptState.ENDED, False)]
    )
    def test_pins_of_attempts_that_have_not_ended_stay(self, memory, clock, five, state, kept):
        """They may be restoring it this moment."""
        rows = attempt(1), attempt(2, state, pin=five[0])

        assert (five[0] not in checkpoints.prune(memory, record(*rows), clock()).strike) is kept

    def test_what_agents_report_stays(self, memory, clock, five):
        """An agent may have restored something further back."""
        assert five[0] not in checkpoints.prune(memory, record(attempt(1)), clock(), also=[five[0]]).strike

    def test_what_is_on_no_line_goes(self, memory, clock, commit, five):
        """A commit after the fence."""
        late = commit(60).checkpoint
        rows = attempt(1, AttemptState.ENDED), attempt(2, pin=five[4])

        assert late in checkpoints.prune(memory, record(*rows, last_live=2), clock()).strike

    def test_the_old_line_stays_until_a_fresh_start_is_live(self, memory, clock, five):
        """A Clear that is cleared again loses nothing."""
        fresh = record(attempt(1, AttemptState.ENDED), fresh=True)

        assert checkpoints.prune(memory, fresh, clock()).strike == tuple(five[:3])

    def test_struck_ones_are_not_struck_again(self, memory, clock, five):
        """Their hour runs from the first time."""
        struck = record(attempt(1), struck=dict.fromkeys(five[:3], clock()))

        assert checkpoints.prune(memory, struck, clock.forward(minutes=59)) == ((), ())

    def test_broken_ones_go_an_hour_after_their_attempt(self, memory, clock, five):
        """A manifest whose objects are gone can never be pinned."""
        memory.delete([f"checkpoints/{five[4]}/data/model"])
        ended = record(attempt(1, AttemptState.ENDED))

        assert five[4] not in checkpoints.prune(memory, ended, clock()).strike
        assert five[4] not in checkpoints.prune(memory, record(attempt(1)), clock.forward(hours=2)).strike
        assert five[4] in checkpoints.prune(memory, ended, clock()).strike


class TestDelete:
    """Which objects go, and when."""

    @staticmethod
    def struck(clock, ids):
        return record(attempt(1), struck=dict.fromkeys(ids, clock()))

    def test_an_hour_later(self, memory, clock, five):
        """Not before."""
        rec = self.struck(clock, five[:3])

        assert checkpoints.prune(memory, rec, clock.forward(minutes=59)).deletable == ()
        assert checkpoints.prune(memory, rec, clock.forward(minutes=1)).deletable == tuple(five[:3])

    def test_what_a_kept_manifest_names_stays(self, memory, clock, five, tmp_path):
        """The file that never changed lies under the first checkpoint and is named by the last."""
        gone = checkpoints.delete(memory, self.struck(clock, five[:3]), five[:3])

        assert gone == tuple(five[1:3])
        assert [item.key for item in memory.list(f"checkpoints/{five[0]}/")] == [f"checkpoints/{five[0]}/data/same"]
        assert [item.id for item in checkpoints.present(memory)] == five[3:]
        checkpoints.restore(memory, five[4], tmp_path / "target")

    def test_what_is_left_goes_with_the_last_that_names_it(self, memory, clock, commit, five):
        """An id stays struck until nothing is left of it."""
        checkpoints.delete(memory, self.struck(clock, five[:3]), five[:3])
        last = commit(60, ancestors=tuple(reversed(five)))
        rec = record(attempt(1), keep=1, struck=dict.fromkeys([five[0], *five[3:]], clock()))

        assert checkpoints.prune(memory, rec, clock.forward(hours=1)).deletable == (five[0], five[3], five[4])
        assert checkpoints.delete(memory, rec, [five[0], five[3], five[4]]) == (five[0], five[3], five[4])
        assert [item.id for item in checkpoints.present(memory)] == [last.checkpoint]
        assert len(memory.list()) == 3

    def test_manifests_are_read_again(self, memory, clock, commit, five):
        """A commit since the strike that names an object keeps it."""
        rec = self.struck(clock, [five[2]])
        third = checkpoints.manifest(memory, five[2])
        new = commit(60, ancestors=tuple(reversed(five)), reuse=third.files)
        key = f"checkpoints/{five[2]}/data/model"
        shared = replace(new, files=(*new.files[:1], replace(third.files[0], name="old")))
        assert shared.files[1].key == key
        memory.put(manifest_key(new.checkpoint), codec.dumps(shared))

        assert checkpoints.delete(memory, rec, [five[2]]) == ()
        assert memory.get(key) is not None

    def test_what_is_kept_is_not_deleted_on_demand(self, memory, clock, five):
        """Tip, pins and the last of the line are safe even from a wrong list."""
        rec = record(attempt(1), attempt(2, AttemptState.CLOSING, pin=five[0]))

        assert checkpoints.delete(memory, rec, five) == tuple(five[1:3])
        assert {five[0], *five[3:]} == {item.id for item in checkpoints.present(memory)}

    def test_a_crash_is_finished_by_the_next_call(self, memory, clock, faulty, five):
        """Data goes first and the manifest last: what is half gone is still struck."""
        rec = self.struck(clock, five[1:3])
        behind, _ = faulty(memory, at={2: StoreUnavailable("died")}, methods=("delete",))
        with pytest.raises(StoreUnavailable):
            checkpoints.delete(behind, rec, five[1:3])

        assert checkpoints.delete(memory, rec, five[1:3]) == tuple(five[1:3])
        assert [item.id for item in checkpoints.present(memory)] == [five[0], *five[3:]]

    def test_an_outage_deletes_nothing(self, memory, clock, faulty, five):
        """Manifests that cannot be read may name anything."""
        before = memory.list()
        behind, _ = faulty(memory, at={1: StoreUnavailable("away")}, methods=("get",))
        with pytest.raises(StoreUnavailable):
            checkpoints.delete(behind, self.struck(clock, five[:3]), five[:3])

        assert memory.list() == before


class TestGarbage:
    """Data without a manifest."""

    @pytest.fixture
    def loose(self, memory):
        id_ = checkpoint_id(70, 1, "dead")
        memory.put(f"checkpoints/{id_}/data/half", b"x")
        return id_

    @pytest.mark.parametrize(
        ("state", "minutes", "goes"),
        [(AttemptState.ENDED, 61, True), (AttemptState.ENDED, 60, False), (AttemptState.LIVE, 999, False)],
    )
    def test_an_hour_after_its_attempt_ended(self, memory, clock, loose, state, minutes, goes):
        """An upload of a live attempt is never touched, however long it takes."""
        now = clock.forward(minutes=minutes)

        assert checkpoints.prune(memory, record(attempt(1, state)), now).deletable == ((loose,) if goes else ())

    def test_of_an_attempt_that_left_the_record(self, memory, clock, loose):
        """It has ended; one that is yet to come has not."""
        now = clock.forward(hours=2)

        assert checkpoints.prune(memory, record(last_live=None), now).deletable == (loose,)
        assert checkpoints.prune(memory, record(last_live=None, next_attempt=1), now).deletable == ()

    def test_it_is_deleted(self, memory, clock, loose, five):
        """And nothing else."""
        before = len(memory.list())

        assert checkpoints.delete(memory, record(attempt(1)), [loose]) == (loose,)
        assert len(memory.list()) == before - 1
