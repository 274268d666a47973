"""Overlay plots of a spot check: the real runs' latency distributions and the simulated ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from calibrate.spot_comparison import LATENCIES, SpotCheck, samples
from sim.errors import UserError


def write_plot(check: SpotCheck, path: Path) -> None:
    """Draws the distributions of the real runs and of the simulation over each other, as PNG or SVG.

    Raises:
        UserError: the file cannot be written, or its ending is not one of the two.
    """
    if path.suffix not in (".png", ".svg"):
        raise UserError(f"--plot: {path}: the ending must be .png or .svg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7), layout="constrained")
    for axes, name in zip(figure.subplots(2, 2).flat, LATENCIES, strict=True):
        runs = [(f"live {i + 1}", repeat.live.record, "-") for i, repeat in enumerate(check.repeats)]
        for label, run, style in [*runs, ("simulated", check.simulated, "--")]:
            values, counts = samples(run, check.warm_up_ns)[name]
            order = np.argsort(values, kind="stable")
            if len(order):
                shares = np.cumsum(counts[order]) / counts.sum()
                axes.step(1e3 * values[order], shares, style, where="post", label=label)
        axes.set(title={"e2el": "E2E latency"}.get(name, name.upper()), xlabel="ms", ylabel="share", ylim=(0, 1))
        axes.grid(visible=True, alpha=0.3)
    figure.axes[0].legend()
    figure.suptitle(check.name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from None
