"""Tables of the figures, beside their targets."""

from collections.abc import Iterator, Mapping

from rich.table import Table

from tests.benchmarks.index import scale
from tests.benchmarks.index.match import COPY, SIZES
from tests.benchmarks.report import new_table, number

Figures = Mapping[str, float]
Runs = Mapping[str, Figures]

MATCH_US, SCRIPT_US, SEEN_MS, STOPPED_MS, RUN_BYTES = 10.0, 25.0, 5.0, 20.0, 12.0
"""Targets: a match of 256 blocks, a script in the server, a change seen at p99, a standstill, bytes of a block."""

CHANGES = {
    "empty": "an empty script",
    "predict_turn": "predict a session's next turn, 8 blocks",
    "record_turn": "record it",
    "record_new": "256 blocks, of which 192 are another's beginning",
    "record_again": "the same again, from the root",
    "record_another_worker": "another worker, from the root",
    "predict": "predict such a one",
    "withdraw": "withdraw",
    "shorten": "shorten to 192",
    "extension": "4 blocks more, as events say it",
}


def ratios(figures: Figures, against: Figures) -> dict[str, float]:
    """Return the ratios of the medians that both sides have."""
    return {
        name: value / against[name]
        for name, value in figures.items()
        if name.endswith("_us_p50") and against.get(name, 0) > 0
    }


def tables(runs: Runs, sizes: tuple[int, ...]) -> Iterator[Table]:
    """Yield a table for each measurement."""
    ours = runs[COPY]
    yield _match(runs)
    yield _changes(ours)
    yield _reading(ours)
    yield _memory(ours)
    yield _growth(ours, sizes)
    yield scale.table(
        {name.removeprefix("scale_"): v for name, v in ours.items() if name.startswith("scale_")}
    )


def _match(runs: Runs) -> Table:
    right = [f"{size}: {name}" for size in SIZES for name in ("p50", "p99", f"to {COPY}", "server")]
    drawn = new_table(
        f"Match, and 16 workers asked (µs; aim: 256 blocks in {MATCH_US:g})", ("of",), tuple(right)
    )
    for subject, figures in runs.items():
        cells = []
        for size in SIZES:
            name = f"match_{size}"
            ratio = ratios(figures, runs[COPY]).get(f"{name}_us_p50")
            cells += [
                number(figures.get(f"{name}_us_p50"), 1),
                number(figures.get(f"{name}_us_p99"), 1),
                f"{ratio:.2f} x" if ratio is not None and subject != COPY else "",
                number(figures.get(f"{name}_server_us"), 1),
            ]
        drawn.add_row(subject, *cells)
    return drawn


def _changes(ours: Figures) -> Table:
    drawn = new_table(
        f"Changes (µs; aim: {SCRIPT_US:g} in the server)",
        ("change",),
        ("server, busy", "server, one at a time", "answer p50", "answer p99", "to aim"),
    )
    for name, shown in CHANGES.items():
        busy = ours.get(f"{name}_server_us")
        drawn.add_row(
            shown,
            number(busy, 1),
            number(ours.get(f"{name}_alone_server_us"), 1),
            number(ours.get(f"{name}_wall_us_p50"), 0),
            number(ours.get(f"{name}_wall_us_p99"), 0),
            f"{busy / SCRIPT_US:.2f} x" if busy is not None else "",
        )
    return drawn


def _reading(ours: Figures) -> Table:
    drawn = new_table("The read copy", ("what",), ("figure", "p99", "aim"))
    drawn.add_row(
        "a change applied, µs",
        number(ours.get("apply_entry_us_p50"), 1),
        number(ours.get("apply_entry_us_p99"), 1),
        "",
    )
    for name, shown in (("load", "snapshot"), ("reload", "snapshot over a full copy")):
        drawn.add_row(f"{shown}, s", number(ours.get(f"{name}_seconds"), 2), "", "")
        drawn.add_row(
            f"{shown}, million blocks/s", number(ours.get(f"{name}_blocks_per_second", 0) / 1e6, 1), "", ""
        )
        stopped = ours.get(f"{name}_stopped_ms_max")
        drawn.add_row(f"{shown}, longest standstill, ms", number(stopped, 1), "", f"{STOPPED_MS:g}")
    for figure in ours:
        if figure.startswith("seen_by_") and figure.endswith("_ms_p50"):
            name = figure.removesuffix("_p50")
            shown = f"another of {name.split('_')[2]} replicas sees a change, ms"
            drawn.add_row(shown, number(ours[figure], 2), number(ours[f"{name}_p99"], 2), f"p99 {SEEN_MS:g}")
        elif figure.startswith("followed_page_of_"):
            shown = f"a followed worker's page of {figure.split('_')[3]} tokens, bytes"
            drawn.add_row(shown, number(ours[figure], 0), "", "")
    return drawn


def _memory(ours: Figures) -> Table:
    drawn = new_table(
        f"Memory (bytes; aim: {RUN_BYTES:g} a block in the process, beside nodes)",
        ("runs",),
        ("blocks", "nodes", "blocks a run", "Redis", "process", "of it run", "a node", "holders a node"),
    )
    for figure in ours:
        if figure.endswith("_run_blocks_mean"):
            name = figure.removesuffix("_run_blocks_mean")
            drawn.add_row(
                name.removeprefix("memory_"),
                number(ours[f"{name}_blocks"], 0),
                number(ours[f"{name}_nodes"], 0),
                number(ours[figure], 1),
                number(ours[f"{name}_redis_bytes_per_block"], 1),
                number(ours[f"{name}_process_bytes_per_block"], 1),
                number(ours[f"{name}_process_run_bytes_per_block"], 1),
                number(ours[f"{name}_process_node_bytes"], 0),
                number(ours[f"{name}_holders_per_node_mean"], 2),
            )
    return drawn


def _growth(ours: Figures, sizes: tuple[int, ...]) -> Table:
    drawn = new_table(
        "A match of 256 blocks as things grow (µs)", ("with",), ("p50", "p99", "to the first", "path alone")
    )
    groups = (
        {f"{size:,} blocks": f"match_of_{size}" for size in sizes},
        {f"{holders:,} holding it, 16 asked": f"match_held_by_{holders}" for holders in (16, 1000)},
        {f"{holders:,} holding it, all asked": f"asking_all_{holders}" for holders in (1, 16, 1000)},
        {f"{spaces:,} namespaces": f"match_in_{spaces}_spaces" for spaces in (10, 10_000)},
    )
    for group in groups:
        first = ours.get(f"{next(iter(group.values()))}_us_p50")
        for shown, name in group.items():
            value = ours.get(f"{name}_us_p50")
            drawn.add_row(
                shown,
                number(value, 1),
                number(ours.get(f"{name}_us_p99"), 1),
                f"{value / first:.2f} x" if value is not None and first else "",
                number(ours.get(f"{name.replace('match', 'path')}_us_p50"), 1) if "of_" in name else "",
            )
        drawn.add_section()
    return drawn
