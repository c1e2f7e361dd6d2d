"""Train a small network on handwritten digits; an interrupted training ends with the very same weights.

All that decides the next step is in the checkpoint: weights, momentum, the order of the samples, the place in it
and the state of the random generator; the learning rate follows from the step. Run it under ``spot-agent run``,
or by itself on a laptop::

    python train_digits.py --epochs 5 --output model
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from airflow_spot.agent import attach

Array = NDArray[np.float64]
Arrays = dict[str, Array]

TEST_SAMPLES = 360


@dataclass(frozen=True, slots=True)
class Digits:
    """1,797 pictures of 8 by 8 grey values, split once and for all."""

    train_x: Array
    train_y: NDArray[np.int64]
    test_x: Array
    test_y: NDArray[np.int64]


@dataclass(slots=True)
class State:
    """Everything the next step depends on."""

    weights: Arrays
    velocity: Arrays
    order: NDArray[np.int64]
    rng: np.random.Generator
    step: int = 0


def digits() -> Digits:
    """Return the data set; the split does not depend on the training's seed."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    x, y = data.data[order] / 16.0, data.target[order].astype(np.int64)
    return Digits(x[TEST_SAMPLES:], y[TEST_SAMPLES:], x[:TEST_SAMPLES], y[:TEST_SAMPLES])


def begin(*, seed: int, hidden: int, samples: int) -> State:
    """Return the state before the first step."""
    rng = np.random.default_rng(seed)
    weights = {
        "w1": rng.normal(0.0, math.sqrt(2 / 64), (64, hidden)),
        "b1": np.zeros(hidden),
        "w2": rng.normal(0.0, math.sqrt(2 / hidden), (hidden, 10)),
        "b2": np.zeros(10),
    }
    velocity = {name: np.zeros_like(value) for name, value in weights.items()}
    return State(weights, velocity, rng.permutation(samples), rng)


def forward(weights: Arrays, x: Array) -> tuple[Array, Array]:
    """Return the hidden layer and the probabilities of the ten digits."""
    hidden = np.maximum(x @ weights["w1"] + weights["b1"], 0.0)
    logits = hidden @ weights["w2"] + weights["b2"]
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return hidden, powers / powers.sum(axis=1, keepdims=True)


def gradients(weights: Arrays, x: Array, y: NDArray[np.int64]) -> tuple[float, Arrays]:
    """Return the loss and its gradient for every weight."""
    hidden, probabilities = forward(weights, x)
    rows = np.arange(len(y))
    loss = -float(np.log(probabilities[rows, y] + 1e-12).mean())
    at_logits = probabilities
    at_logits[rows, y] -= 1.0
    at_logits /= len(y)
    at_hidden = (at_logits @ weights["w2"].T) * (hidden > 0)
    return loss, {
        "w1": x.T @ at_hidden,
        "b1": at_hidden.sum(axis=0),
        "w2": hidden.T @ at_logits,
        "b2": at_logits.sum(axis=0),
    }


def accuracy(weights: Arrays, x: Array, y: NDArray[np.int64]) -> float:
    """Return the share of pictures that are read rightly."""
    return float((forward(weights, x)[1].argmax(axis=1) == y).mean())


def digest(weights: Arrays) -> str:
    """Return a short name of the exact weights: two trainings are the same where these are."""
    return hashlib.sha256(b"".join(value.tobytes() for value in weights.values())).hexdigest()[:12]


def train_step(state: State, data: Digits, options: argparse.Namespace) -> float:
    """Take one step in place and return its loss."""
    per_epoch = steps_per_epoch(len(data.train_y), options.batch_size)
    place = state.step % per_epoch
    if place == 0 and state.step:
        state.order = state.rng.permutation(len(data.train_y))
    batch = state.order[place * options.batch_size : (place + 1) * options.batch_size]
    loss, slope = gradients(state.weights, data.train_x[batch], data.train_y[batch])
    done = state.step / (per_epoch * options.epochs)
    rate = options.learning_rate * 0.5 * (1.0 + math.cos(math.pi * done))
    for name in state.weights:
        state.velocity[name] = options.momentum * state.velocity[name] - rate * slope[name]
        state.weights[name] += state.velocity[name]
    state.step += 1
    return loss


def steps_per_epoch(samples: int, batch_size: int) -> int:
    """Return how many batches a pass over the data has; the last may be smaller."""
    return math.ceil(samples / batch_size)


def save(state: State, directory: Path, options: argparse.Namespace) -> None:
    """Write a checkpoint: arrays without pickle, the rest as JSON."""
    arrays: dict[str, Any] = {f"weights_{name}": value for name, value in state.weights.items()}
    arrays |= {f"velocity_{name}": value for name, value in state.velocity.items()}
    np.savez(directory / "state.npz", order=state.order, **arrays)
    rest = {"step": state.step, "rng": state.rng.bit_generator.state, "options": what_matters(options)}
    (directory / "state.json").write_text(json.dumps(rest))


def load(directory: Path, options: argparse.Namespace) -> State:
    """Return the state a checkpoint holds.

    :raises SystemExit: it was written with other options, so that the result would be neither training.
    """
    rest = json.loads((directory / "state.json").read_text())
    if rest["options"] != what_matters(options):
        raise SystemExit(
            f"the checkpoint was made with {rest['options']}, this training asks for {what_matters(options)}; "
            "use the same options, or clear the task with on_clear='fresh'"
        )
    with np.load(directory / "state.npz", allow_pickle=False) as arrays:
        weights = {name: arrays[f"weights_{name}"] for name in ("w1", "b1", "w2", "b2")}
        velocity = {name: arrays[f"velocity_{name}"] for name in weights}
        order = arrays["order"]
    rng = np.random.default_rng()
    rng.bit_generator.state = rest["rng"]
    return State(weights, velocity, order, rng, rest["step"])


def what_matters(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options that change the weights; the pace does not."""
    return {name: value for name, value in vars(options).items() if name not in ("pace", "output")}


def train(options: argparse.Namespace) -> dict[str, float]:
    """Train to the end and return the metrics."""
    run = attach()
    data = digits()
    total = steps_per_epoch(len(data.train_y), options.batch_size) * options.epochs
    if run.resume_dir is None:
        state = begin(seed=options.seed, hidden=options.hidden, samples=len(data.train_y))
    else:
        state = load(run.resume_dir, options)
    loss = math.nan
    while state.step < total:
        loss = train_step(state, data, options)
        time.sleep(options.pace)
        run.progress(step=state.step, total_steps=total)
        if run.should_save:
            with tempfile.TemporaryDirectory() as scratch:
                save(state, Path(scratch), options)
                run.save(Path(scratch), step=state.step, total_steps=total)
            if run.stopping:
                print(f"asked to leave at step {state.step}; all of it is saved", flush=True)
                raise SystemExit(0)
        if state.step % (total // options.epochs) == 0:
            print(f"step {state.step}/{total}  loss {loss:.4f}  weights {digest(state.weights)}", flush=True)
    metrics = {"accuracy": round(accuracy(state.weights, data.test_x, data.test_y), 6)}
    print(f"done: {metrics}", flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    model: dict[str, Any] = {**state.weights}
    np.savez(options.output / "model.npz", **model)
    run.finish(metrics=metrics, output=options.output)
    return metrics


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=30, help="passes over the data (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=32, help="width of the hidden layer (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds to sleep after each step, to make it last")
    parser.add_argument("--output", type=Path, default=Path("model"), help="directory for model.npz")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    train(parse())
