"""The lease, and its age by the store's own clock."""

from __future__ import annotations

from airflow_spot.rundir import owner
from airflow_spot.rundir.values import Owner, OwnerLease

LEASE = OwnerLease(owner=Owner(deployment="d", dag_id="d", run_id="r", task_id="t"), generation=1)


def test_a_lease_is_renewed(memory, clock):
    """The last one stands, with the store's time."""
    assert owner.load(memory) is None
    owner.renew(memory, LEASE)
    owner.renew(memory, LEASE)

    assert owner.load(memory) == (LEASE, clock())


def test_its_age_is_store_time_against_store_time(memory, clock):
    """Beside something just written; None where one of the two is missing."""
    owner.renew(memory, LEASE)
    assert owner.age(memory, beside="beat") is None
    clock.forward(hours=6)
    memory.put("beat", b"")

    assert owner.age(memory, beside="beat") == 6 * 3600
    memory.delete(["owner.json"])
    assert owner.age(memory, beside="beat") is None


def test_a_malformed_lease_is_none(memory):
    """Whoever reads it decides what no lease means."""
    memory.put("owner.json", b"[]")

    assert owner.load(memory) is None
