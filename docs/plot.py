"""Draws the figures of `radixgate demo --json FILE` for the README: `python docs/plot.py FILE OUT.svg`."""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "radixgate"

from matplotlib import pyplot  # noqa: E402  (the backend comes first)

COLOURS = {"round_robin": "#c2620f", "cost": "#1f8a5b"}
NAMES = {"round_robin": "round robin", "cost": "radixgate (cost)"}


def draw(source: Path, target: Path) -> None:
    """Draw the share of cached tokens after each request, and the time to the first token, of both policies."""
    result = json.loads(source.read_text(encoding="utf-8"))
    figure, (ratios, times) = pyplot.subplots(1, 2, figsize=(10, 3.6), width_ratios=(3, 2))
    for policy, run in result["runs"].items():
        after_each = [100 * ratio for ratio in run["hit_ratio_after_each_request"]]
        ratios.plot(range(1, len(after_each) + 1), after_each, color=COLOURS[policy], linewidth=2.2)
        ratios.annotate(
            f"{NAMES[policy]}: {after_each[-1]:.0f} %",
            (len(after_each), after_each[-1]),
            xytext=(-6, 7),
            textcoords="offset points",
            horizontalalignment="right",
            color=COLOURS[policy],
        )
    ratios.set_title("Prompt tokens from the cache, so far")
    ratios.set_xlabel("requests")
    ratios.set_ylabel("%")
    ratios.set_ylim(0, 100)
    width = 0.38
    for number, (policy, run) in enumerate(result["runs"].items()):
        values = [run["all"]["ttft_ms_p50"], run["all"]["ttft_ms_p95"]]
        bars = times.bar([at + number * width for at in range(2)], values, width, color=COLOURS[policy])
        times.bar_label(bars, [f"{value:,.0f}" for value in values], fontsize=8.5)
    times.set_xticks([at + width / 2 for at in range(2)], ["median", "95th percentile"])
    times.set_title("Time to the first token, ms")
    times.margins(y=0.12)
    for axes in (ratios, times):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
        axes.set_axisbelow(True)
    settings = result["settings"]
    figure.text(
        0.01,
        0.01,
        f"make demo: {result['runs']['cost']['all']['requests']} requests of two tenants, {settings['sessions']} "
        f"conversations each; {settings['workers']} embedded workers on {result['machine']['cores']} CPU cores. "
        "Compare ratios, not times.",
        fontsize=8,
        color="#5b6683",
    )
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
