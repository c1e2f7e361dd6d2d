"""One contract for every kind of store."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest

from airflow_spot.errors import ConfigurationError, ContractError, UnsafePath
from airflow_spot.rundir.store import Conflict, Meta, open_store

ODD = ["a b", "100%41", "ü/ñ", "q?x=1#f", "~tilde", "star*", "plus+plus", "quote'\"", "[b]{c}", "comma,semi;"]


class TestObjects:
    """Reading, writing, listing, deleting."""

    def test_a_missing_object_is_none(self, store):
        """Absence is an answer, not an error."""
        assert store.get("no/such") is None
        assert store.head("no/such") is None

    def test_what_is_put_is_read(self, store):
        """Bytes, ETag and the store's own time come back."""
        etag = store.put("a/b.json", b"one")
        found = store.get("a/b.json")

        assert (b"one", etag) == (found.data, found.etag)
        assert abs(datetime.now(UTC) - found.modified) < timedelta(minutes=1)
        assert Meta("a/b.json", 3, etag, found.modified) == store.head("a/b.json")

    def test_put_writes_over(self, store):
        """The last of two plain writes stands."""
        store.put("a", b"one")
        store.put("a", b"two")

        assert store.get("a").data == b"two"

    def test_an_empty_object_is_an_object(self, store):
        """No bytes is not no object."""
        store.put("empty", b"")

        assert store.get("empty").data == b""

    @pytest.mark.parametrize("name", ODD)
    def test_odd_names_are_kept(self, store, name):
        """A name that is legal in a file system is listed and read as it was written."""
        store.put(f"data/{name}", b"x")

        assert [f"data/{name}"] == [item.key for item in store.list("data/")]
        assert store.get(f"data/{name}").data == b"x"

    def test_a_listing_is_complete_and_in_order(self, store):
        """ETag and size of a listing are those of the objects; keys are relative to the store."""
        etags = {key: store.put(key, key.encode()) for key in ("b/2", "a", "b/1", "b/1/deep", "bb/x")}

        assert [item.key for item in store.list()] == ["a", "b/1", "b/1/deep", "b/2", "bb/x"]
        assert [item.key for item in store.list("b/")] == ["b/1", "b/1/deep", "b/2"]
        assert etags == {item.key: item.etag for item in store.list()}
        assert [len(item.key) for item in store.list()] == [item.size for item in store.list()]
        assert store.list("none/") == []

    def test_delete_takes_what_is_there(self, store):
        """Deleting twice, or what never was, is no error."""
        store.put("a", b"")
        store.put("b", b"")
        store.delete(["a", "never"])
        store.delete(["a"])
        store.delete([])

        assert [item.key for item in store.list()] == ["b"]

    def test_too_large_an_object_is_refused(self, store):
        """What an untrusted writer left is not read beyond the bound."""
        store.put("big", b"x" * 101)

        assert store.get("big", max_bytes=101) is not None
        with pytest.raises(ContractError, match="big has 101 bytes; at most 100 are read"):
            store.get("big", max_bytes=100)


class TestConditions:
    """Create-only and compare-and-swap."""

    def test_create_writes_once(self, store):
        """The second create is a conflict and changes nothing."""
        store.create("a", b"one")
        with pytest.raises(Conflict):
            store.create("a", b"two")

        assert store.get("a").data == b"one"

    def test_swap_needs_the_etag_that_is_there(self, store):
        """A swap over an older ETag is a conflict and changes nothing."""
        first = store.put("a", b"one")
        second = store.swap("a", b"two", first)
        with pytest.raises(Conflict):
            store.swap("a", b"three", first)

        assert store.get("a").data == b"two"
        assert store.get("a").etag == second

    def test_swap_does_not_create(self, store):
        """A swap over an object that is gone is a conflict."""
        etag = store.put("a", b"one")
        store.delete(["a"])
        with pytest.raises(Conflict):
            store.swap("a", b"two", etag)

        assert store.get("a") is None


class TestDirectories:
    """Views of sub-directories, and what may not be named."""

    def test_a_view_sees_its_own(self, store):
        """``at`` shares objects and client and carries the address on."""
        view = store.at("dag/run/").at("task")
        view.put("run.json", b"{}")

        assert view.uri == f"{store.uri}/dag/run/task"
        assert store.get("dag/run/task/run.json").data == b"{}"
        assert [item.key for item in view.list()] == ["run.json"]
        assert view.client is store.client
        assert store.at("") is store

    @pytest.mark.parametrize("key", ["../x", "a/../../x", "/x", "a//b", "", "./a", ".."])
    def test_a_key_stays_within(self, store, key):
        """No key leads out of the directory."""
        view = store.at("here")
        for work in (view.get, view.head, lambda key: view.put(key, b""), lambda key: view.delete([key])):
            with pytest.raises(UnsafePath, match="does not stay within"):
                work(key)
        if key:
            with pytest.raises(UnsafePath):
                view.list(key)


class TestFiles:
    """Large objects."""

    @pytest.mark.parametrize("size", [0, 1, 20_000_000], ids=["empty", "small", "parts"])
    def test_a_file_comes_back(self, store, tmp_path, size):
        """Whatever its size; the ETag of the upload is that of the listing."""
        source, target = tmp_path / "source", tmp_path / "deep" / "target"
        source.write_bytes(bytes(range(256)) * (size // 256) + b"x" * (size % 256))
        etag = store.upload(source, "data/file")
        store.download("data/file", target)

        assert source.read_bytes() == target.read_bytes()
        assert [(size, etag)] == [(item.size, item.etag) for item in store.list("data/")]
        assert [path.name for path in target.parent.iterdir()] == ["target"]

    def test_a_missing_object_makes_no_file(self, store, tmp_path):
        """A failed download leaves what was there."""
        (tmp_path / "target").write_bytes(b"before")
        with pytest.raises(FileNotFoundError):
            store.download("none", tmp_path / "target")

        assert (tmp_path / "target").read_bytes() == b"before"
        assert [path.name for path in tmp_path.iterdir()] == ["target"]


class TestOpening:
    """Addresses."""

    def test_memory_stores_of_a_name_are_one(self):
        """Tests of two sides share what lies there."""
        open_store("memory://shared-by-name/a").put("b", b"x")

        assert open_store("memory://shared-by-name").get("a/b").data == b"x"

    @pytest.mark.parametrize("uri", ["", "s3://", "runs/prefix", "gs://bucket/x", "s3://b/x?y=1", "memory://"])
    def test_other_addresses_are_refused(self, uri):
        """The message says what an address looks like."""
        with pytest.raises(ConfigurationError, match="s3://bucket/prefix"):
            open_store(uri)


def test_of_many_swaps_each_builds_on_the_one_before():
    """Compare-and-swap loses no update among threads."""
    store = open_store("memory://counter")
    store.put("n", b"0")

    def add() -> None:
        for _ in range(50):
            while True:
                found = store.get("n")
                try:
                    store.swap("n", str(int(found.data) + 1).encode(), found.etag)
                    break
                except Conflict:
                    continue

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert store.get("n").data == b"200"
