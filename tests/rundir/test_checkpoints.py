"""Checkpoints: committed last, verified first, and never half."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_spot.errors import CheckpointDamaged, ContractError, StoreUnavailable, UnsafePath
from airflow_spot.rundir import checkpoints, codec
from airflow_spot.rundir.layout import manifest_key, parse_checkpoint_id
from airflow_spot.rundir.values import FileEntry, Manifest


def fill(directory: Path, **files: str) -> Path:
    """Write files; ``__`` stands for a slash, ``_`` for a dot."""
    for name, text in files.items():
        path = directory / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


def tree(directory: Path) -> dict[str, str]:
    return {path.relative_to(directory).as_posix(): path.read_text() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def source(tmp_path):
    return fill(tmp_path / "source", model_pt="weights", rank0__optim_pt="moments")


@pytest.fixture
def target(tmp_path):
    return tmp_path / "target"


def commit(store, directory, step=10, **options):
    given = {"attempt": 1, "job": "j", "ancestors": (), "may_commit": lambda: True, **options}
    return checkpoints.commit(store, directory, step=step, **given)


class TestCommit:
    """Data first, the manifest last."""

    def test_a_checkpoint_comes_back(self, store, source, target):
        """Files, folders, modes and times; and nothing of ours is left behind."""
        (source / "model.pt").chmod(0o640)
        os.utime(source / "model.pt", ns=(10**18, 10**18))
        written = commit(store, source, total_steps=100, world_size=2, ancestors=["000000000001-a0001-aaaa"])
        restored = checkpoints.restore(store, written.checkpoint, target)

        assert written == restored
        assert tree(source) == tree(target)
        assert (target / "model.pt").stat().st_mode & 0o777 == 0o640
        assert (target / "model.pt").stat().st_mtime_ns == 10**18
        assert sorted(path.name for path in target.iterdir()) == ["model.pt", "rank0"]
        assert (10, 1, 100, 2) == (restored.step, restored.attempt, restored.total_steps, restored.world_size)
        assert restored.ancestors == ("000000000001-a0001-aaaa",)

    def test_a_prefix_is_never_used_twice(self, store, source):
        """The same step of the same attempt is another checkpoint."""
        first, second = commit(store, source), commit(store, source)

        assert first.checkpoint != second.checkpoint
        assert parse_checkpoint_id(first.checkpoint)[:2] == (10, 1)

    def test_unchanged_content_is_not_uploaded_again(self, store, source):
        """Whatever its name, and also twice within one checkpoint."""
        first = commit(store, source)
        fill(source, new_pt="new", twin_pt="new", copy_pt="weights")
        second = commit(store, source, 20, reuse=first.files)
        own = [item.key for item in store.list(f"checkpoints/{second.checkpoint}/data/")]

        assert len(own) == 1
        keys = {entry.name: entry.key for entry in second.files}
        assert keys["new.pt"] == keys["twin.pt"] == own[0]
        assert keys["copy.pt"] == keys["model.pt"] == next(e.key for e in first.files if e.name == "model.pt")
        assert [first.checkpoint, second.checkpoint] == [item.id for item in checkpoints.present(store)]

    def test_the_fence_is_asked_last(self, store, source):
        """All data lies there when ``may_commit`` is asked; a no leaves no checkpoint."""

        def no() -> bool:
            assert len(store.list("checkpoints/")) == 2
            return False

        with pytest.raises(checkpoints.Fenced, match="may not commit any more"):
            commit(store, source, may_commit=no)

        assert checkpoints.present(store) == []

    @pytest.mark.parametrize("after", [False, True], ids=["before the effect", "after the effect"])
    @pytest.mark.parametrize("broken", [1, 2, 3])
    def test_a_crash_leaves_a_whole_checkpoint_or_none(self, store, faulty, source, broken, after):
        """Wherever it dies; a lost reply to the manifest itself counts as written."""
        behind, _ = faulty(store, at={broken: StoreUnavailable("died")}, after=after, methods=("put", "upload"))
        if broken == 3:
            assert [commit(behind, source).checkpoint] == [item.id for item in checkpoints.present(store)]
            return
        with pytest.raises(StoreUnavailable):
            commit(behind, source)

        assert checkpoints.present(store) == []

    def test_a_file_that_changes_meanwhile_is_refused(self, store, source):
        """It would be neither the old one nor the new one."""
        with pytest.raises(CheckpointDamaged, match=r"'model.pt' changed while it was being saved"):
            commit(store, source, progress=lambda done, total: (source / "model.pt").write_text("longer than it was"))

        assert checkpoints.present(store) == []

    def test_only_named_files(self, store, source):
        """The agent commits what is complete and leaves the rest."""
        assert [entry.name for entry in commit(store, source, names=["model.pt"]).files] == ["model.pt"]

    def test_a_link_within_is_a_file(self, store, source, target):
        """Frameworks link ``last.ckpt`` to the newest; it comes back as a file and is stored once."""
        (source / "last").symlink_to("model.pt")
        written = commit(store, source)
        checkpoints.restore(store, written.checkpoint, target)

        assert (target / "last").read_text() == "weights"
        assert not (target / "last").is_symlink()
        assert len(store.list(f"checkpoints/{written.checkpoint}/data/")) == 2

    @pytest.mark.parametrize("kind", ["outside", "folder", "fifo", "backslash"])
    def test_what_cannot_be_restored_is_refused_by_name(self, store, source, tmp_path, kind):
        """Links out, links to folders, special files, names with backslashes."""
        if kind == "outside":
            (tmp_path / "secret").write_text("x")
            (source / "odd").symlink_to(tmp_path / "secret")
        elif kind == "folder":
            (source / "odd").symlink_to("rank0")
        elif kind == "fifo":
            os.mkfifo(source / "odd")
        else:
            (source / "odd\\name").write_text("x")
        with pytest.raises(UnsafePath, match="odd"):
            commit(store, source)

        assert store.list() == []

    def test_nothing_is_no_checkpoint(self, store, tmp_path):
        """An empty directory is a mistake of the caller."""
        with pytest.raises(ContractError, match="holds 0 files"):
            commit(store, tmp_path)

    @pytest.mark.parametrize("step", [-1, 10**12])
    def test_a_step_out_of_range(self, store, source, step):
        """It would not sort."""
        with pytest.raises(ContractError, match="give a number between"):
            commit(store, source, step)

    def test_progress_reaches_the_end(self, store, source):
        """Bytes done and in all."""
        seen = []
        commit(store, source, progress=lambda done, total: seen.append((done, total)))

        assert seen == [(7, 14), (14, 14), (14, 14)]


class TestRestore:
    """All of it, verified, or nothing."""

    @pytest.mark.parametrize("harm", ["bytes", "size", "missing", "no manifest", "manifest"])
    def test_damage_leaves_the_directory_as_it_was(self, store, source, target, harm):
        """SHA-256 and size of every file are checked before any is put in place."""
        written = commit(store, source)
        key = next(entry.key for entry in written.files if entry.name == "model.pt")
        harms = {
            "bytes": lambda: store.put(key, b"WEIGHTS"),
            "size": lambda: store.put(key, b"short"),
            "missing": lambda: store.delete([key]),
            "no manifest": lambda: store.delete([manifest_key(written.checkpoint)]),
            "manifest": lambda: store.put(manifest_key(written.checkpoint), b"{"),
        }
        fill(target, model_pt="before")
        harms[harm]()
        with pytest.raises(CheckpointDamaged, match="an earlier checkpoint is needed") as caught:
            checkpoints.restore(store, written.checkpoint, target)

        assert caught.value.checkpoint == written.checkpoint
        assert tree(target) == {"model.pt": "before"}
        assert checkpoints.present(store) == []

    def test_an_outage_is_no_damage(self, store, faulty, source, target):
        """An unreachable store never makes a checkpoint bad."""
        written = commit(store, source)
        behind, _ = faulty(store, at={1: StoreUnavailable("away")}, methods=("download",))
        with pytest.raises(StoreUnavailable):
            checkpoints.restore_furthest(behind, written.checkpoint, target)

        assert tree(target) == {}

    @pytest.mark.parametrize(
        ("name", "key"),
        [
            ("../out", None),
            ("/etc/out", None),
            ("a/../../out", None),
            ("ok", "run.json"),
            ("ok", "checkpoints/../run.json"),
            ("ok", "checkpoints/000000000010-a0001-aaaa/manifest.json"),
            ("ok", "checkpoints/000000000010-a0001-aaaa/data/../../x"),
        ],
    )
    def test_a_forged_manifest_reaches_nothing(self, store, source, target, name, key):
        """Names stay in the directory, keys in the data of this training run's checkpoints."""
        written = commit(store, source)
        entry = written.files[0]
        forged = replace(written, files=(replace(entry, name=name, key=key or entry.key),))
        store.put(manifest_key(written.checkpoint), codec.dumps(forged))
        with pytest.raises(CheckpointDamaged):
            checkpoints.restore(store, written.checkpoint, target)

        assert checkpoints.present(store) == []
        assert not list(target.parent.glob("**/out"))

    @pytest.mark.parametrize(
        "change", [{"checkpoint": "000000000010-a0001-ffff"}, {"step": 11}, {"attempt": 2}, {"files": ()}]
    )
    def test_a_manifest_is_that_of_its_place(self, store, source, change):
        """Id, step and attempt are those of the prefix."""
        written = commit(store, source)
        store.put(manifest_key(written.checkpoint), codec.dumps(replace(written, **change)))

        assert checkpoints.present(store) == []
        assert checkpoints.manifest(store, written.checkpoint) is None

    def test_a_file_is_no_directory(self, store, source):
        """``a`` and ``a/b`` cannot both be files, nor one name twice."""
        written = commit(store, source)
        for names in (("a", "a/b"), ("a", "a")):
            files = tuple(replace(entry, name=name) for entry, name in zip(written.files, names, strict=True))
            store.put(manifest_key(written.checkpoint), codec.dumps(replace(written, files=files)))

            assert checkpoints.manifest(store, written.checkpoint) is None

    def test_links_in_the_directory_are_not_followed(self, store, source, target, tmp_path):
        """What an image left there leads nowhere; a link in place of a file is replaced."""
        written = commit(store, source)
        outside = fill(tmp_path / "outside", model_pt="theirs")
        target.mkdir()
        (target / "rank0").symlink_to(outside)
        with pytest.raises(UnsafePath, match="is a link or a file where"):
            checkpoints.restore(store, written.checkpoint, target)
        assert tree(outside) == {"model.pt": "theirs"}
        assert [path.name for path in target.iterdir()] == ["rank0"]

        (target / "rank0").unlink()
        (target / "model.pt").symlink_to(outside / "model.pt")
        checkpoints.restore(store, written.checkpoint, target)
        assert tree(outside) == {"model.pt": "theirs"}
        assert tree(source) == tree(target)

    def test_leftovers_of_a_crash_are_cleared(self, store, source, target):
        """A restore that died left its staging directory: the next one removes it, and no commit takes it up."""
        written = commit(store, source)
        fill(target / ".airflow-spot-restore-dead", half_pt="x")
        fill(source / ".airflow-spot-restore-dead", half_pt="x")

        assert len(commit(store, source, 20).files) == 2
        checkpoints.restore(store, written.checkpoint, target)
        assert sorted(tree(target)) == ["model.pt", "rank0/optim.pt"]

    def test_a_full_disk_is_said_before_a_byte_is_read(self, store, source, target):
        """The sizes are known from the manifest."""
        written = commit(store, source)
        huge = replace(written.files[0], size=1 << 60)
        store.put(manifest_key(written.checkpoint), codec.dumps(replace(written, files=(huge,))))
        with pytest.raises(OSError, match="give the job a larger disk"):
            checkpoints.restore(store, written.checkpoint, target)


class TestFurthest:
    """The pin or, where it is damaged, what came before."""

    @pytest.fixture
    def three(self, store, source):
        made, ancestors = [], ()
        for step in (10, 20, 30):
            fill(source, model_pt=f"weights {step}", rank0__optim_pt=f"moments {step}")
            made.append(commit(store, source, step, ancestors=ancestors))
            ancestors = (made[-1].checkpoint, *ancestors)
        return made

    @staticmethod
    def harm(store, manifest: Manifest) -> None:
        store.put(manifest.files[0].key, b"x" * manifest.files[0].size)

    def test_the_pin(self, store, three, target):
        """When it is intact."""
        found = checkpoints.restore_furthest(store, three[2].checkpoint, target)

        assert (three[2].checkpoint, 30, ()) == (found.checkpoint, found.step, found.bad)
        assert found.manifest == three[2]
        assert tree(target)["model.pt"] == "weights 30"

    def test_the_one_before(self, store, three, target):
        """With what was bad, furthest first."""
        self.harm(store, three[2])
        self.harm(store, three[1])
        found = checkpoints.restore_furthest(store, three[2].checkpoint, target)

        assert found.checkpoint == three[0].checkpoint
        assert found.bad[0] == three[2].checkpoint
        assert tree(target)["model.pt"] == "weights 10"

    def test_a_lost_manifest_does_not_lose_the_line(self, store, three, target):
        """What came before a pin is found by its attempt and step."""
        store.delete([manifest_key(three[2].checkpoint)])
        found = checkpoints.restore_furthest(store, three[2].checkpoint, target)

        assert (three[1].checkpoint, (three[2].checkpoint,)) == (found.checkpoint, found.bad)

    def test_nothing_is_left(self, store, three, target):
        """From the beginning, and it is said which were tried."""
        store.delete(item.key for item in store.list("checkpoints/") if "/data/" in item.key)
        found = checkpoints.restore_furthest(store, three[2].checkpoint, target)

        assert (None, 0, (three[2].checkpoint,)) == (found.checkpoint, found.step, found.bad)

    def test_no_pin(self, store, three, target):
        """From the beginning; nothing is read."""
        assert checkpoints.restore_furthest(store, None, target).checkpoint is None
        assert not target.exists()


class TestPresent:
    """One LIST and the manifests."""

    def test_an_object_of_another_etag_does_not_count(self, store, source):
        """Size alone does not tell a file that was replaced."""
        written = commit(store, source)
        store.put(written.files[0].key, b"x" * written.files[0].size)

        assert checkpoints.present(store) == []

    def test_order_is_by_step(self, store, source):
        """Never by file time."""
        later, earlier = commit(store, source, 200), commit(store, source, 30)

        assert [earlier.checkpoint, later.checkpoint] == [item.id for item in checkpoints.present(store)]
        assert [later.checkpoint] == [item.id for item in checkpoints.present(store, excluding=[earlier.checkpoint])]

    def test_strange_names_are_left_alone(self, store, source):
        """What is no checkpoint id is not looked into."""
        store.put("checkpoints/notes/manifest.json", b"{}")
        store.put("checkpoints/readme", b"x")

        assert checkpoints.look(store) == checkpoints.Shelf()

    def test_a_manifest_has_bounds(self, store, source, monkeypatch):
        """More files than the bound are refused by writer and reader."""
        written = commit(store, source)
        monkeypatch.setattr("airflow_spot.rundir.transfer.MANIFEST_FILES", 1)
        with pytest.raises(ContractError, match="holds 2 files"):
            commit(store, source)

        assert checkpoints.manifest(store, written.checkpoint) is None

    def test_unknown_fields_are_kept(self, store, source):
        """What a newer version wrote into a manifest is still there."""
        written = commit(store, source)
        raw = json.loads(store.get(manifest_key(written.checkpoint)).data) | {"framework": "torch"}
        store.put(manifest_key(written.checkpoint), json.dumps(raw).encode())

        assert checkpoints.present(store)[0].manifest.extra == {"framework": "torch"}


def test_entries_name_an_etag_or_none():
    """A manifest without ETags is checked by size alone."""
    assert FileEntry(name="a", size=1, sha256="0" * 64, key="k").etag == ""
