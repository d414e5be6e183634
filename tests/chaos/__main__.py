"""`make chaos`: every fault in turn under load, with a row for each; exit code 1 if a promise was broken.

load begins -- injected -- fault lasts -- healed -- all green -- load ends -- at rest: everything checked
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from gateway.quotas.quota_store import LEASE_SECONDS
from tests.benchmarks.report import new_table
from tests.chaos.faults import FAULTS, Fault
from tests.chaos.load import Load, Tally
from tests.chaos.promises import (
    Baseline,
    Injection,
    baseline,
    charges,
    green,
    ledger,
    seen_by_clients,
    still_wrong,
)
from tests.chaos.scene import Scene, Stage, scene
from tests.stage.postgres import PostgresMissing
from tests.stage.sockets import CannotCut

BEFORE_SECONDS = 1.0
AFTER_SECONDS = 1.0
REST_SECONDS = 7.0
"""Idle connections to workers are closed after four, and looked at every two."""

WRONG_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The result of one fault."""

    fault: Fault
    tally: Tally
    waited: float
    """Requests that waited in a waiting room."""
    green_seconds: float | None
    """Seconds from the healing until every gateway reported that all is well; None: that never happened."""
    wrong: Sequence[str]
    """The promises that were broken."""
    skipped: str = ""
    """Why the fault could not be injected here."""


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each fault lasts, at least")
    parser.add_argument("--seed", type=int, default=7)
    names = [fault.name for fault in FAULTS]
    parser.add_argument("--only", choices=names, action="append", help="this fault; may be repeated")
    parser.add_argument("--rounds", type=int, default=1, help="how often all are played")
    parser.add_argument("--keep", action="store_true", help="keep logs and settings, and say where")
    return parser.parse_args()


async def play(
    here: Scene, fault: Fault, at_rest: Baseline, orphans: set[str], *, seconds: float, seed: int
) -> Played:
    """Inject one fault under load, heal it, and check all promises."""
    tally, wrong, skipped = Tally(), list[str](), ""
    green_seconds: float | None = None
    here.gone.clear()
    before, waited = await here.charged(), await here.waited()
    in_ledger = await here.database.charged() if here.database is not None else (0, 0)
    async with Load(here, tally, seed):
        await asyncio.sleep(BEFORE_SECONDS)
        answered_before = tally.answered
        try:
            await fault.inject(here)
        except CannotCut as err:
            skipped = str(err)
        injection = Injection(answered_before, tally.answered + tally.under_way)
        await asyncio.sleep(max(seconds, fault.seconds_min) if not skipped else 0)
        if not skipped:
            await fault.heal(here)
        try:
            green_seconds = await green(here)
        except TimeoutError:
            wrong.append("it does not become green under load")
        await asyncio.sleep(AFTER_SECONDS)
    if fault.forgets_quotas:
        before = here.seeded
    if fault.kills_gateway:
        orphans |= await here.running()
    wrong += seen_by_clients(fault, tally)
    wrong += await still_wrong(here, at_rest, orphans)
    wrong += charges(fault, tally, before, await here.charged(), injection)
    wrong += await ledger(here, tally, in_ledger)
    return Played(
        fault=fault,
        tally=tally,
        waited=more_than(waited, await here.waited()),
        green_seconds=green_seconds,
        wrong=wrong,
        skipped=skipped,
    )


def more_than(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """Return how much the counters have grown; a counter that is less than before has begun anew."""
    return sum(count - before[name] if count >= before[name] else count for name, count in after.items())


async def run(options: argparse.Namespace, console: Console) -> bool:
    """Run the faults that were asked for, and return whether all promises were kept. Raises ChildFailed."""
    faults = [fault for fault in FAULTS if not options.only or fault.name in options.only] * options.rounds
    played, wrong = list[Played](), list[str]()
    directory = Path(tempfile.mkdtemp(prefix="radixgate-chaos-"))
    try:
        for stage in Stage:
            several = [fault for fault in faults if fault.stage is stage]
            if several:
                place = Path(tempfile.mkdtemp(prefix=f"{stage.name.lower()}-", dir=directory))
                wrong += await play_stage(place, stage, several, played, options)
    finally:
        if options.keep:
            print(f"logs and settings: {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    console.print(table(played, options.seed))
    wrong = [f"{one.fault.name}: {each}" for one in played for each in one.wrong] + wrong
    for each in wrong:
        console.print(f"BROKEN  {each}", markup=False)
    if not wrong:
        console.print("All promises were kept.")
    return not wrong


async def play_stage(
    directory: Path,
    stage: Stage,
    faults: Sequence[Fault],
    played: list[Played],
    options: argparse.Namespace,
) -> list[str]:
    """Play the faults of one stage, add their results to `played`, and return what is wrong afterwards."""
    try:
        async with scene(directory, options.seed, stage) as here:
            at_rest, orphans = await rested(here, options.seed), set[str]()
            for fault in faults:
                print(f"{fault.name} ...", file=sys.stderr, flush=True)
                seed = options.seed + len(played)
                one = await play(here, fault, at_rest, orphans, seconds=options.seconds, seed=seed)
                played.append(one)
                say(one)
            await over(here, orphans)
            return complaints(here)
    except PostgresMissing as err:
        print(f"SKIPPED  {stage.value}: {err}", file=sys.stderr, flush=True)
        played += [
            Played(fault=fault, tally=Tally(), waited=0.0, green_seconds=None, wrong=(), skipped=str(err))
            for fault in faults
        ]
        return []


async def rested(here: Scene, seed: int) -> Baseline:
    """Run a first load, so that connections were made and closed again, and return the state at rest."""
    async with Load(here, Tally(), seed):
        await asyncio.sleep(BEFORE_SECONDS)
    await asyncio.sleep(REST_SECONDS)
    return await baseline(here)


async def over(here: Scene, orphans: set[str]) -> None:
    """Wait until the reservations of killed gateways have expired. Raises TimeoutError."""
    async with asyncio.timeout(LEASE_SECONDS + 10):
        while await here.running() & orphans:
            await asyncio.sleep(0.5)


def complaints(here: Scene) -> list[str]:
    """Return the tracebacks that gateways have logged: each is a bug, even if no client noticed."""
    return [
        f"{gateway.name} has logged a traceback: {last}"
        for gateway in here.gateways
        for last in tracebacks(gateway.log.read_text(errors="replace"))
    ]


def tracebacks(text: str) -> list[str]:
    """Return the last line of each traceback in the text: the first line that is not indented."""
    parts = text.split("Traceback (most recent call last):\n")[1:]
    return [next((line for line in part.splitlines() if not line.startswith(" ")), "") for part in parts]


def say(one: Played) -> None:
    """Print to stderr which promises a fault has broken."""
    for each in one.wrong[:WRONG_SHOWN]:
        print(f"  BROKEN  {each}", file=sys.stderr, flush=True)
    if one.skipped:
        print(f"  SKIPPED  {one.skipped}", file=sys.stderr, flush=True)


def table(played: Sequence[Played], seed: int) -> Table:
    """Return a table with a row for each fault."""
    drawn = new_table(
        f"Faults under load, seed {seed} (TTFT in ms, of streams and whole answers)",
        ("fault",),
        (
            "requests",
            "waited",
            "failed before",
            "cut after",
            "retried",
            "TTFT p50",
            "p99",
            "green after s",
            "promises",
        ),
    )
    for one in played:
        tally = one.tally
        drawn.add_row(
            one.fault.name,
            str(tally.requests),
            f"{one.waited:.0f}",
            str(len(tally.failed)),
            str(tally.cut + len(tally.silent) + tally.excused),
            str(tally.retried),
            f"{tally.quantile(0.5):.0f}",
            f"{tally.quantile(0.99):.0f}",
            f"{one.green_seconds:.1f}" if one.green_seconds is not None else "never",
            "skipped" if one.skipped else f"{len(one.wrong)} broken" if one.wrong else "kept",
        )
    return drawn


if __name__ == "__main__":
    sys.exit(0 if uvloop.run(run(arguments(), Console(width=max(Console().width, 120)))) else 1)
