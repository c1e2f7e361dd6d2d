"""Evaluate a model that ``train_digits.py`` made: accuracy on the pictures it has not seen, digit by digit.

``--artifacts`` is a directory, or the address that the training task's result names (``s3://...``).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from train_digits import Arrays, accuracy, digits

from airflow_spot.agent import attach


def load_model(artifacts: str, scratch: Path) -> Arrays:
    """Return the weights, fetched first where they lie in an object store.

    :raises SystemExit: there is no model.
    """
    model = Path(artifacts) / "model.npz"
    if "://" in artifacts:
        model = fetch_model(artifacts, scratch)
    if not model.is_file():
        raise SystemExit(f"no model.npz in {artifacts}; give the 'artifacts' of the training task's result")
    with np.load(model, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def fetch_model(artifacts: str, scratch: Path) -> Path:
    """Download the model by the manifest beside it and return where it is now."""
    from airflow_spot.rundir.store import open_store

    store = open_store(artifacts.rstrip("/"))
    found = [meta.key for meta in store.list() if meta.key.endswith("model.npz")]
    model = scratch / "model.npz"
    if found:
        store.download(found[0], model)
    return model


def evaluate(artifacts: str) -> dict[str, float]:
    """Report the accuracy and return it."""
    run = attach()
    with tempfile.TemporaryDirectory() as scratch:
        weights = load_model(artifacts, Path(scratch))
    data = digits()
    metrics = {"accuracy": round(accuracy(weights, data.test_x, data.test_y), 6)}
    for digit in range(10):
        chosen = data.test_y == digit
        metrics[f"accuracy_{digit}"] = round(accuracy(weights, data.test_x[chosen], data.test_y[chosen]), 6)
    print(f"evaluation of {len(data.test_y)} pictures: {metrics}", flush=True)
    run.finish(metrics=metrics)
    return metrics


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Evaluate a model of handwritten digits.")
    parser.add_argument("--artifacts", required=True, help="directory or address that holds model.npz")
    evaluate(parser.parse_args().artifacts)
