"""`make bench-tokenize`: microseconds per thousand tokens of a prompt, from messages to block hashes.

    python -m tests.benchmarks.tokenise [--tokenizer DIR] [--tokens N ...] [--rounds N] [--json FILE]

    cold         a new conversation
    multi-turn   the next turn of a known conversation: its last two messages are new
    again        the same conversation once more

Each is measured beside the tokenizer alone, on the whole rendered text and without a cache. Times are of one caller
and include waiting for a thread where a text is long. Without the option --tokenizer a small one of 1,024 tokens is
made: a real one has longer tokens and takes longer for each. No figure fails the build.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import uvloop
from rich.console import Console

from gateway.bench.machine import machine, versions
from gateway.bench.results import percentile
from gateway.domain.request import InferenceRequest, Surface
from gateway.domain.tenant import Plan, Tenant
from gateway.tokenization.encoder_threads import EncoderThreads
from gateway.tokenization.tokenizer_encoder import TokenizerEncoder
from gateway.tokenization.tokenizer_file import read_tokenizer
from gateway.web.openai.inference_requests import decode_openai_request
from radix_cache.namespace import Namespace, hasher_for
from tests.benchmarks.report import new_table, number
from workers.chat_template import ChatTemplate
from workers.engine import tiny_checkpoint
from workers.engine.tiny_text import sentences

SIZES = (1_000, 4_000, 16_000, 64_000)
ROUNDS = 20
TURNS = 8
MEMORY_BYTES = 256 * 1024**2
CASES = ("cold", "multi-turn", "again")
OURS, ALONE = "radixgate", "tokenizer alone"

Messages = list[dict[str, str]]
Runs = dict[str, dict[str, dict[str, float]]]


class Bench:
    """The measurements of one tokenizer."""

    def __init__(self, directory: Path, executor: ThreadPoolExecutor) -> None:
        self._encoder = TokenizerEncoder.from_directory(
            directory, EncoderThreads(executor), key=1, memory_bytes_max=MEMORY_BYTES
        )
        self._alone, _ = read_tokenizer(directory)
        self._template = ChatTemplate.from_directory(directory)
        self._hasher = hasher_for(Namespace(model="m", block_size=64, group="g"), b"secret")
        self._tenant = Tenant(id="t", organisation="t", key_id="k", plan=Plan(), group="g")
        self._seeds = count(1)

    async def measure(self, size: int, rounds: int) -> dict[str, dict[str, float]]:
        """Return the figures of conversations of about so many tokens, by subject."""
        taken: dict[str, dict[str, list[float]]] = {
            subject: {case: [] for case in CASES} for subject in (OURS, ALONE)
        }
        for _ in range(rounds):
            talk = self._conversation(size)
            for case, messages in zip(CASES, (talk[:-2], talk, talk), strict=True):
                for subject, way in ((OURS, self._by_us), (ALONE, self._by_itself)):
                    taken[subject][case].append(await self._timed(way, messages))
        return {
            subject: {
                f"{case.replace('-', '_')}_{size}_us_per_1k_tokens_p{percent}": percentile(times, percent)
                or 0.0
                for case, times in cases.items()
                for percent in (50, 95)
            }
            for subject, cases in taken.items()
        }

    async def _timed(self, way: Callable[[InferenceRequest], Awaitable[int]], messages: Messages) -> float:
        request = decode_openai_request(
            Surface.CHAT, json.dumps({"model": "m", "messages": messages}).encode()
        )
        began = time.perf_counter()
        tokens = await way(request)
        return (time.perf_counter() - began) * 1e9 / tokens

    async def _by_us(self, request: InferenceRequest) -> int:
        (prompt,) = await self._encoder.encode(request, self._tenant, None)
        prompt.hashes(self._hasher)
        return len(prompt)

    async def _by_itself(self, request: InferenceRequest) -> int:
        text = self._template.render(request.prompt, add_generation_prompt=True)
        return len(self._alone.encode(text, add_special_tokens=False).ids)

    def _conversation(self, size: int) -> Messages:
        """Return a new conversation of TURNS turns."""
        roles, each = ("user", "assistant"), size // (2 * TURNS)
        return [{"role": roles[at % 2], "content": self._text(each)} for at in range(2 * TURNS)]

    def _text(self, tokens: int) -> str:
        """Return a text of at least so many tokens."""
        text, found = "", 0
        while found < tokens:
            more = " ".join(sentences(next(self._seeds), max(1, (tokens - found) // 8)))
            text += more + " "
            found += len(self._alone.encode(more, add_special_tokens=False).ids)
        return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokenizer", type=Path, help="directory with tokenizer.json and a chat template")
    parser.add_argument("--tokens", type=int, nargs="+", default=list(SIZES), help="lengths of conversations")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="conversations of each length")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(2) as executor:
        tokenizer = options.tokenizer or tiny_checkpoint.build(Path(directory) / "tiny", hidden=32, layers=1)
        runs = uvloop.run(_all(Bench(tokenizer, executor), options.tokens, options.rounds))
    console = Console()
    console.print(_table(runs, options.tokens))
    if options.json is not None:
        options.json.write_bytes(orjson.dumps(_result(runs, options), option=orjson.OPT_INDENT_2))
    return 0


async def _all(bench: Bench, sizes: Sequence[int], rounds: int) -> Runs:
    runs: Runs = {OURS: {"all": {}}, ALONE: {"all": {}}}
    await bench.measure(min(sizes), 1)  # What is built once is not measured.
    for size in sizes:
        for subject, figures in (await bench.measure(size, rounds)).items():
            runs[subject]["all"] |= figures
    return runs


def _table(runs: Runs, sizes: Sequence[int]) -> Any:
    drawn = new_table(
        "Microseconds per 1,000 tokens", ("tokens", "prompt"), (OURS, "p95", ALONE, "p95", "ratio")
    )
    for size in sizes:
        for case in CASES:
            name = f"{case.replace('-', '_')}_{size}_us_per_1k_tokens"
            ours, alone = (
                [runs[subject]["all"][f"{name}_p{p}"] for p in (50, 95)] for subject in (OURS, ALONE)
            )
            shown = [number(value, 0) for value in (*ours, *alone)]
            drawn.add_row(f"{size:,}", case, *shown, f"{ours[0] / alone[0]:.2f} x")
        drawn.add_section()
    return drawn


def _result(runs: Runs, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "machine": machine(),
        "versions": versions("tokenizers", "xxhash", "uvloop"),
        "settings": {
            "tokens": options.tokens,
            "rounds": options.rounds,
            "turns": TURNS,
            "tokenizer": options.tokenizer.name if options.tokenizer is not None else "tiny",
        },
        "runs": runs,
    }


if __name__ == "__main__":
    sys.exit(main())
