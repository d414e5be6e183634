"""The cost of structured output: compiling a grammar once, and a mask for each token of an answer.

    python -m tests.benchmarks.engine.grammar [--vocab 32768] [--tokens 200] [--json FILE]

`compile`: how long the first request with a grammar waits, in wall time. This includes the process that tries the
grammar first, and for `warm up` the start of that process and the model's vocabulary. `again`: how long every later
request waits. `mask`: the processor time of one mask, on random walks over allowed tokens; real answers are easier.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson
import torch
from rich.console import Console

from gateway.bench.machine import machine, versions
from tests.benchmarks.report import new_table
from workers.engine.grammar.compiler import GrammarCompiler
from workers.engine.grammar.grammar import Grammar, GrammarKind
from workers.engine.grammar.matcher import mask_words
from workers.engine.tiny_checkpoint import build
from workers.engine.tokenization.tokenizer import Tokenizer

PLAIN = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "member": {"type": "boolean"}},
    "required": ["name", "age", "member"],
    "additionalProperties": False,
}
NESTED = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 40},
        "tags": {"type": "array", "items": {"enum": [f"tag-{n}" for n in range(20)]}, "maxItems": 5},
        "author": PLAIN,
    },
    "required": ["title", "tags", "author"],
    "additionalProperties": False,
}
BOUNDED = {
    "type": "object",
    "properties": {
        "on": {"type": "string", "pattern": "^20[0-9]{2}-[01][0-9]-[0-3][0-9]$"},
        "note": {"type": "string", "maxLength": 200},
    },
    "required": ["on", "note"],
    "additionalProperties": False,
}


def _schema(value: dict[str, Any]) -> Grammar:
    return Grammar(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(value))


GRAMMARS = {
    "warm up": Grammar(kind=GrammarKind.REGEX, text="x"),
    "three plain fields": _schema(PLAIN),
    "nested, enum, maxLength 40": _schema(NESTED),
    "pattern, maxLength 200": _schema(BOUNDED),
    "any object": _schema({"type": "object"}),
    "3,000 properties": _schema(
        {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(3000)}}
    ),
    "regex": Grammar(kind=GrammarKind.REGEX, text="[a-z]+@[a-z]+\\.(com|org)"),
}


def measure(compiler: GrammarCompiler, grammar: Grammar, tokens: int, vocab: int) -> dict[str, float]:
    """Return the milliseconds to compile, and to compile again; and the microseconds of a mask."""
    began = time.perf_counter()
    matcher = compiler.compile(grammar)
    compiled = time.perf_counter() - began
    began = time.perf_counter()
    compiler.compile(grammar)
    again = time.perf_counter() - began
    row = torch.zeros(mask_words(vocab), dtype=torch.int32)
    chance, took = random.Random(0), []
    while len(took) < tokens:
        began = time.thread_time()
        matcher.mask(row)
        took.append(time.thread_time() - began)
        bits = (row[:, None] >> torch.arange(32)) & 1
        possible = bits.flatten().nonzero().flatten().tolist()
        if not possible or not matcher.advance([chance.choice(possible)]) or matcher.done:
            matcher = compiler.compile(grammar)
    return {
        "compile_ms": compiled * 1e3,
        "again_ms": again * 1e3,
        "mask_mean_us": statistics.fmean(took) * 1e6,
        "mask_p99_us": sorted(took)[int(len(took) * 0.99)] * 1e6,
    }


def main() -> None:
    """Measure, print the tables, and write the JSON file if one was asked for."""
    options = _options()
    torch.set_num_threads(1)
    console = Console()
    with tempfile.TemporaryDirectory(prefix="radixgate-bench-grammar-") as root:
        console.print(f"training a tokenizer of {options.vocab} tokens ...", style="dim")
        tokenizer = Tokenizer(build(Path(root) / "model", vocab=options.vocab, hidden=8, layers=1, heads=2))
        compiler = GrammarCompiler(tokenizer.to_json, options.vocab, frozenset({2}))
        results = {
            name: measure(compiler, grammar, options.tokens, options.vocab)
            for name, grammar in GRAMMARS.items()
        }
        compiler.close()
    table = new_table(
        "structured output", ("grammar",), ("compile ms", "again ms", "mask mean µs", "mask p99 µs")
    )
    for name, figures in results.items():
        table.add_row(name, *(f"{value:,.2f}" for value in figures.values()))
    console.print(table)
    found = versions("llguidance", "torch", "tokenizers")
    for title, values in (("machine", machine()), ("versions", found)):
        console.print(f"{title}: {', '.join(f'{name} {value}' for name, value in values.items())}")
    if options.json is not None:
        document = {"machine": machine(), "versions": found, "runs": results}
        options.json.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-grammar", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--vocab", type=int, default=32768, help="tokens of the vocabulary that is asked for")
    parser.add_argument("--tokens", type=int, default=200, help="masks to measure for each grammar")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
