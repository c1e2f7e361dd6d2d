"""``owner.json``, the lease: rewritten while somebody in Airflow waits; its age is the store's own time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_spot.rundir import codec
from airflow_spot.rundir.layout import OWNER
from airflow_spot.rundir.reading import read
from airflow_spot.rundir.values import OwnerLease

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_spot.rundir.store import Store


def renew(store: Store, lease: OwnerLease) -> None:
    """Write the lease anew: somebody waits."""
    store.put(OWNER, codec.dumps(lease))


def load(store: Store) -> tuple[OwnerLease, datetime] | None:
    """Return the lease and when it was renewed, or None where there is no readable one."""
    return read(store, OWNER, OwnerLease)


def age(store: Store, *, beside: str) -> float | None:
    """Return how many seconds older the lease is than another object, both by the store's clock.

    :param beside: the key of an object just written, such as the agent's own heartbeat.
    :return: None where one of the two is missing.
    """
    lease, other = store.head(OWNER), store.head(beside)
    return (other.modified - lease.modified).total_seconds() if lease and other else None
