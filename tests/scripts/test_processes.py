"""Whatever the demo starts ends with it."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import psutil
import pytest
from processes import Child, StartError, free_port

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
inner = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('inner', flush=True); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", inner], start_new_session={apart}, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""


def started(child: Child) -> int:
    """Return the grandchild's process id once it has been written."""
    with child.log.open() as log:
        while not (line := log.readline()).endswith("\n"):
            assert child.exit_code is None
    return int(line)


@pytest.mark.parametrize("apart", [False, True], ids=["in its group", "in a session of its own"])
def test_stop_ends_the_family(tmp_path: Path, apart: bool) -> None:
    """Grandchildren that ignore SIGTERM end too, whether or not they stayed in the group."""
    command = [sys.executable, "-c", STUBBORN.format(apart=apart)]
    child = Child("a stubborn one", command, env=os.environ, log=tmp_path / "log")
    grandchild = started(child)

    child.stop(grace=0.2)

    assert child.exit_code is not None
    assert not psutil.pid_exists(grandchild) or psutil.Process(grandchild).status() == psutil.STATUS_ZOMBIE


def test_stop_twice(tmp_path: Path) -> None:
    """A program that has ended can be stopped again."""
    child = Child("true", [sys.executable, "-c", "pass"], env=os.environ, log=tmp_path / "log")

    assert child.wait(20) == 0
    child.stop()
    child.stop()


def test_check_gives_the_last_words(tmp_path: Path) -> None:
    """A program that ended too early is named with its exit code and its last line."""
    child = Child(
        "it", [sys.executable, "-c", "print('one'); raise SystemExit('no disk')"], env=os.environ, log=tmp_path / "log"
    )
    child.wait(20)

    with pytest.raises(StartError, match="it ended with exit code 1: no disk"):
        child.check()


def test_free_port_prefers() -> None:
    """A port in use is replaced by a free one, a free one is taken."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port(port) != port
    assert free_port(port) == port
