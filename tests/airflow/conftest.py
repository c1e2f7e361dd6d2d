"""One local cloud and one Airflow database for all tests of this folder: together about 20 s, once."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from airflow_spot.localcloud import LocalCloud

TRAINER = """
    import pathlib, sys, time
    from airflow_spot.agent import attach

    run, total, pace = attach(), int(sys.argv[1]), float(sys.argv[2])
    state = run.resume_dir / "step" if run.resume_dir else None
    first = int(state.read_text()) if state and state.exists() else 0
    for step in range(first + 1, total + 1):
        time.sleep(pace)
        run.progress(step=step, total_steps=total)
        if step % 5 == 0 or run.stopping:
            place = pathlib.Path("saved")
            place.mkdir(exist_ok=True)
            (place / "step").write_text(str(step))
            run.save(place, step=step, total_steps=total)
        if run.stopping:
            break
    else:
        run.finish(metrics={"first": first, "last": total})
"""


@pytest.fixture(scope="session")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    """A local cloud whose jobs are processes."""
    from airflow_spot.localcloud import LocalCloud

    with LocalCloud(directory=tmp_path_factory.mktemp("jobs")) as cloud:
        yield cloud


@pytest.fixture(autouse=True)
def led_to_the_cloud(cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the environment lead Airflow to the local cloud, for one test of this folder at a time."""
    from airflow_spot import session

    for name, value in cloud.variables().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AIRFLOW__AIRFLOW_SPOT__HEARTBEAT_INTERVAL", "1")
    session.forget()
    yield
    session.forget()


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Airflow's database; making it costs about ten seconds."""
    from airflow.utils import db

    db.initdb()


@pytest.fixture(scope="session")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trainer that counts, with its place in the checkpoint: ``python trainer.py STEPS SECONDS_PER_STEP``."""
    path = tmp_path_factory.mktemp("trainer") / "trainer.py"
    path.write_text(textwrap.dedent(TRAINER))
    return path


@pytest.fixture
def command(trainer: Path) -> Callable[..., list[str]]:
    """The command of a training of so many steps."""
    return lambda steps, pace=0.02: [sys.executable, str(trainer), str(steps), str(pace)]


@pytest.fixture
def test_dag(cloud: LocalCloud, database: None) -> Callable[[Any], Any]:
    """Run a DAG as ``dag.test()`` does, and return the DAG run."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

    def run(dag: Any, **options: Any) -> Any:
        DagBundlesManager().sync_bundles_to_db()
        bag = DagBag(dag_folder=os.devnull, bundle_path=None, bundle_name="dags-folder")
        bag.bag_dag(dag=dag)
        sync_bag_to_db(bag, "dags-folder", None)
        return dag.test(**options)

    return run
