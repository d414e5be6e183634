"""`make bench-isolation`: whether the time to a first token tells a tenant what another tenant has sent.

    python -m tests.benchmarks.isolation [--pairs N] [--words N] [--json FILE]

The audit of Gu et al., "Auditing Prompt Caching in Language Model APIs" (ICML 2025, arXiv 2502.07776), on
radixgate: a victim sends a prompt, then an attacker sends the same prompt (hit) and a new one (miss), and the two
samples of TTFT are compared by the two-sample Kolmogorov-Smirnov test. Both are sent in random order, so that a
noisy moment of the machine affects both. Four attackers: the victim itself (the positive control, whose hits must
be found), a tenant of another group, a member of its group, and another tenant of mode `shared`. The gateway, two
workers and their caches are real. No figure fails the build.
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from math import exp, sqrt
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import uvloop
from rich.console import Console
from rich.table import Table

from gateway.bench.client import stream_completion
from gateway.bench.machine import machine, versions
from gateway.bench.results import percentile
from gateway.process.children import ChildFailed
from gateway.tenants.keys import NewKey, new_key, pepper
from tests.stage.processes import EmbeddedProcess, GatewayProcess, Process
from workers.engine import tiny_checkpoint

SIGNIFICANT = 0.01
SECRET = "a secret of the audit"
MODEL = "tiny-llama"
CHECKPOINT = {"hidden": 256, "layers": 4, "heads": 8, "kv_heads": 2, "intermediate": 512, "context": 4096}
WORKERS = 2
PAGE_SIZE = 16
KV_TOKENS = 48_000
GROUP = {"mode": "group", "group": "friends"}
SHARED = {"mode": "shared"}
ATTACKS = {
    "itself": ("victim", "victim"),
    "a stranger": ("victim", "stranger"),
    "a member of its group": ("friend-1", "friend-2"),
    "both shared": ("shared-1", "shared-2"),
}
EXPECTED = {"itself": True, "a stranger": False, "a member of its group": True, "both shared": True}
TENANTS = {
    "victim": {},
    "stranger": {},
    "friend-1": {"isolation": GROUP},
    "friend-2": {"isolation": GROUP},
    "shared-1": {"isolation": SHARED},
    "shared-2": {"isolation": SHARED},
}
WORDS = [
    *("river", "harbour", "garden", "engine", "winter", "letter"),
    *("window", "morning", "silver", "orchard", "ladder", "market"),
]


def kolmogorov_smirnov(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Return the two-sample statistic D, and the probability of one as large if both come from one distribution.

    D is the largest distance of the two empirical distribution functions. The probability is Kolmogorov's series
    with Stephens' correction for small samples, (sqrt(n) + 0.12 + 0.11 / sqrt(n)) D for n = ab / (a + b):
    M. A. Stephens, "Use of the Kolmogorov-Smirnov, Cramer-von Mises and Related Statistics Without Extensive
    Tables", J. Royal Statistical Society B 32 (1970).
    """
    first, second = sorted(one), sorted(other)
    at, bt, distance = 0, 0, 0.0
    while at < len(first) and bt < len(second):
        value = min(first[at], second[bt])
        while at < len(first) and first[at] == value:
            at += 1
        while bt < len(second) and second[bt] == value:
            bt += 1
        distance = max(distance, abs(at / len(first) - bt / len(second)))
    n = sqrt(len(first) * len(second) / (len(first) + len(second)))
    scaled = (n + 0.12 + 0.11 / n) * distance
    if scaled < 0.2:
        return distance, 1.0  # the series converges slowly there, and is 1 to twelve digits
    series = 2 * sum((-1) ** (k - 1) * exp(-2 * k * k * scaled * scaled) for k in range(1, 101))
    return distance, min(1.0, max(0.0, series))


def main() -> None:
    """Measure, print the tables, and write the JSON file if one was asked for."""
    parser = argparse.ArgumentParser(description="Audits the isolation of caches by time.")
    parser.add_argument("--pairs", type=int, default=60, help="hits and misses of each attacker")
    parser.add_argument("--words", type=int, default=400, help="words of a prompt")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    try:
        runs = uvloop.run(_measure(options, console))
    except (ChildFailed, OSError, TimeoutError) as err:
        console.print(f"There are no figures: {err}", highlight=False)
        return
    console.print(_table(runs))
    result = {
        "machine": machine(),
        "versions": versions("torch"),
        "settings": {"pairs": options.pairs, "words": options.words, "seed": options.seed},
        "runs": {name: {"all": figures} for name, figures in runs.items()},
    }
    if options.json is not None:
        options.json.write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2))


async def _measure(options: argparse.Namespace, console: Console) -> dict[str, dict[str, Any]]:
    chance = random.Random(options.seed)
    keys = {tenant: new_key(pepper(SECRET.encode())) for tenant in TENANTS}
    with tempfile.TemporaryDirectory(prefix="radixgate-bench-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        checkpoint = tiny_checkpoint.build(directory / MODEL, **CHECKPOINT)
        workers = [
            EmbeddedProcess(f"worker-{n}", directory, checkpoint, kv_tokens=KV_TOKENS, page_size=PAGE_SIZE)
            for n in range(WORKERS)
        ]
        running: list[Process] = []
        try:
            for worker in workers:
                running.append(worker)
                await worker.start()
            gateway = GatewayProcess("gateway", directory, _settings(keys, workers, checkpoint))
            running.append(gateway)
            await gateway.start()
            async with aiohttp.ClientSession() as http:
                await gateway.all_up(http)
                audit = Audit(f"http://{gateway.host}:{gateway.port}", keys, http, chance, options.words)
                for tenant in TENANTS:
                    await audit.ask(tenant, audit.prompt())  # warms up the code paths
                runs = {}
                for attacker, (victim, asker) in ATTACKS.items():
                    console.print(f"{attacker} ...", style="dim")
                    runs[attacker] = await audit.attack(victim, asker, options.pairs)
        finally:
            for process in running:
                await process.stop()
    return runs


def _settings(
    keys: Mapping[str, NewKey], workers: Sequence[EmbeddedProcess], checkpoint: Path
) -> dict[str, Any]:
    return {
        "deployment_secret": SECRET,
        "database": {"url": "none"},
        "models": [{"name": MODEL, "tokenizer": str(checkpoint), "block_size": PAGE_SIZE}],
        "workers": [{"id": worker.name, "kind": "embedded", "url": worker.url} for worker in workers],
        "tenants": [
            {"id": tenant, "keys": [{"id": keys[tenant].id, "hash": keys[tenant].hash}], **rules}
            for tenant, rules in TENANTS.items()
        ],
        "drain": {"notice_seconds": 0, "seconds": 2},
    }


class Audit:
    """The audit of one gateway, one attacker after another."""

    def __init__(
        self,
        url: str,
        keys: Mapping[str, NewKey],
        http: aiohttp.ClientSession,
        chance: random.Random,
        words: int,
    ) -> None:
        self._url, self._keys, self._http, self._chance, self._words = url, keys, http, chance, words

    def prompt(self) -> str:
        return " ".join(self._chance.choice(WORDS) for _ in range(self._words))

    async def ask(self, tenant: str, prompt: str) -> tuple[float, int]:
        """Send a prompt; return the milliseconds to the first token and the cached tokens that usage reports."""
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": 1,
            "temperature": 0,
        }
        result = await stream_completion(self._http, self._url, self._keys[tenant].text, tenant, body)
        if result.error is not None or result.ttft is None:
            raise ChildFailed(f"{tenant} got no answer: {result.error}")
        return 1000 * result.ttft, result.cached_tokens

    async def attack(self, victim: str, attacker: str, pairs: int) -> dict[str, Any]:
        """Return what the attacker learns from so many prompts of the victim."""
        times: dict[bool, list[float]] = {True: [], False: []}
        told = 0
        for _ in range(pairs):
            known, unknown = self.prompt(), self.prompt()
            await self.ask(victim, known)
            for hit in self._chance.sample((True, False), 2):
                ttft, cached = await self.ask(attacker, known if hit else unknown)
                times[hit].append(ttft)
                told += hit and cached > 0
        distance, probability = kolmogorov_smirnov(times[True], times[False])
        return {
            "ttft_ms_p50_hit": percentile(times[True], 50),
            "ttft_ms_p50_miss": percentile(times[False], 50),
            "ks_distance": distance,
            "ks_probability": probability,
            "told_cached": told,
            "pairs": pairs,
        }


def _table(runs: dict[str, dict[str, Any]]) -> Table:
    table = Table(title="Who can tell what the victim has sent?")
    for name in (
        "asked by",
        "hit p50 ms",
        "miss p50 ms",
        "KS D",
        "p",
        "told cached",
        "told apart",
        "meant to be",
    ):
        table.add_column(name, justify="right" if name != "asked by" else "left")
    for name, run in runs.items():
        apart = run["ks_probability"] < SIGNIFICANT
        table.add_row(
            name,
            f"{run['ttft_ms_p50_hit']:.1f}",
            f"{run['ttft_ms_p50_miss']:.1f}",
            f"{run['ks_distance']:.2f}",
            f"{run['ks_probability']:.2g}",
            f"{run['told_cached']} of {run['pairs']}",
            "yes" if apart else "no",
            "yes" if EXPECTED[name] else "no",
        )
    return table


if __name__ == "__main__":
    main()
