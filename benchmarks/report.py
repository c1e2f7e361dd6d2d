"""A table and a ratio, printed alike by every benchmark."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping, Sequence


def median(values: Sequence[float]) -> str:
    """Return the median of samples with their range."""
    return f"{statistics.median(values):.4g} ({min(values):.4g}–{max(values):.4g}, n={len(values)})"


def show(title: str, unit: str, rows: Mapping[str, Sequence[float]]) -> None:
    """Print the medians of two or more alternatives, and what the first is of each other.

    :param rows: samples by name; the first is ours.
    """
    print(f"{title}  [{unit}]")
    width = max(map(len, rows))
    ours = None
    for name, values in rows.items():
        middle = statistics.median(values)
        ours = middle if ours is None else ours
        ratio = f"ours is {ours / middle:.3g} of it" if middle and name != next(iter(rows)) else ""
        print(f"  {name:<{width}}  {median(values):<36} {ratio}")
    print(f"  Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} CPUs\n")
