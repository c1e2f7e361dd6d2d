"""When to save: soon after the start, then at the interval that loses least. Pure.

Young and Daly: with ``cost`` seconds to save and ``lifetime`` seconds between reclaims, saving every
``sqrt(2 * cost * lifetime)`` seconds balances the time spent saving against the time lost at a reclaim. An interval
twice too long or too short costs little, so a guess of the lifetime is good enough.
"""

from __future__ import annotations

import math

FIRST_SAVE_SECONDS = 60.0
"""The hazard of a spot instance is highest just after its start: the first save does not wait for the interval."""
SHORTEST_SECONDS = 10.0
LONGEST_SECONDS = 3600.0
LIFETIME_SECONDS = {"spot": 3600.0, "on_demand": 86400.0}
"""Mean time between reclaims (or failures) to plan with: cautious for spot, where an hour is a bad day."""


def optimal_seconds(cost: float, lifetime: float) -> float:
    """Return Daly's interval between saves.

    :param cost: seconds that a save takes.
    :param lifetime: mean seconds between reclaims.
    """
    if cost >= 2 * lifetime:
        return lifetime
    ratio = cost / (2 * lifetime)
    return math.sqrt(2 * cost * lifetime) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost


def save_interval_seconds(*, fixed: float | None, saves: int, cost: float | None, market: str | None) -> float:
    """Return how long after the last save (or the start) the next one is due.

    :param fixed: what the user asked for; it is never overruled.
    :param saves: how many were made.
    :param cost: seconds the last ones took; the whole of it, since uploading competes with reading training data.
    :param market: ``spot``, ``on_demand`` or None where nothing says.
    """
    if fixed is not None:
        return fixed
    if not saves or cost is None:
        return FIRST_SAVE_SECONDS
    lifetime = LIFETIME_SECONDS.get(market or "spot", LIFETIME_SECONDS["spot"])
    # A save that takes longer than the interval would be followed by the next one at once.
    return min(max(optimal_seconds(cost, lifetime), 2 * cost, SHORTEST_SECONDS), LONGEST_SECONDS)
