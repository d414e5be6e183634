"""Tables and ratios of the figures."""

from collections.abc import Iterator, Mapping

from rich.table import Table

from tests.benchmarks import latency, stall, throughput
from tests.benchmarks.subjects import SMG

Figures = Mapping[str, float]
Runs = Mapping[str, Figures]

COMPARED = (
    "added_ms_p50",
    "requests_per_second",
    "cpu_ms_per_request",
    "stall_gap_ms_max",
    "stall_gap_ms_p99",
    "long_prompt_ms_p50",
    "million_tokens_gap_ms_max",
    "million_tokens_ms_p50",
    "ten_megabytes_gap_ms_max",
    "ten_megabytes_ms_p50",
)
"""Endings of the figures that are also given as a ratio."""


def ratios(figures: Figures, against: Figures) -> dict[str, float]:
    """Return the ratios of the compared figures, without those that have no divisor."""
    return {
        name: value / against[name]
        for name, value in figures.items()
        if name.endswith(COMPARED) and against.get(name, 0) > 0
    }


def tables(runs: Runs) -> Iterator[Table]:
    """Yield a table for each measurement."""
    present = {name for figures in runs.values() for name in figures}
    if any(name.startswith("whole_2") for name in present):
        yield _whole_answers(runs)
        yield _streams(runs)
    if "whole_requests_per_second" in present:
        yield _throughput(runs)
    if "stall_gap_ms_max" in present:
        yield _stall(runs)


def _whole_answers(runs: Runs) -> Table:
    drawn = new_table(
        "Latency of a whole answer, one caller (ms)",
        ("prompt", "subject"),
        ("p50", "p99", "added p50", "quartiles of rounds", "added p99", "to smg"),
    )
    for case in latency.CASES:
        if not case.stream:
            for subject, figures in runs.items():
                drawn.add_row(_shown(case), subject, *_latency(runs, figures, case.name))
            drawn.add_section()
    return drawn


def _streams(runs: Runs) -> Table:
    drawn = new_table(
        f"Latency of a stream of {latency.CHUNKS} chunks, one caller (ms)",
        ("prompt", "until", "subject"),
        ("p50", "p99", "added p50", "quartiles of rounds", "added p99", "to smg"),
    )
    for case in latency.CASES:
        if case.stream:
            for until, name in (("first byte", f"{case.name}_first_byte"), ("end", case.name)):
                for subject, figures in runs.items():
                    drawn.add_row(_shown(case), until, subject, *_latency(runs, figures, name))
                drawn.add_section()
    return drawn


def _latency(runs: Runs, figures: Figures, name: str) -> tuple[str, ...]:
    low, high = (figures.get(f"{name}_added_ms_p50_{end}") for end in ("low", "high"))
    return (
        number(figures.get(f"{name}_ms_p50"), 3),
        number(figures.get(f"{name}_ms_p99"), 3),
        number(figures.get(f"{name}_added_ms_p50"), 3),
        f"{low:.3f} .. {high:.3f}" if low is not None and high is not None else "",
        number(figures.get(f"{name}_added_ms_p99"), 3),
        _ratio(runs, figures, f"{name}_added_ms_p50"),
    )


def _throughput(runs: Runs) -> Table:
    drawn = new_table(
        f"{throughput.CONNECTIONS} connections, prompts of {throughput.CHARACTERS} characters",
        ("load", "subject"),
        ("answers/s", "to smg", "CPU ms each", "to smg", "cores", "client CPU ms", "client reads"),
    )
    titles = {
        "whole": "whole answers",
        "stream": f"{throughput.CHUNKS} chunks",
        "paced": f"{throughput.CHUNKS} chunks, {throughput.GAP_MS} ms apart",
        "crowd": f"{throughput.CROWD} callers, {throughput.PREFILL_MS} ms of prefill each",
    }
    for kind in throughput.KINDS:
        for subject, figures in runs.items():
            rate, cpu = f"{kind.name}_requests_per_second", f"{kind.name}_cpu_ms_per_request"
            drawn.add_row(
                titles[kind.name],
                subject,
                number(figures.get(rate), 0),
                _ratio(runs, figures, rate),
                number(figures.get(cpu), 3),
                _ratio(runs, figures, cpu),
                number(figures.get(f"{kind.name}_cores_used"), 2),
                number(figures.get(f"{kind.name}_client_cpu_ms_per_request"), 3),
                number(figures.get(f"{kind.name}_client_reads_per_request"), 1),
            )
        drawn.add_section()
    return drawn


def _stall(runs: Runs) -> Table:
    drawn = new_table(
        f"{stall.STREAMS} streams with a chunk each {stall.GAP_MS} ms, beside large requests: gaps (ms)",
        ("beside", "subject"),
        ("p99", "worst", "worst to smg", "large answer p50"),
    )
    for shown, gaps, answer in (
        ("nothing", "calm_gap_ms", ""),
        *((kind.shown, kind.gaps, kind.answer) for kind in stall.KINDS),
    ):
        for subject, figures in runs.items():
            drawn.add_row(
                shown,
                subject,
                number(figures.get(f"{gaps}_p99"), 1),
                number(figures.get(f"{gaps}_max"), 1),
                _ratio(runs, figures, f"{gaps}_max"),
                number(figures.get(f"{answer}_p50"), 1),
            )
        drawn.add_section()
    return drawn


def new_table(title: str, left: tuple[str, ...], right: tuple[str, ...]) -> Table:
    drawn = Table(title=title, title_justify="left")
    for name in left:
        drawn.add_column(name, no_wrap=True)
    for name in right:
        drawn.add_column(name, justify="right")
    return drawn


def _shown(case: latency.Case) -> str:
    return f"{case.characters:,} {'cold' if case.cold else 'warm'}"


def number(value: float | None, digits: int) -> str:
    return f"{value:,.{digits}f}" if value is not None else ""


def _ratio(runs: Runs, figures: Figures, name: str) -> str:
    ratio = ratios(figures, runs.get(SMG, {})).get(name)
    return f"{ratio:.2f} x" if ratio is not None and figures is not runs.get(SMG) else ""
