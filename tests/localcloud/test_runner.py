"""Jobs as real processes: what they see, and how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_spot.localcloud.metadata import Instance
from airflow_spot.localcloud.processes import kill_tree
from airflow_spot.localcloud.runner import Exit, Handle, Launch, ProcessRunner, StartError

INSTANCE = Instance(instance_id="i-0123456789abcdef0")


class Lines:
    """Keeps what a job printed."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.came = threading.Event()

    def put(self, stream: str, lines: list[tuple[float, str]]) -> None:
        self.texts += [text for _, text in lines]
        self.came.set()


def until(check: Callable[[], object], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.02)


class Stage:
    """A runner with its lines, and every handle that it gave."""

    def __init__(self, directory: Path) -> None:
        self.lines = Lines()
        self.handles: list[Handle] = []
        self.directory = directory / "jobs"
        self.runner = ProcessRunner(environment={"FROM": "cloud"}, logs=self.lines.put, directory=self.directory)

    def start(self, *command: str, **environment: str) -> Handle:
        job_id = f"{os.getpid():08d}-2222-3333-4444-555555555555"
        launch = Launch(
            job_id=job_id,
            job_name="job",
            queue="spot",
            attempt=1,
            image="ignored",
            command=command,
            environment={"AWS_BATCH_JOB_ID": job_id, **environment},
            stream="s",
            instance=INSTANCE,
        )
        handle = self.runner.start(launch)
        self.handles.append(handle)
        return handle

    def ended(self, handle: Handle) -> Exit:
        until(handle.poll)
        exit_ = handle.poll()
        assert exit_ is not None
        return exit_


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    for handle in stage.handles:
        handle.close()


def alive(marker: str) -> list[str]:
    """Return the processes whose command line holds a text."""
    listing = subprocess.run(["ps", "-axo", "stat=,args="], capture_output=True, text=True, check=True).stdout
    return [line for line in listing.splitlines() if marker in line and not line.startswith("Z")]


class TestWhatAJobSees:
    def test_its_environment_and_nothing_of_ours(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        """Batch's and the cloud's variables are there, those of our shell are not; threads may be limited."""
        monkeypatch.setenv("SECRET_OF_OURS", "x")
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        handle = stage.start(sys.executable, "-c", "import os, json; print(json.dumps(dict(os.environ)))", MINE="1")
        assert stage.ended(handle) == Exit(code=0)
        until(lambda: stage.lines.texts)
        seen = json.loads(stage.lines.texts[0])
        assert (seen["FROM"], seen["MINE"], seen["OMP_NUM_THREADS"]) == ("cloud", "1", "1")
        assert "SECRET_OF_OURS" not in seen
        assert seen["AWS_EC2_METADATA_SERVICE_ENDPOINT"].startswith("http://127.0.0.1:")

    def test_a_scratch_directory_that_goes_with_it(self, stage: Stage) -> None:
        """Each attempt has an empty directory of its own, which is removed afterwards."""
        handle = stage.start("sh", "-c", "ls -A | wc -l; touch left; pwd")
        stage.ended(handle)
        until(lambda: len(stage.lines.texts) == 2)
        count, directory = stage.lines.texts
        assert (int(count), Path(directory).parent.name) == (0, "jobs")
        handle.close()
        until(lambda: not Path(directory).exists())

    def test_the_python_of_the_cloud(self, stage: Stage) -> None:
        """``python`` is that of the environment the cloud runs in."""
        handle = stage.start("python", "-c", "import sys; print(sys.prefix)")
        stage.ended(handle)
        until(lambda: stage.lines.texts)
        assert stage.lines.texts == [sys.prefix]

    def test_both_of_its_streams_are_kept(self, stage: Stage) -> None:
        """stdout and stderr come line by line, as they are written, whatever bytes they hold."""
        handle = stage.start("sh", "-c", r"echo out; echo err >&2; printf '\377\n'; printf last")
        stage.ended(handle)
        handle.close()
        until(lambda: len(stage.lines.texts) == 4)
        assert stage.lines.texts == ["out", "err", "\ufffd", "last"]

    def test_a_notice_in_its_metadata(self, stage: Stage) -> None:
        """The job's own endpoint shows the notice, and only then."""
        handle = stage.start("sh", "-c", "echo $AWS_EC2_METADATA_SERVICE_ENDPOINT; sleep 60")
        until(lambda: stage.lines.texts)
        handle.notice(datetime.now(UTC) + timedelta(seconds=120))
        url = stage.lines.texts[0]
        ask = urllib.request.Request(
            f"{url}/latest/api/token", method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        )
        with urllib.request.urlopen(ask, timeout=5) as reply:
            token = reply.read().decode()
        ask = urllib.request.Request(
            f"{url}/latest/meta-data/spot/instance-action", headers={"X-aws-ec2-metadata-token": token}
        )
        with urllib.request.urlopen(ask, timeout=5) as reply:
            assert json.load(reply)["action"] == "terminate"


class TestHowItEnds:
    @pytest.mark.parametrize(("command", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143)])
    def test_exit_codes_are_those_of_a_container(self, stage: Stage, command: str, code: int) -> None:
        """A signal gives 128 and its number."""
        assert stage.ended(stage.start("sh", "-c", command)) == Exit(code=code)

    def test_a_missing_program(self, stage: Stage) -> None:
        """It fails to start, in a container runtime's words, and leaves nothing behind."""
        with pytest.raises(StartError, match=r'CannotStartContainerError: .*exec: "no-such-program": No such file'):
            stage.start("no-such-program")
        assert list(stage.directory.iterdir()) == []

    @pytest.mark.parametrize("command", [("sh", "-c", "a\0b"), ("/",)])
    def test_what_cannot_be_executed(self, stage: Stage, command: tuple[str, ...]) -> None:
        """It fails to start as well; the cloud goes on."""
        with pytest.raises(StartError, match="CannotStartContainerError"):
            stage.start(*command)
        assert list(stage.directory.iterdir()) == []

    def test_no_place_for_a_job(self, tmp_path: Path) -> None:
        """A scratch directory that cannot be made is a start failure."""
        (tmp_path / "jobs").write_text("a file")
        with pytest.raises(StartError, match="CannotStartContainerError"):
            Stage(tmp_path).start("true")

    def test_an_empty_command(self, stage: Stage) -> None:
        """It is a start failure, too."""
        with pytest.raises(StartError, match="CannotStartContainerError"):
            stage.start()

    def test_sigterm_goes_to_the_main_process_only(self, stage: Stage) -> None:
        """Who does not forward it leaves its children running, as in a container; they go when it ends."""
        mark = f"600.{os.getpid()}1"
        handle = stage.start("sh", "-c", f"trap 'echo term; exit 3' TERM; sleep {mark} & echo up; wait")
        until(lambda: stage.lines.texts == ["up"])
        handle.terminate()
        assert stage.ended(handle) == Exit(code=3)
        until(lambda: not alive(mark))

    @pytest.mark.skipif(sys.platform != "linux", reason="setsid, and finding daemons, are Linux's")
    def test_the_loss_of_a_host_leaves_nothing(self, stage: Stage) -> None:
        """Children, other sessions and daemons whose parents are gone are all killed."""
        mark = f"600.{os.getpid()}2"
        daemon = f"import os, time\nif os.fork() == 0:\n    os.setsid()\n    os.execvp('sleep', ['sleep', '{mark}'])"
        script = f'setsid sleep {mark} & sleep {mark} & python -c "{daemon}"; echo up; sleep {mark}'
        handle = stage.start("sh", "-c", script)
        until(lambda: stage.lines.texts == ["up"])
        assert len(alive(mark)) >= 4
        handle.kill()
        until(lambda: not alive(mark))
        assert stage.ended(handle) == Exit(code=137)

    def test_killing_what_is_gone_is_harmless(self) -> None:
        """A process that has ended, and its number, are left alone."""
        process = subprocess.Popen(["true"], start_new_session=True)
        process.wait()
        kill_tree(process.pid)

    def test_a_stopped_process_is_killed_as_well(self, stage: Stage) -> None:
        """SIGSTOP keeps nothing alive."""
        mark = f"600.{os.getpid()}3"
        handle = stage.start("sleep", mark)
        until(lambda: alive(mark))
        os.kill(handle.process.pid, signal.SIGSTOP)  # type: ignore[attr-defined]
        handle.close()
        assert alive(mark) == []
