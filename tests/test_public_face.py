"""What users import, run and read: complete, light, and documented."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pickle
import pkgutil
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

import airflow_spot
from airflow_spot import errors
from airflow_spot.errors import SpotError

ROOT = Path(__file__).parents[1]
PUBLIC = (
    "airflow_spot",
    "airflow_spot.agent",
    "airflow_spot.cli",
    "airflow_spot.errors",
    "airflow_spot.localcloud",
    "airflow_spot.policies",
    "airflow_spot.testing",
)
LIGHT = {
    "airflow_spot": ("airflow", "boto3", "botocore", "obstore", "moto", "rich", "typer"),
    "airflow_spot.agent": ("airflow", "boto3", "botocore", "moto", "numpy", "rich", "typer"),
    "airflow_spot.cli": ("airflow", "boto3", "botocore", "obstore", "moto", "rich", "typer"),
    "airflow_spot.errors": ("airflow", "boto3", "botocore", "obstore", "moto"),
    "airflow_spot.localcloud": ("airflow", "boto3", "botocore", "moto", "werkzeug"),
    "airflow_spot.policies": ("airflow", "boto3", "botocore", "obstore", "moto"),
    "airflow_spot.provider_info": ("airflow", "boto3", "botocore", "obstore", "moto"),
}


def all_modules() -> list[str]:
    """Every module of the package that is not a script."""
    found = pkgutil.walk_packages(airflow_spot.__path__, "airflow_spot.")
    return sorted(
        module.name for module in found if not module.name.endswith("__main__") and "examples" not in module.name
    )


def declared(source: str) -> list[str] | None:
    """The names that a module's ``__all__`` lists, read and not run."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == "__all__" for to in node.targets):
            names: list[str] = ast.literal_eval(node.value)
            return names
    return None


def order(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest: the order of isort and ruff."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def subclasses(cls: type[SpotError]) -> list[type[SpotError]]:
    """All classes below one, each once."""
    return sorted(
        {sub for one in cls.__subclasses__() for sub in (one, *subclasses(one))}, key=lambda sub: sub.__qualname__
    )


def read(*names: str) -> str:
    """The text of pages below the repository's root."""
    return "\n".join(path.read_text() for name in names for path in sorted(ROOT.glob(name)))


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_package_lists_its_names(name: str) -> None:
    """``__all__`` names what is there, and whatever a public package defines or gathers of its own is in it."""
    module = importlib.import_module(name)
    assert [missing for missing in module.__all__ if not hasattr(module, missing)] == []
    own = {
        key
        for key, value in vars(module).items()
        if not key.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__.startswith(f"{name}." if hasattr(module, "__path__") else name)
    }
    assert own - set(module.__all__) == set()


def test_every_list_of_names_is_sorted_and_without_doubles() -> None:
    """Wherever a module has an ``__all__``, it is in order."""
    lists = {str(path.relative_to(ROOT)): declared(path.read_text()) for path in (ROOT / "airflow_spot").rglob("*.py")}
    unsorted = {path: names for path, names in lists.items() if names and names != sorted(set(names), key=order)}
    assert unsorted == {}


@pytest.mark.parametrize("name", ["airflow_spot", "airflow_spot.agent", "airflow_spot.localcloud"])
def test_a_lazy_package_refuses_what_it_does_not_have(name: str) -> None:
    """A misspelt name is an AttributeError, as in any module."""
    with pytest.raises(AttributeError, match="Tear"):
        importlib.import_module(name).Tear  # noqa: B018


@pytest.mark.parametrize("name", LIGHT)
def test_importing_a_public_package_loads_nothing_heavy(name: str) -> None:
    """Provider discovery, DAG parsing, the agent and the command line pay only for what they use."""
    code = f"import sys, {name}\nprint(sorted(set({LIGHT[name]!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_entry_points_resolve() -> None:
    """Commands, provider metadata and plugin are where the installed metadata says."""
    points = {(point.group, point.name): point for point in distribution("airflow-provider-spot").entry_points}
    assert set(points) == {
        ("airflow.plugins", "spot"),
        ("apache_airflow_provider", "provider_info"),
        ("console_scripts", "airflow-spot"),
        ("console_scripts", "spot-agent"),
    }
    assert all(callable(point.load()) for point in points.values())


def test_what_the_provider_metadata_names_can_be_imported() -> None:
    """Operators, sensors, triggers, links and the plugin of the metadata exist."""
    from airflow_spot.provider_info import get_provider_info

    info = get_provider_info()
    kinds = ("operators", "sensors", "triggers")
    modules = [module for kind in kinds for entry in info[kind] for module in entry["python-modules"]]
    assert [importlib.import_module(module).__name__ for module in modules] == modules
    paths = [*info["extra-links"], *(plugin["plugin-class"] for plugin in info["plugins"])]
    for path in paths:
        module, _, name = path.rpartition(".")
        assert inspect.isclass(getattr(importlib.import_module(module), name))


def test_every_error_survives_pickling() -> None:
    """Message and fields of every error of the package cross a process border."""
    for module in all_modules():
        importlib.import_module(module)
    classes = [SpotError, *subclasses(SpotError)]
    assert len(classes) > 15
    for cls in classes:
        back = pickle.loads(pickle.dumps(cls("what happened", key="a/b", count=3)))
        assert (type(back), str(back), back.key, back.count) == (cls, "what happened", "a/b", 3)


def test_the_tree_of_errors_is_drawn() -> None:
    """The docstring of the module of errors shows every class of it."""
    drawn = set(re.findall(r"[├└]── (\w+)|^ +(SpotError)$", errors.__doc__ or "", re.MULTILINE))
    assert {first or second for first, second in drawn} == set(errors.__all__)


def test_every_module_says_what_it_is_for() -> None:
    """A module begins with a docstring."""
    silent = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "airflow_spot").rglob("*.py")
        if path.stat().st_size and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def parameters(cls: type) -> list[str]:
    """The arguments that a class has and its base has not."""
    inherited = inspect.signature(cls.__base__).parameters  # type: ignore[arg-type]  # operators have a base
    found = inspect.signature(cls).parameters.values()
    return [one.name for one in found if one.name not in inherited and one.kind is not inspect.Parameter.VAR_KEYWORD]


def test_every_argument_is_documented() -> None:
    """Operator and sensor explain each of their arguments where they are defined."""
    from airflow_spot.operators.training import SpotTrainingOperator
    from airflow_spot.sensors.deadline import SpotDeadlineSensor

    for cls in (SpotTrainingOperator, SpotDeadlineSensor):
        told = inspect.getdoc(cls) or ""
        assert [name for name in parameters(cls) if not re.search(rf":param {name}:|``{name}``", told)] == []


def test_every_setting_is_documented() -> None:
    """The page on configuration has each setting of the metadata."""
    from airflow_spot.provider_info import get_provider_info

    options = get_provider_info()["config"]["airflow_spot"]["options"]
    page = read("docs/configuration.md")
    assert [name for name in options if f"`{name}`" not in page] == []


def test_every_variable_of_the_agent_is_documented() -> None:
    """Each AIRFLOW_SPOT_… variable that the package reads is on some page."""
    names = set(re.findall(r'"(AIRFLOW_SPOT_[A-Z_]+)"', read("airflow_spot/**/*.py")))
    pages = read("docs/*.md")
    assert sorted(name for name in names if name not in pages) == []


def test_every_command_and_option_is_documented() -> None:
    """The page on the command line has each subcommand and each option of it."""
    from airflow_spot.cli.app import app

    page = read("docs/command-line.md")
    for command in app.registered_commands:
        function: Any = command.callback
        assert f"airflow-spot {function.__name__}" in page
        hints = inspect.get_annotations(function, eval_str=True)
        given = [mark for hint in hints.values() for mark in getattr(hint, "__metadata__", ())]
        options = [name for mark in given for name in getattr(mark, "param_decls", None) or () if name.startswith("--")]
        assert [name for name in options if f"{name}" not in page] == []


def test_every_field_of_the_contract_is_documented() -> None:
    """The page on the contract has each field of each object."""
    from airflow_spot.rundir.schema import OBJECTS
    from airflow_spot.rundir.values import FileEntry

    page = read("docs/contract.md")
    fields = {field.name for cls in (*OBJECTS.values(), FileEntry) for field in dataclasses.fields(cls)}
    assert sorted(name for name in fields - {"extra"} if f"`{name}`" not in page) == []


def test_public_names_are_documented() -> None:
    """Whatever a user imports is on some page, in the README or in the package's own docstring."""
    pages = read("README.md", "docs/**/*.md", "airflow_spot/*/__init__.py", "airflow_spot/errors.py")
    names = {name for module in PUBLIC for name in importlib.import_module(module).__all__}
    names = names - {"__version__"} | {"SpotTrainingOperator", "SpotDeadlineSensor"}
    assert sorted(name for name in names if not re.search(rf"\b{name}\b", pages)) == []
