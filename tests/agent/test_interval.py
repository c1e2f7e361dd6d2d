"""When to save."""

from __future__ import annotations

import pytest

from airflow_spot.agent.interval import FIRST_SAVE_SECONDS, optimal_seconds, save_interval_seconds


@pytest.mark.parametrize(("lifetime", "minutes"), [(3600, 7.5), (21600, 18.5)])
def test_daly_agrees_with_the_published_figures(lifetime, minutes):
    """Half a minute per save: 7.5 min at one reclaim an hour, 18.5 min at one in six hours."""
    assert optimal_seconds(30, lifetime) / 60 == pytest.approx(minutes, abs=0.6)


def test_a_save_longer_than_two_lifetimes_has_no_optimum():
    """Then the lifetime itself is the interval."""
    assert optimal_seconds(100, 50) == 50


def test_the_first_save_comes_soon():
    """Nothing is known yet, and the hazard is highest just after a start."""
    assert save_interval_seconds(fixed=None, saves=0, cost=None, market="spot") == FIRST_SAVE_SECONDS


def test_the_users_interval_is_never_overruled():
    """What was asked for holds from the first save on."""
    assert save_interval_seconds(fixed=7.0, saves=3, cost=100, market=None) == 7.0


def test_saves_never_take_more_than_half_of_the_time():
    """An expensive save on a short life does not follow itself at once."""
    assert save_interval_seconds(fixed=None, saves=1, cost=1500, market="spot") >= 3000


def test_dependable_capacity_is_saved_less_often():
    """The same save costs less often where reclaims do not happen."""
    spot, other = (save_interval_seconds(fixed=None, saves=1, cost=20, market=m) for m in ("spot", "on_demand"))
    assert spot < other
