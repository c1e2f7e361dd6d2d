"""Conditional writes end done, refused or unknown, whatever the client reports."""

from __future__ import annotations

import pytest

from airflow_spot.errors import ContractError, StoreUnavailable
from airflow_spot.rundir import codec
from airflow_spot.rundir.conditional import Refused, Written, create_json, swap_json
from airflow_spot.rundir.store import Conflict
from airflow_spot.rundir.values import Claim

MINE = Claim(attempt=1, job="mine", incarnation=1)
ANOTHER = Claim(attempt=1, job="another", incarnation=1)
LOST = {"conflict": Conflict("not ours, it says"), "no answer": StoreUnavailable("lost")}


def lost(kind):
    return pytest.param(LOST[kind], id=kind)


ERRORS = [lost("conflict"), lost("no answer")]


def job(store):
    return codec.loads(Claim, store.get("k").data).job


class TestCreate:
    """Where there must be nothing."""

    def test_done(self, store):
        """What was written has a write id of its own."""
        first, second = create_json(store, "a", MINE), create_json(store, "b", MINE)

        assert isinstance(first, Written)
        assert first.value.write_id != second.value.write_id
        assert first.value == codec.loads(Claim, store.get("a").data)
        assert first.etag == store.get("a").etag

    @pytest.mark.parametrize("error", ERRORS)
    def test_mine_means_done(self, store, faulty, error):
        """The write was made and its reply was lost: it counts."""
        behind, client = faulty(store, at={1: error}, after=True)
        done = create_json(behind, "k", MINE)

        assert isinstance(done, Written)
        assert done.etag == store.get("k").etag
        assert client.calls == 1

    @pytest.mark.parametrize("error", ERRORS)
    def test_absent_means_try_again(self, store, faulty, error):
        """The write was not made: it is made now, once."""
        behind, client = faulty(store, at={1: error})

        assert isinstance(create_json(behind, "k", MINE), Written)
        assert job(store) == "mine"
        assert client.calls == 2

    @pytest.mark.parametrize("error", ERRORS)
    def test_anothers_means_refused(self, store, faulty, error):
        """Another was first, whatever our client made of it."""
        create_json(store, "k", ANOTHER)
        done = create_json(faulty(store, at={1: error})[0], "k", MINE)

        assert isinstance(done, Refused)
        assert codec.loads(Claim, done.found.data).job == "another"
        assert job(store) == "another"

    def test_a_store_that_shows_nothing_is_unknown(self, store, faulty):
        """Tries are bounded."""
        behind, client = faulty(store, at={n: Conflict("409") for n in range(1, 99)})
        with pytest.raises(StoreUnavailable, match="4 times"):
            create_json(behind, "k", MINE)

        assert client.calls == 4

    def test_no_answer_to_the_question_is_unknown(self, store, faulty):
        """When reading back fails too nobody knows, and nothing else is tried."""
        behind, client = faulty(
            store, at={1: StoreUnavailable("lost"), 2: StoreUnavailable("lost")}, methods=("put", "get")
        )
        with pytest.raises(StoreUnavailable):
            create_json(behind, "k", MINE)

        assert client.log == ["put", "get"]

    def test_too_large_a_value_is_not_sent(self, store):
        """What no reader would take is refused by the writer."""
        with pytest.raises(ContractError, match="at most 4194304 are written"):
            create_json(store, "k", Claim(attempt=1, job="x" * (4 << 20), incarnation=1))

        assert store.get("k") is None

    def test_what_is_too_large_is_anothers(self, store):
        """An object beyond the bound cannot be ours."""
        store.put("k", b"x" * (5 << 20))
        done = create_json(store, "k", MINE)

        assert isinstance(done, Refused)


class TestSwap:
    """Over what was read."""

    @pytest.fixture
    def before(self, store):
        return create_json(store, "k", ANOTHER).etag

    @pytest.mark.parametrize("error", ERRORS)
    def test_mine_means_done(self, store, faulty, before, error):
        """The write was made and its reply was lost: it counts."""
        done = swap_json(faulty(store, at={1: error}, after=True)[0], "k", MINE, before)

        assert isinstance(done, Written)
        assert done.etag == store.get("k").etag
        assert job(store) == "mine"

    @pytest.mark.parametrize("error", ERRORS)
    def test_unchanged_means_try_again(self, store, faulty, before, error):
        """What was read still lies there: the write is made now."""
        behind, client = faulty(store, at={1: error})

        assert isinstance(swap_json(behind, "k", MINE, before), Written)
        assert job(store) == "mine"
        assert client.calls == 2

    def test_anothers_means_refused(self, store, before):
        """Another's write since the read stands."""
        swap_json(store, "k", ANOTHER, before)

        assert isinstance(swap_json(store, "k", MINE, before), Refused)
        assert job(store) == "another"

    @pytest.mark.parametrize("error", ERRORS)
    def test_mine_beneath_anothers_means_refused(self, store, before, error):
        """Ours was written, then another's over it, before we could look: the caller loads again."""

        class Overwritten(type(store)):
            def swap(self, key, data, etag):
                store.put(key, codec.dumps(ANOTHER))
                if store.swap(key, data, store.get(key).etag):
                    store.put(key, codec.dumps(ANOTHER))
                raise error

        done = swap_json(Overwritten(store.client, store.uri, store.prefix), "k", MINE, before)

        assert isinstance(done, Refused)
        assert job(store) == "another"

    def test_gone_means_refused(self, store, before):
        """A swap never brings back what was deleted."""
        store.delete(["k"])

        assert swap_json(store, "k", MINE, before) == Refused(None)
        assert store.get("k") is None
