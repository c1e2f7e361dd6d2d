"""``airflow-spot examples``: the example DAGs and their trainers, from the package or from a checkout."""

from __future__ import annotations

import shutil
from pathlib import Path

import airflow_spot
from airflow_spot.errors import ConfigurationError

_LEFT_OUT = frozenset({"__pycache__"})


def source() -> Path:
    """Return where the examples lie: in the package of a wheel, beside it in a checkout.

    :raises ConfigurationError: an installation without them.
    """
    package = Path(airflow_spot.__file__).parent
    for place in (package / "examples", package.parent / "dags"):
        if place.is_dir():
            return place
    raise ConfigurationError(
        "this installation of airflow-provider-spot holds no examples; install it from its wheel or a checkout"
    )


def copy(directory: Path, *, force: bool = False, place: Path | None = None) -> list[Path]:
    """Copy the examples into a directory and return the files written; nothing is written where one would be lost.

    :param place: where the examples lie; else :func:`source`.
    :raises ConfigurationError: the directory is a file, or holds files of the same names and ``force`` is not given.
    """
    place = place or source()
    if directory.exists() and not directory.is_dir():
        raise ConfigurationError(f"{directory} is a file; give a directory")
    names = [path.relative_to(place) for path in sorted(place.rglob("*")) if path.is_file() and _wanted(path, place)]
    there = [str(name) for name in names if (directory / name).exists()]
    if there and not force:
        raise ConfigurationError(
            f"{directory} already holds {', '.join(there[:3])}{' and more' if len(there) > 3 else ''}; "
            "nothing was written: give another directory, or --force to overwrite"
        )
    return [_copied(place / name, directory / name) for name in names]


def _wanted(path: Path, place: Path) -> bool:
    return not _LEFT_OUT.intersection(path.relative_to(place).parts)


def _copied(origin: Path, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(origin, target)
    return target
