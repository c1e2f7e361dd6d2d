"""A real ``airflow standalone`` on SQLite, in a directory of its own, driven by its REST API."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from processes import Child, StartError, free_port

_LEFT_OUT = ("AIRFLOW", "_AIRFLOW", "AWS_", "OPENBLAS_", "OMP_", "MKL_", "BLIS_", "NPY_", "VECLIB_")
"""Jobs of the local cloud do not see the shell's choice of a BLAS kernel; nor must what is compared with them."""
COMPONENTS = ("metadatabase", "scheduler", "triggerer", "dag_processor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Airflow's ports; two stacks on one machine need different ones for all three."""

    api: int = field(default_factory=free_port)
    scheduler_logs: int = field(default_factory=free_port)
    triggerer_logs: int = field(default_factory=free_port)


def clean_environment() -> dict[str, str]:
    """Return this process's environment without what would point Airflow or AWS clients elsewhere, or change sums."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_LEFT_OUT)}
    here = str(Path(sys.executable).parent)
    kept["PATH"] = os.pathsep.join([here, kept.get("PATH", os.defpath)])
    kept["NO_PROXY"] = kept["no_proxy"] = "127.0.0.1,localhost"
    if sys.platform == "darwin":
        # Forked workers crash in the system's proxy look-up otherwise.
        kept |= {"NO_PROXY": "*", "no_proxy": "*", "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES"}
    return kept


def environment(home: Path, dags: Path, ports: Ports, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of Airflow's processes."""
    address = f"http://127.0.0.1:{ports.api}"
    return {
        **clean_environment(),
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(ports.api),
        # Without it workers still call the default port.
        "AIRFLOW__API__BASE_URL": address,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
        "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(ports.scheduler_logs),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(ports.triggerer_logs),
        **extra,
    }


class Standalone:
    """An Airflow that is being started, runs, or was stopped.

    :param extra: further environment: connections, Variables, configuration.
    """

    def __init__(self, home: Path, dags: Path, *, ports: Ports, extra: Mapping[str, str]) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.address = f"http://127.0.0.1:{ports.api}"
        self._token = ""
        self._child = Child(
            "Airflow",
            [sys.executable, "-m", "airflow", "standalone"],
            env=environment(home, dags, ports, extra),
            log=home.parent / "airflow.log",
            cwd=home,
        )

    def wait_until_ready(
        self, dag_ids: Sequence[str], *, seconds: float = 180.0, tick: Callable[[], None] = lambda: None
    ) -> None:
        """Return once every component is healthy and the DAGs are there.

        :param tick: called about once a second.
        :raises StartError: Airflow ended, or it takes longer.
        """
        end = time.monotonic() + seconds
        while not (self._healthy() and all(self._knows(dag_id) for dag_id in dag_ids)):
            self._child.check()
            if time.monotonic() > end:
                raise StartError(
                    f"Airflow was not ready within {seconds:.0f} s{self._import_errors()}; "
                    f"what it says is in {self._child.log}"
                )
            tick()
            time.sleep(1.0)

    def _healthy(self) -> bool:
        try:
            health = self._send("GET", "/api/v2/monitor/health")
        except OSError:
            return False
        return all(health.get(name, {}).get("status") == "healthy" for name in COMPONENTS)

    def _knows(self, dag_id: str) -> bool:
        try:
            self.call("GET", f"/api/v2/dags/{dag_id}")
        except OSError:
            return False
        return True

    def _import_errors(self) -> str:
        try:
            errors = self.call("GET", "/api/v2/importErrors")["import_errors"]
        except (OSError, KeyError):
            return ""
        return "".join(f"; {error['filename']}: {error['stack_trace'].strip().splitlines()[-1]}" for error in errors)

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request to the REST API and return its answer.

        :raises urllib.error.HTTPError: the API refused it.
        :raises OSError: no answer.
        """
        if not self._token:
            self._token = str(self._send("GET", "/auth/token")["access_token"])
        return self._send(method, path, body, token=self._token)

    def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, token: str = ""
    ) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        request = urllib.request.Request(  # noqa: S310 - our own http address
            self.address + path, data=data, headers=headers, method=method
        )
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as reply:
            return dict(json.loads(reply.read() or b"{}"))

    def unpause(self, dag_id: str) -> None:
        """Let a DAG's runs be scheduled."""
        self.call("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": False})

    def trigger(self, dag_id: str, run_id: str, conf: Mapping[str, Any]) -> None:
        """Start a DAG run."""
        body = {"dag_run_id": run_id, "logical_date": None, "conf": dict(conf)}
        self.call("POST", f"/api/v2/dags/{dag_id}/dagRuns", body)

    def state(self, dag_id: str, run_id: str) -> str:
        """Return a DAG run's state."""
        return str(self.call("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}")["state"])

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str]:
        """Return the state of each task, mapped ones with their index."""
        found = self.call("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        return {
            f"{task['task_id']}[{task['map_index']}]" if task["map_index"] >= 0 else task["task_id"]: task["state"]
            or "–"
            for task in found
        }

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """Return what a task returned, or None."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}?deserialize=true"
        try:
            value = self.call("GET", path)["value"]
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise
        return json.loads(value) if isinstance(value, str) and value[:1] in "[{" else value

    def stop(self) -> None:
        """End every process of it; ``standalone`` itself would leave its children behind."""
        self._child.stop()
