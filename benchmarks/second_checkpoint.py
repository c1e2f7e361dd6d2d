"""The second checkpoint of a directory of which a tenth has changed: what is uploaded, and how long it takes.

Against uploading all of it again, which is what a copy of the directory to a fresh prefix does. On moto's S3 server in
a process of its own; the times hold for that server only, the bytes anywhere.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from report import show

from airflow_spot.localcloud.server import LocalCloud
from airflow_spot.rundir import checkpoints
from airflow_spot.rundir.store import Store, open_store
from airflow_spot.rundir.values import FileEntry, Manifest

FILES, BYTES = 100, 256 * 1024
SAMPLES = 3


def write(directory: Path, indices: range) -> None:
    """Give some files new content."""
    for index in indices:
        (directory / f"part-{index:03d}.bin").write_bytes(os.urandom(BYTES))


def commit(
    store: Store, directory: Path, step: int, ancestors: tuple[str, ...], reuse: Sequence[FileEntry]
) -> tuple[Manifest, float]:
    """Commit the directory and return the manifest and the seconds it took."""
    begin = time.perf_counter()
    manifest = checkpoints.commit(
        store, directory, step=step, attempt=1, job="job", ancestors=ancestors, reuse=reuse, may_commit=lambda: True
    )
    return manifest, time.perf_counter() - begin


def uploaded(store: Store, manifest: Manifest) -> int:
    """Return the bytes below the checkpoint's own prefix."""
    return sum(meta.size for meta in store.list(f"checkpoints/{manifest.checkpoint}/"))


if __name__ == "__main__":
    seconds: dict[str, list[float]] = {"changed files only": [], "all files again": []}
    sizes: dict[str, list[float]] = {name: [] for name in seconds}
    with LocalCloud() as cloud, tempfile.TemporaryDirectory() as scratch:
        os.environ |= cloud.environment()
        for number in range(SAMPLES):
            directory = Path(scratch) / str(number)
            directory.mkdir()
            store = open_store(f"s3://{cloud.bucket}/bench/{number}", endpoint=cloud.endpoint_url, allow_http=True)
            write(directory, range(FILES))
            first, _ = commit(store, directory, 1, (), ())
            write(directory, range(FILES // 10))
            for name, reuse in (("changed files only", first.files), ("all files again", ())):
                second, took = commit(store, directory, 2, (first.checkpoint,), reuse)
                seconds[name].append(took)
                sizes[name].append(uploaded(store, second) / 1024**2)
    print(f"{FILES} files of {BYTES // 1024} KiB, {FILES // 10} of them changed\n")
    show("uploaded by the second checkpoint", "MiB", sizes)
    show("time of the second checkpoint", "s", seconds)
