"""Copies of the examples."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from airflow_spot.cli import app, examples
from airflow_spot.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Examples as a wheel holds them."""
    place = tmp_path / "examples"
    for name in ("README.md", "final.py", "trainers/train.py", "__pycache__/final.pyc"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(name)
    return place


def test_examples_are_copied_with_their_folders(place: Path, tmp_path: Path) -> None:
    """DAGs and trainers arrive, compiled files do not."""
    written = examples.copy(tmp_path / "dags", place=place)
    assert [str(path.relative_to(tmp_path)) for path in written] == [
        "dags/README.md",
        "dags/final.py",
        "dags/trainers/train.py",
    ]
    assert (tmp_path / "dags/trainers/train.py").read_text() == "trainers/train.py"


def test_nothing_is_overwritten_without_force(place: Path, tmp_path: Path) -> None:
    """A file of the same name keeps its text, and nothing at all is written, unless told otherwise."""
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags/final.py").write_text("mine")
    with pytest.raises(ConfigurationError, match=r"already holds final\.py; nothing was written"):
        examples.copy(tmp_path / "dags", place=place)
    assert [path.name for path in (tmp_path / "dags").iterdir()] == ["final.py"]
    examples.copy(tmp_path / "dags", place=place, force=True)
    assert (tmp_path / "dags/final.py").read_text() == "final.py"


def test_a_file_is_no_directory(place: Path, tmp_path: Path) -> None:
    """A file in the way is refused."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="is a file; give a directory"):
        examples.copy(tmp_path / "file", place=place)


def test_an_installation_without_examples_says_so(monkeypatch, tmp_path: Path) -> None:
    """Without the package data the sentence says how to get it."""
    monkeypatch.setattr("airflow_spot.__file__", str(tmp_path / "airflow_spot/__init__.py"))
    with pytest.raises(ConfigurationError, match="holds no examples"):
        examples.source()


def test_the_command_copies_and_says_what(place: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    """The command reports what it wrote, in JSON too, and refuses with exit code 2."""
    monkeypatch.setattr(examples, "source", lambda: place)
    target = tmp_path / "dags"
    assert app.run(["examples", str(target), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "directory": str(target),
        "files": [str(target / name) for name in ("README.md", "final.py", "trainers/train.py")],
    }
    assert app.run(["examples", str(target)]) == 2
    assert "already holds README.md" in capsys.readouterr().err
    assert app.run(["examples", str(target), "--force"]) == 0
    assert capsys.readouterr().out == f"3 files in {target}; read {target / 'README.md'} next\n"
