"""`make bench-validate`: the simulator beside two other measurements of the same requests.

    python -m tests.benchmarks.routing.validate [--requests N] [--real N] [--traffic NAME] [--gateways N]
                                                [--policy NAME] [--json FILE]

* NVIDIA's mock engine and router (package ai-dynamo-runtime) replay the whole trace offline. `round_robin` is the
  same rule on both sides and thus compares the engines; `dynamo` is this project's version of that router's rule.
* Real processes: a gateway with each policy before mock engines that take the simulator's step times in real time,
  and the client of `radixgate bench`, on five kinds of traffic. This takes as long as the traffic, once for each
  policy. A measured mean or p95 beyond 15 % of the simulated one has a line below the table. Several gateways
  (`--gateways`) share one Valkey, and with it queue and index; each request goes to one of them at random.

No figure fails the build.
"""

import argparse
import asyncio
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import uvloop
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from gateway.bench.client import Endpoint
from gateway.bench.machine import machine, versions
from gateway.bench.replay import BenchTarget, ReplayResult, replay
from gateway.bench.results import percentile, summary
from gateway.bench.trace_prompts import COMMON, TracePrompts
from gateway.bench.trace_tenants import Caller
from gateway.process.children import ChildFailed
from policies.simulation.outcome import figures
from policies.simulation.scenario import Scenario
from policies.simulation.trace import TraceRequest, write_trace
from policies.simulation.trial import TraceSource, Trial
from policies.simulation.turns.queue_rule import RELEASE_WINDOW_TOKENS, QueueRule
from policies.simulation.workloads import WorkloadParameters
from tests.benchmarks.index.match import DYNAMO_HOME, DYNAMO_VERSION, dynamo_python
from tests.benchmarks.routing.mock_worker import BLOCK_WORDS, MODEL, TOKENS_PER_WORD
from tests.benchmarks.routing.settings import CLAUDE_CODE, CONVERSATIONS
from tests.stage.processes import GatewayProcess, Process
from tests.stage.valkey import ValkeyServer

POLICIES = ("round_robin", "product", "cost")
WORKERS, KV_TOKENS = 4, 2_100_000
REAL = {
    "conversation": TraceSource(path=CONVERSATIONS, speed=3.0),
    "claude code": TraceSource(path=CLAUDE_CODE, speed=2.0),
    "teams": TraceSource(workload="teams", load=WorkloadParameters(rate=0.7)),
    "giant": TraceSource(workload="giant", load=WorkloadParameters(rate=20.0)),
    "stampede": TraceSource(workload="stampede", load=WorkloadParameters(rate=6.0)),
}
"""The traffic that is sent to real processes, by name."""
FLEETS = {
    "conversation x3, 4 workers of 2.1M": (3.0, 4, 2_100_000),
    "conversation x4, 8 workers of 1M": (4.0, 8, 1_000_000),
    "conversation x8, 8 workers of 2.1M": (8.0, 8, 2_100_000),
    "conversation x2, 4 workers of 524k": (2.0, 4, 524_288),
}
"""The fleets of NVIDIA's mock engine: speed of the trace, workers, KV tokens of each."""
LOADS_LATE_SECONDS = 0.5
"""How old the simulated reports of loads are, where several gateways share the traffic."""
WITHIN = 0.15
"""How far a measured mean or p95 of TTFT may be from the simulated one."""

COLUMNS = (
    ("ttft_ms_mean", "TTFT mean", 1),
    ("ttft_ms_p50", "p50", 1),
    ("ttft_ms_p95", "p95", 0),
    ("ttft_ms_p99", "p99", 0),
    ("tpot_ms", "TPOT", 1),
    ("goodput", "goodput", 3),
    ("hit_ratio", "hits", 3),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the table; `by` names the measurement."""

    subject: str
    by: str
    figures: dict[str, Any]


def simulated(source: TraceSource, scenario: Scenario, subjects: Sequence[str]) -> list[Row]:
    found = []
    for subject in subjects:
        told = figures(Trial(subject=subject, source=source, scenario=scenario).run())["all"]
        found.append(Row(subject=subject, by="simulator", figures={**told, "tpot_ms": told["tpot_ms_mean"]}))
    return found


async def nvidia(source: TraceSource, workers: int, kv_tokens: int, directory: Path) -> list[Row]:
    """Replay the trace with NVIDIA's programs. Raises ChildFailed where they cannot be installed."""
    python, found = await dynamo_python(), []
    trace = directory / "paced.jsonl"
    write_trace(trace, source.trace(0))
    for mode, subject in (("round_robin", "round_robin"), ("kv_router", "dynamo")):
        asked = {"trace": str(trace), "workers": workers, "kv_tokens": kv_tokens, "mode": mode}
        child = await asyncio.create_subprocess_exec(
            *(python, "-m", "tests.benchmarks.routing.dynamo", orjson.dumps(asked).decode()),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, errors = await child.communicate()
        if child.returncode:
            raise ChildFailed(f"dynamo: {errors.decode(errors='replace')[-300:]}")
        told = orjson.loads(out.strip().splitlines()[-1])
        by = f"dynamo {DYNAMO_VERSION}"
        found.append(Row(subject=subject, by=by, figures={**told, "tpot_ms": told["tpot_ms_mean"]}))
    return found


class ShortPrompts(TracePrompts):
    """Prompts with a word for every eight tokens, and 64 words for every block."""

    def text(self, request: TraceRequest) -> str:
        words: list[str] = []
        for block in request.blocks:
            words += self._block(block)[:BLOCK_WORDS]
        return " ".join(words[: -(-request.prompt_tokens // TOKENS_PER_WORD)])


def word_tokenizer(directory: Path) -> Path:
    """Write a tokenizer whose tokens are words: lengths are exact, and encoding needs almost no CPU."""
    words = {word: number for number, word in enumerate(["?", *sorted(set(COMMON))])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    directory.mkdir(parents=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


async def real(
    requests: Sequence[TraceRequest],
    policy: str,
    workers: int,
    kv_tokens: int,
    directory: Path,
    gateways: int = 1,
) -> Row:
    """Measure gateways and engines as processes, in real time."""
    tokenizer = word_tokenizer(directory / "tokenizer")
    mock = (sys.executable, "-m", "tests.benchmarks.routing.mock_worker", "--kv-tokens", str(kv_tokens))
    engines = [Process(f"engine-{number}", directory, mock) for number in range(workers)]
    async with AsyncExitStack() as stack:
        for engine in engines:
            stack.push_async_callback(engine.stop)
            await engine.start()
        settings: dict[str, Any] = {
            "database": {"url": "none"},
            "routing": {"policy": policy},
            "workers": [{"id": engine.name, "kind": "sglang", "url": engine.url} for engine in engines],
            "models": [{"name": MODEL, "tokenizer": str(tokenizer), "block_size": 64 // TOKENS_PER_WORD}],
            "queueing": {
                "waiting_seconds_max": 600,
                "tenant_waiting_requests_max": 10_000,
                "release_window_tokens": RELEASE_WINDOW_TOKENS // TOKENS_PER_WORD,
            },
            # The mock engine sends nothing between the first token and the last.
            "requests": {"idle_seconds_max": 600},
        }
        if gateways > 1:
            valkey = ValkeyServer(directory)
            stack.callback(valkey.kill)
            valkey.start()
            settings |= {"redis": {"url": valkey.url, "timeout_ms": 1000}, "deployment_secret": 32 * "s"}
        started = [GatewayProcess(f"gateway-{number}", directory, settings) for number in range(gateways)]
        for gateway in started:
            stack.push_async_callback(gateway.stop)
            await gateway.start()
        async with aiohttp.ClientSession() as http:
            for gateway in started:
                await gateway.all_up(http)
        ran = await _replayed(requests, started)
    results = [result for each in ran for result in each.results]
    told = summary(results, max(each.seconds for each in ran))
    late = percentile([1000 * seconds for each in ran for seconds in each.late_seconds], 99)
    tpot = [1000 * result.tpot for result in results if result.tpot is not None]
    mean = sum(tpot) / len(tpot) if tpot else None
    return Row(subject=policy, by="processes", figures={**told, "tpot_ms": mean, "client_late_ms_p99": late})


async def _replayed(
    requests: Sequence[TraceRequest], gateways: Sequence[GatewayProcess]
) -> Sequence[ReplayResult]:
    """Send each request when it is due, to a gateway that is drawn."""
    draw, prompts = random.Random("gateways"), ShortPrompts()
    parts: list[list[TraceRequest]] = [[] for _ in gateways]
    for request in requests:
        draw.choice(parts).append(request)
    targets = (
        BenchTarget(
            url=f"http://{gateway.host}:{gateway.port}",
            model=MODEL,
            endpoint=Endpoint.COMPLETIONS,
            body={},
            seconds_max=600.0,
            in_flight_max=5000,
        )
        for gateway in gateways
    )
    return await asyncio.gather(
        *(
            replay(part, target, [Caller(name="all")], prompts, lambda: None)
            for part, target in zip(parts, targets, strict=True)
        )
    )


def table(title: str, rows: Sequence[Row]) -> Table:
    shown = Table(title=title, title_justify="left")
    for name in ("policy", "measured by", *(head for _, head, _ in COLUMNS), "errors"):
        shown.add_column(name, justify="left" if name in ("policy", "measured by") else "right")
    for row in sorted(rows, key=lambda row: (row.by, row.figures["ttft_ms_mean"] or 0.0)):
        cells = [f"{row.figures[key]:.{digits}f}" for key, _, digits in COLUMNS]
        shown.add_row(row.subject, row.by, *cells, str(row.figures.get("errors", 0)))
    return shown


def distances(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each figure that was measured further from the simulated one than WITHIN."""
    expected = {row.subject: row.figures for row in rows if row.by == "simulator"}
    for row in rows:
        for figure, name in (("ttft_ms_mean", "mean"), ("ttft_ms_p95", "p95")):
            simulated_ms = expected[row.subject]
            ratio = row.figures[figure] / simulated_ms[figure]
            if abs(ratio - 1) > WITHIN:
                median_ms = row.figures["ttft_ms_p50"] - simulated_ms["ttft_ms_p50"]
                yield (
                    f"{row.subject}: the {name} TTFT was measured at {ratio:.2f} of the simulated one, "
                    f"{row.figures[figure] - simulated_ms[figure]:+.0f} ms; the median differs by "
                    f"{median_ms:+.0f} ms, which gateway and network take for every prompt; the client sent "
                    f"requests up to {row.figures['client_late_ms_p99']:.0f} ms late (p99)"
                )


async def main() -> None:
    parser = argparse.ArgumentParser(prog="bench-validate", description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=3000, help="of the trace, for NVIDIA's; 0: none")
    parser.add_argument(
        "--real", type=int, default=400, help="of each kind of traffic, in real time; 0: leave it out"
    )
    parser.add_argument(
        "--traffic",
        action="append",
        choices=sorted(REAL),
        help="only this kind in real time; may be repeated",
    )
    parser.add_argument("--gateways", type=int, default=1, help="that share the real-time traffic")
    parser.add_argument("--policy", action="append", choices=POLICIES, help="only this policy in real time")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    console = Console(width=110)
    console.print(machine(), versions(), soft_wrap=True)
    runs: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="radixgate-") as place:
        for group, (speed, workers, kv_tokens) in FLEETS.items() if given.requests else ():
            source = TraceSource(path=CONVERSATIONS, speed=speed, requests_max=given.requests)
            rows = simulated(
                source, Scenario(workers=workers, kv_tokens=kv_tokens), ("round_robin", "dynamo", "cost")
            )
            try:
                rows += await nvidia(source, workers, kv_tokens, Path(place))
            except ChildFailed as err:
                console.print(f"{group}: without NVIDIA's ({err})", markup=False)
            console.print(table(group, rows))
            runs |= {
                f"{row.subject} by {row.by} @ {group}": {"all": row.figures, "tenants": {}} for row in rows
            }
        chosen = given.traffic or REAL
        for name in chosen if given.real else ():
            traffic = REAL[name]
            load = replace(traffic.load, requests=given.real)
            source = replace(traffic, requests_max=given.real, load=load)
            requests = source.trace(0)
            scenario = Scenario(
                workers=WORKERS,
                kv_tokens=KV_TOKENS,
                window_tokens=RELEASE_WINDOW_TOKENS,
                turns=QueueRule(),
                gateways=given.gateways,
                sync_seconds=LOADS_LATE_SECONDS if given.gateways > 1 else 0.0,
            )
            policies = given.policy or POLICIES
            rows = simulated(source, scenario, policies)
            for policy in policies:
                where = Path(place) / f"{name} {policy}"
                rows.append(await real(requests, policy, WORKERS, KV_TOKENS, where, given.gateways))
            group = f"{name}, {WORKERS} workers of {KV_TOKENS // 1000}k, {len(requests)} requests"
            if given.gateways > 1:
                group += f", {given.gateways} gateways"
            console.print(table(group, rows))
            for line in distances(rows):
                console.print(line)
            runs |= {
                f"{row.subject} by {row.by} @ {group}": {"all": row.figures, "tenants": {}} for row in rows
            }
    if given.json:
        packages = {**versions(), "ai-dynamo-runtime": DYNAMO_VERSION if DYNAMO_HOME.exists() else "none"}
        settings = {"requests": given.requests, "real": given.real, "gateways": given.gateways}
        result = {"machine": machine(), "versions": packages, "settings": settings, "runs": runs}
        given.json.write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2) + b"\n")


if __name__ == "__main__":
    uvloop.run(main())
