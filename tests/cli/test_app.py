"""The command line: words in, pictures or JSON and an exit code out."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta

import pytest
from typer.testing import CliRunner

from airflow_spot import __version__, cli
from airflow_spot.cli import app
from airflow_spot.errors import StoreDenied
from airflow_spot.rundir import layout, requests
from airflow_spot.rundir.values import Desired, Owner, Result

from .conftest import NOW, Place, a_beat, a_record, ago, reclaimed

HEAVY = ("airflow", "boto3", "moto", "numpy", "obstore", "rich")
SUCCEEDED = Result(outcome="SUCCEEDED", message="the training completed", generation=1, at=NOW)


def test_the_command_line_loads_nothing_heavy() -> None:
    """Help is there without Airflow, boto3, moto or rich having been imported."""
    code = (
        "import sys\nfrom airflow_spot.cli import app\nassert app.run(['--help']) == 0\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_without_typer_one_sentence_names_the_installation(monkeypatch, capsys) -> None:
    """The light base installation has no typer: the command says what to install."""
    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    assert cli.main([]) == 1
    assert "pip install 'airflow-provider-spot[localcloud]'" in capsys.readouterr().err


def test_version_and_help(capsys) -> None:
    """No arguments give the help; --version the version."""
    assert cli.main([]) == 0
    assert "promote" in capsys.readouterr().out
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"airflow-spot {__version__}\n"


@pytest.mark.parametrize("command", ["examples", "runs", "show", "watch", "promote", "stop", "orphans"])
def test_every_command_has_help_and_json(command: str) -> None:
    """Each subcommand explains itself, and can answer in JSON."""
    answer = CliRunner().invoke(app.app, [command, "--help"])
    assert answer.exit_code == 0
    assert "--json" in answer.output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["frob"], "No such command 'frob'"),
        (["show"], "Missing argument"),
        (["show", "a", "b"], "expected DAG_ID RUN_ID TASK_ID or one run directory, found 2 arguments: a b"),
        (["show", "memory://x/y/-1", "--map-index", "2"], "--map-index goes with DAG_ID RUN_ID TASK_ID"),
        (["show", "a", "b", "c", "--map-index", "x"], "Invalid value for '--map-index'"),
        (["runs", "--run-root", "bucket/prefix"], "run root 'bucket/prefix' is not an object store"),
        (["watch", "memory://x/y", "--every", "often"], "--every='often' is not a duration"),
        (["watch", "memory://x/y", "--every", "0s"], "--every=0s is too often"),
        (["orphans", "--older-than", "-1h"], "--older-than='-1h' is not a duration"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(place: Place, capsys, words: list[str], sentence: str) -> None:
    """Wrong arguments end with 2 and one line on stderr that says what was expected."""
    assert place(*words) == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert told.startswith("airflow-spot: ")
    assert told.count("\n") == 1


def test_no_run_root_anywhere(place: Place, capsys, monkeypatch) -> None:
    """Without a run root the three ways to give one are named."""
    monkeypatch.delenv("AIRFLOW_SPOT_RUN_ROOT", raising=False)
    monkeypatch.setattr("airflow_spot.config.setting", lambda option: None)
    assert place("runs") == 2
    assert "give --run-root s3://bucket/prefix, set AIRFLOW_SPOT_RUN_ROOT, or" in capsys.readouterr().err


def test_the_run_root_comes_from_option_environment_or_airflow(place: Place, capsys, monkeypatch) -> None:
    """The option wins over the environment, and that over Airflow's configuration."""
    place.put(a_record())
    monkeypatch.setattr("airflow_spot.config.setting", lambda option: place.uri)
    assert place("show", "final", "manual__1", "train", "--json") == 0
    monkeypatch.setattr("airflow_spot.config.setting", lambda option: "memory://other")
    monkeypatch.setenv("AIRFLOW_SPOT_RUN_ROOT", f"{place.uri}/")
    assert place("show", "final", "manual__1", "train", "--json") == 0
    monkeypatch.setenv("AIRFLOW_SPOT_RUN_ROOT", "memory://elsewhere")
    assert place("show", "final", "manual__1", "train", "--json", "--run-root", place.uri) == 0


def test_no_such_training_run(place: Place, capsys) -> None:
    """A training run that is not there ends with 3 and says where it was looked for."""
    assert place("show", "final", "manual__9", "train", "--run-root", place.uri) == 3
    assert f"no training run at {place.uri}/final/manual__9/train/-1" in capsys.readouterr().err


def test_what_the_store_refuses_is_told_with_exit_code_1(capsys) -> None:
    """An error of the store is one sentence and 1."""

    def denied(uri, access):
        raise StoreDenied("403 for s3://b/x; allow s3:GetObject")

    assert app.run(["show", "s3://b/x"], connect=denied) == 1
    assert capsys.readouterr().err == "airflow-spot: 403 for s3://b/x; allow s3:GetObject\n"


@pytest.mark.parametrize("words", [["final", "manual__1", "train"], ["final/manual__1/train/-1"], ["URI"]])
def test_show_takes_names_a_run_key_or_a_uri(place: Place, capsys, words: list[str]) -> None:
    """All ways to name a training run lead to the same one."""
    place.put(a_record(), a_beat())
    words = [word.replace("URI", f"{place.uri}/final/manual__1/train/-1/") for word in words]
    assert place("show", *words, "--run-root", place.uri) == 0
    shown = capsys.readouterr().out
    assert "training on spot, attempt 2" in shown
    assert "step 1700 of 5000" in shown


def test_show_json_holds_the_record_and_what_follows_from_it(place: Place, capsys) -> None:
    """--json gives the record as stored, the heartbeats with their age, slack and cost."""
    place.put(a_record(), a_beat())
    assert place("show", "final", "manual__1", "train", "--run-root", place.uri, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["slack_seconds"] == 720.0
    assert found["record"]["attempts"][0]["verdict"]["outcome"] == "RECLAIMED"
    assert found["heartbeats"]["2"]["age_seconds"] == 0.0
    assert found["cost"] == {"usd": pytest.approx(0.4025), "seconds": 1500.0, "estimated": True}


def test_show_of_a_mapped_task(place: Place, capsys) -> None:
    """--map-index names one trial of a mapped task."""
    owner = Owner(deployment="here", dag_id="final", run_id="manual__1", task_id="train", map_index=4)
    key = layout.run_key(dag_id="final", run_id="manual__1", task_id="train", map_index=4)
    place.put(a_record(run_key=key, owner=owner))
    assert place("show", "final", "manual__1", "train", "--map-index", "4", "--run-root", place.uri) == 0
    assert "final · manual__1 · train[4]" in capsys.readouterr().out


def test_runs_lists_the_newest_first(place: Place, capsys) -> None:
    """Every training run has a row; a run.json inside a checkpoint is none, an unreadable record says why."""
    older = place.put(a_record(result=SUCCEEDED))
    older.put("checkpoints/000000000001-a0001-abcd/data/run.json", b"{}")
    place.put(a_record(run_key="other/r/train/-1", began_at=ago(5)))
    place.root.put("broken/r/t/-1/run.json", b"[]")
    assert place("runs", "--run-root", place.uri, "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["run_key"] for row in rows] == ["other/r/train/-1", "final/manual__1/train/-1", "broken/r/t/-1"]
    assert [row["outcome"] for row in rows] == [None, "SUCCEEDED", None]
    assert rows[2]["standing"].startswith("cannot be read: ")


def test_runs_of_one_dag_that_are_open(place: Place, capsys) -> None:
    """A DAG's name and --open narrow the list."""
    place.put(a_record(result=SUCCEEDED))
    place.put(a_record(run_key="final/manual__2/train/-1"))
    place.put(a_record(run_key="other/r/train/-1"))
    assert place("runs", "final", "--open", "--run-root", place.uri) == 0
    shown = capsys.readouterr().out
    assert "final/manual__2/train/-1" in shown
    assert "manual__1" not in shown
    assert "other" not in shown


def test_runs_of_an_empty_run_root(place: Place, capsys) -> None:
    """An empty run root is said to be empty, and is no error."""
    assert place("runs", "--run-root", place.uri) == 0
    assert capsys.readouterr().out == f"no training runs at {place.uri}\n"


def test_watch_of_an_ended_training_run_gives_its_outcome(place: Place, capsys) -> None:
    """watch ends with 0 after a success and with 4 after anything else."""
    place.put(a_record(result=SUCCEEDED))
    assert place("watch", "final", "manual__1", "train", "--run-root", place.uri) == 0
    assert "ended SUCCEEDED" in capsys.readouterr().out
    failed = Result(outcome="USER_ERROR", message="exit code 1", generation=1)
    place.put(a_record(run_key="final/manual__2/train/-1", result=failed))
    assert place("watch", "final", "manual__2", "train", "--run-root", place.uri, "--json") == 4
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["record"]["result"]["outcome"] == "USER_ERROR"


def test_promote_posts_a_request_of_the_present_generation(place: Place, capsys) -> None:
    """promote leaves a request that names who asked, why, and the generation."""
    store = place.put(a_record(generation=3))
    words = ["promote", "final", "manual__1", "train", "--run-root", place.uri, "--why", "demo tomorrow"]
    assert place(*words) == 0
    assert "asked for a promotion to on_demand" in capsys.readouterr().out
    (request,) = requests.pending(store, ())
    assert (request.kind, request.generation, request.why, request.tier) == ("promote", 3, "demo tomorrow", None)
    assert request.at == NOW
    assert "@" in request.who


@pytest.mark.parametrize(
    ("tier", "sentence"),
    [
        ("spot", "--tier=spot is a spot tier; it can be promoted to: on_demand"),
        ("gold", "--tier=gold is no tier of this training run; it can be promoted to: on_demand"),
    ],
)
def test_promote_to_a_named_tier(place: Place, capsys, tier: str, sentence: str) -> None:
    """--tier names a dependable tier of the training run; another name is refused with those there are."""
    store = place.put(a_record())
    words = ["promote", "final", "manual__1", "train", "--run-root", place.uri, "--json"]
    assert place(*words, "--tier", "on_demand") == 0
    assert json.loads(capsys.readouterr().out)["request"]["tier"] == "on_demand"
    assert place(*words, "--tier", tier) == 2
    assert sentence in capsys.readouterr().err
    assert len(requests.pending(store, ())) == 1


def test_promote_of_a_spot_only_training_run_is_refused(place: Place, capsys) -> None:
    """Where all tiers are spot there is nothing to promote to."""
    record = a_record()
    place.put(a_record(spec={**record.spec, "tiers": record.spec["tiers"][:1]}))
    assert place("promote", "final", "manual__1", "train", "--run-root", place.uri) == 2
    assert "only spot tiers" in capsys.readouterr().err


def test_nothing_to_do_for_one_that_ended(place: Place, capsys) -> None:
    """promote and stop of an ended training run do nothing, say so, and end with 4."""
    store = place.put(a_record(result=SUCCEEDED, attempts=(reclaimed(),)))
    for command in ("promote", "stop"):
        assert place(command, "final", "manual__1", "train", "--run-root", place.uri) == 4
        assert "nothing to do: this training run has ended SUCCEEDED" in capsys.readouterr().out
    assert requests.pending(store, ()) == []


def test_promote_of_a_stopped_training_run(place: Place, capsys) -> None:
    """A stopped training run is not promoted."""
    place.put(a_record(desired=Desired(state="stopped", who="ada@host", why="wrong data")))
    assert place("promote", "final", "manual__1", "train", "--run-root", place.uri) == 4
    assert "this training run was stopped by ada@host: wrong data" in capsys.readouterr().out


def test_no_orphans(place: Place, capsys) -> None:
    """Where every lease is young nothing is listed."""
    place.put(a_record())
    assert place("orphans", "--run-root", place.uri) == 0
    assert "no orphans" in capsys.readouterr().out


def test_interval_of_watch_is_a_duration() -> None:
    """--every takes the one grammar of durations."""
    assert app._interval("2m") == timedelta(minutes=2)


def test_the_local_cloud_is_mounted(capsys) -> None:
    """Its own help and its own refusals come through."""
    assert app.run(["localcloud", "--help"]) == 0
    assert "--market" in capsys.readouterr().out
    assert app.run(["localcloud", "--market", "nothere", "--port", "0"]) == 2
    assert capsys.readouterr().err.startswith("airflow-spot: market 'nothere' cannot be read")


def test_the_local_cloud_needs_moto(capsys, monkeypatch) -> None:
    """Without moto the sentence says what to install."""
    monkeypatch.setattr("airflow_spot.cli.mount.find_spec", lambda name: None)
    assert app.run(["localcloud"]) == 2
    assert "pip install 'airflow-provider-spot[localcloud]'" in capsys.readouterr().err
