"""Market scripts: what they say, and what happens by them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_spot.errors import ConfigurationError
from airflow_spot.localcloud.market import BUILT_IN, load, parse
from airflow_spot.testing import Behaviour

from .conftest import Cloud, market


class TestScripts:
    @pytest.mark.parametrize("name", sorted(path.stem for path in BUILT_IN.glob("*.toml")))
    def test_the_built_in_ones_can_be_read(self, name: str) -> None:
        """Each is found by its bare name."""
        assert load(name).markets

    def test_a_missing_file_names_the_built_in_ones(self, tmp_path: Path) -> None:
        """One sentence says what there is."""
        with pytest.raises(ConfigurationError, match="give a TOML file or one of: calm, demo, drought, reclaims"):
            load(tmp_path / "none.toml")

    @pytest.mark.parametrize(
        ("table", "sentence"),
        [
            ({"markets": []}, "the script does not know markets; it knows: market"),
            ({"market": [{"queue": "q", "hots": 1}]}, "does not know hots; it knows: .*hosts"),
            ({"market": [{}]}, "needs either queue or compute_environment"),
            ({"market": {"queue": "q"}}, "two brackets"),
            ({"market": [{"queue": "q"}, {"queue": "q"}]}, "has two .* tables"),
            ({"market": [{"queue": "q", "hosts": -1}]}, "a whole number from 0"),
            ({"market": [{"queue": "q", "starting": -1}]}, "a number of seconds, not negative"),
            ({"market": [{"queue": "q", "reclaim": [{"job": 1}]}]}, "needs either after .* or at"),
            ({"market": [{"queue": "q", "reclaim": [{"at": 1, "job": 1}]}]}, "job goes with after"),
            ({"market": [{"queue": "q", "failure": [{"after": 1, "notice": 3}]}]}, "does not know notice"),
            ({"market": [{"queue": "q", "drought": [{}]}]}, "needs from and to .* or from_job"),
            ({"market": [{"queue": "q", "drought": [{"form": 1}]}]}, "does not know form"),
            ({"market": [{"queue": "q", "slow_start": [{"job": 0}]}]}, "a whole number from 1"),
            ({"market": [{"queue": "q", "trace": {"file": "f"}}]}, "needs zone"),
            ({"market": [{"queue": "q", "trace": {"file": "none", "zone": "z"}}]}, "cannot be read"),
        ],
    )
    def test_what_is_wrong_is_named(self, table: dict[str, Any], sentence: str) -> None:
        """Unknown keys and impossible values are refused by name."""
        with pytest.raises(ConfigurationError, match=sentence):
            parse(table)

    def test_not_toml(self, tmp_path: Path) -> None:
        """A file that is not TOML is called so."""
        (tmp_path / "bad.toml").write_text("[[market")
        with pytest.raises(ConfigurationError, match="is not TOML"):
            load(tmp_path / "bad.toml")

    def test_an_unknown_zone_names_the_known(self, tmp_path: Path) -> None:
        """The zones of the trace are listed."""
        (tmp_path / "trace.json").write_text(json.dumps({"gap_seconds": 60, "zones": {"a": "1", "b": "0"}}))
        (tmp_path / "m.toml").write_text('[[market]]\nqueue="q"\ntrace={file="trace.json", zone="c"}')
        with pytest.raises(ConfigurationError, match="no zone 'c'; it has: a, b"):
            load(tmp_path / "m.toml")


class TestReclaims:
    def test_the_story_of_the_demo(self) -> None:
        """The first job goes 12 s after its start, warned 4 s before; the second after 10 s without a word; then
        there is no spot, while on-demand has hosts.
        """
        cloud = Cloud(market=load("demo"))
        began = cloud.clock.now()
        first = cloud.running_job()
        cloud.advance(14.5, step=0.5)
        (notice,) = cloud.running(first).notices
        assert cloud.status(first) == "FAILED"
        started = cloud.describe(first)["startedAt"] / 1000
        assert notice.timestamp() == pytest.approx(started + 12, abs=0.5)
        assert cloud.clock.now() > began
        second = cloud.running_job()
        cloud.advance(12)
        assert (cloud.status(second), cloud.running(second).notices) == ("FAILED", [])
        third, dependable = cloud.submit(), cloud.submit("on-demand")
        cloud.advance(30)
        assert (cloud.status(third), cloud.status(dependable)) == ("RUNNABLE", "RUNNING")
        assert cloud.describe(third)["statusReason"].startswith("CAPACITY:")

    def test_the_notice_comes_before_the_end(self) -> None:
        """The container learns of it, goes on, and is killed at the time that it was told."""
        cloud = Cloud(market=market({"queue": "spot", "reclaim": [{"job": 1, "after": 100, "notice": 20}]}))
        job = cloud.running_job()
        cloud.advance(78)
        assert cloud.running(job).notices == []
        cloud.advance(3)
        assert (len(cloud.running(job).notices), cloud.status(job)) == (1, "RUNNING")
        cloud.advance(20)
        assert (cloud.running(job).signals, cloud.status(job)) == (["SIGKILL"], "FAILED")

    def test_a_notice_before_the_container_is_not_lost(self) -> None:
        """What was announced while the job was STARTING is in the metadata when it runs."""
        table = {"queue": "spot", "starting": 20, "reclaim": [{"at": 30, "notice": 20}]}
        cloud = Cloud(market=market(table))
        job = cloud.submit()
        cloud.advance(25)
        assert (cloud.status(job), len(cloud.running(job).notices)) == ("RUNNING", 1)

    def test_only_the_job_that_is_named(self) -> None:
        """Jobs are counted by their starts on the queue."""
        cloud = Cloud(market=market({"queue": "spot", "reclaim": [{"job": 2, "after": 5, "notice": 0}]}))
        first, second = cloud.submit(), cloud.submit()
        cloud.advance(15)
        assert (cloud.status(first), cloud.status(second)) == ("RUNNING", "FAILED")

    def test_every_job_without_a_number(self) -> None:
        """Each start has its own time."""
        cloud = Cloud(market=market({"queue": "spot", "reclaim": [{"after": 5, "notice": 0}]}))
        for _ in range(2):
            job = cloud.running_job()
            cloud.advance(8)
            assert cloud.status(job) == "FAILED"

    def test_at_a_time_of_the_cloud(self) -> None:
        """``at`` takes every host of the market, with the notice before it."""
        cloud = Cloud(market=market({"queue": "spot", "reclaim": [{"at": 30, "notice": 10}]}))
        jobs = [cloud.submit(), cloud.submit()]
        other = cloud.submit("on-demand")
        cloud.advance(22)
        assert [len(cloud.running(job).notices) for job in jobs] == [1, 1]
        cloud.advance(12)
        assert [cloud.status(job) for job in [*jobs, other]] == ["FAILED", "FAILED", "RUNNING"]
        later = cloud.running_job()
        cloud.advance(60)
        assert cloud.status(later) == "RUNNING"

    def test_a_container_that_ends_in_time_ends_as_itself(self) -> None:
        """Who leaves before the host goes has an exit code; EC2 still tells of the reclaim afterwards."""
        cloud = Cloud(market=market({"queue": "spot", "reclaim": [{"after": 20, "notice": 10}]}))
        job = cloud.running_job()
        cloud.advance(12)
        cloud.finish(job, 0)
        cloud.advance(20)
        assert (cloud.status(job), cloud.describe(job)["statusReason"]) == (
            "SUCCEEDED",
            "Essential container in task exited",
        )
        instance = cloud.client("ec2").describe_instances()["Reservations"][0]["Instances"][0]
        assert instance["StateReason"]["Code"] == "Server.SpotInstanceTermination"

    def test_the_dying_system_may_send_sigterm(self) -> None:
        """With ``sigterm`` the container is signalled shortly before, and its exit code is what Batch shows."""
        loss = {"after": 20, "notice": 10, "sigterm": 2}
        cloud = Cloud(market=market({"queue": "spot", "reclaim": [loss]}))
        job = cloud.running_job()
        cloud.advance(25)
        seen = cloud.describe(job)
        assert (cloud.running(job).signals, seen["attempts"][0]["container"]["exitCode"]) == (["SIGTERM"], 143)

    def test_a_host_that_is_not_spot_is_never_reclaimed(self) -> None:
        """There the same script is a failure: no notice, and another evidence."""
        cloud = Cloud(market=market({"queue": "on-demand", "reclaim": [{"after": 10, "notice": 5}]}))
        job = cloud.running_job("on-demand")
        cloud.advance(12)
        assert (cloud.status(job), cloud.running(job).notices) == ("FAILED", [])
        instance = cloud.client("ec2").describe_instances()["Reservations"][0]["Instances"][0]
        assert instance["StateReason"]["Code"] == "Client.UserInitiatedShutdown"

    def test_batch_may_notice_late(self) -> None:
        """``detection`` passes between the end of the host and that of the job."""
        table = {"queue": "spot", "detection": 60, "reclaim": [{"after": 10, "notice": 0}]}
        cloud = Cloud(market=market(table))
        job = cloud.running_job()
        cloud.advance(40)
        assert (cloud.running(job).signals, cloud.status(job)) == (["SIGKILL"], "RUNNING")
        cloud.advance(40)
        assert cloud.status(job) == "FAILED"


class TestCapacity:
    def test_a_drought_by_the_clock(self) -> None:
        """No host between its two times."""
        cloud = Cloud(market=market({"queue": "spot", "drought": [{"from": 0, "to": 20}]}))
        job = cloud.submit()
        cloud.advance(19)
        assert cloud.status(job) == "RUNNABLE"
        cloud.advance(5)
        assert cloud.status(job) == "RUNNING"

    def test_a_drought_that_takes_what_runs(self) -> None:
        """``takes_running`` reclaims, with the notice."""
        dry = {"from": 20, "to": 60, "takes_running": True, "notice": 5}
        cloud = Cloud(market=market({"queue": "spot", "drought": [dry]}))
        job = cloud.running_job()
        cloud.advance(18)
        assert (len(cloud.running(job).notices), cloud.status(job)) == (1, "RUNNING")
        cloud.advance(8)
        assert cloud.status(job) == "FAILED"

    def test_hosts_are_counted(self) -> None:
        """With one host the second job waits, and is not called blocked."""
        cloud = Cloud(market=market({"queue": "spot", "hosts": 1}))
        first, second = cloud.submit(), cloud.submit()
        cloud.advance(10)
        assert (cloud.status(first), cloud.status(second)) == ("RUNNING", "RUNNABLE")
        assert "statusReason" not in cloud.describe(second)
        cloud.finish(first)
        cloud.advance(3)
        assert cloud.status(second) == "RUNNING"

    def test_a_slow_start(self) -> None:
        """The first job takes longer in RUNNABLE and STARTING, the second does not."""
        slow = {"job": 1, "runnable": 10, "starting": 20}
        cloud = Cloud(market=market({"queue": "spot", "slow_start": [slow]}))
        cloud.script(Behaviour())
        first = cloud.submit()
        cloud.advance(10)
        assert cloud.status(first) == "RUNNABLE"
        cloud.advance(15)
        assert cloud.status(first) == "STARTING"
        cloud.advance(10)
        assert cloud.status(first) == "RUNNING"
        assert cloud.status(cloud.running_job()) == "RUNNING"

    def test_a_market_of_a_compute_environment(self) -> None:
        """It holds for whatever queue the job came by."""
        table = {"compute_environment": "spot", "reclaim": [{"after": 5, "notice": 0}]}
        cloud = Cloud(market=market(table))
        job = cloud.running_job()
        cloud.advance(8)
        assert cloud.status(job) == "FAILED"


class TestTraces:
    def test_a_recorded_trace(self, tmp_path: Path) -> None:
        """``1`` gives hosts, ``0`` takes them, ``?`` is as the probe before."""
        (tmp_path / "trace.json").write_text(json.dumps({"gap_seconds": 600, "zones": {"z": "0011?001"}}))
        script = 'queue="spot"\ntrace={file="trace.json", zone="z", start=1, seconds_per_probe=10, notice=2}'
        (tmp_path / "m.toml").write_text(f"[[market]]\n{script}")
        cloud = Cloud(market=load(tmp_path / "m.toml"))
        job = cloud.submit()
        cloud.advance(9)
        assert cloud.status(job) == "RUNNABLE"
        cloud.advance(26)
        assert cloud.status(job) == "RUNNING"
        cloud.advance(10)
        assert cloud.status(job) == "FAILED"
        again = cloud.submit()
        cloud.advance(10)
        assert cloud.status(again) == "RUNNABLE"
        cloud.advance(20)
        assert cloud.status(again) == "RUNNING"
