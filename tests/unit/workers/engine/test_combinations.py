"""Any settings under any requests: what a request is answered depends on the request and the weights alone.

Each seed draws an engine (layout, tiny pool, chunks, quantised KV and weights, windows, drafters) and requests
(grammars, penalties, stops, choices, priorities, aborts in the middle). A plain engine, one request at a time with
nothing cached, says what the answers must be.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import save_file

from workers.engine.config.engine_config import EngineConfig
from workers.engine.config.speculation_config import Method, SpecConfig
from workers.engine.engine import Engine
from workers.engine.grammar.grammar import Grammar, GrammarKind
from workers.engine.grammar.guidance import is_installed
from workers.engine.request import Output, Request
from workers.engine.sampling.logprobs import TokenLogprob
from workers.engine.sampling.sampling_params import SamplingParams
from workers.engine.speculative.medusa import HEADS_FILE

SEEDS = 40
SIZE_MAX = 56
"""Tokens of the largest request, and of the smallest pool."""
GRAMMARS = ("[0-9]{1,9}", "(ab|cd)*", "[a-z ]{3,20}\\.")
Plain = Callable[[dict[str, Any]], Engine]


@dataclass
class Heard:
    """What came of one request."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: str | None = None

    def on_token(self, output: Output) -> None:
        assert self.finish is None, "something came after the end"
        self.tokens += output.tokens
        self.text += output.text
        self.logprobs += output.logprobs
        self.finish = output.finish
        assert output.completion_tokens == len(self.tokens)


@pytest.fixture(scope="module")
def plain(checkpoint: Callable[[str], Path]) -> Iterator[Plain]:
    """An engine without any of it, over the same weights; made once for each."""
    known: dict[str, Engine] = {}

    def engine(weights: dict[str, Any]) -> Engine:
        name = repr(sorted(weights.items()))
        if name not in known:
            settings = {**weights, "model": checkpoint(weights["model"])}
            known[name] = Engine.load(
                EngineConfig(**settings, prefix_caching=False, running_max=1, chunk_tokens=512, seed=0)
            )
        return known[name]

    yield engine
    for made in known.values():
        made.grammars.close()


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Medusa heads that know nothing."""
    directory = tmp_path_factory.mktemp("heads")
    chance = torch.Generator().manual_seed(0)
    weights = {}
    for head in range(2):
        weights[f"{head}.0.linear.weight"] = torch.zeros(64, 64)
        weights[f"{head}.0.linear.bias"] = torch.zeros(64)
        weights[f"{head}.1.weight"] = torch.randn(512, 64, generator=chance)
    save_file(weights, directory / HEADS_FILE)
    (directory / "config.json").write_text(
        '{"medusa_num_heads": 2, "medusa_num_layers": 1}', encoding="utf-8"
    )
    return directory


def drawn_weights(chance: random.Random) -> dict[str, Any]:
    return {
        "model": chance.choice(
            ["llama-gqa", "qwen3-mqa", "mistral-window", "qwen2-window", "mistral-window-of-two"]
        ),
        "kv_dtype": chance.choice(["auto", "auto", "int8"]),
        "quantization": chance.choice(["none", "none", "int8"]),
    }


def drawn_settings(chance: random.Random, model: Path, heads: Path) -> dict[str, Any]:
    block_size = chance.choice([1, 2, 4, 16])
    settings: dict[str, Any] = {
        "block_size": block_size,
        "kv_tokens": -(-SIZE_MAX // block_size) * block_size + chance.choice([0, block_size, 64]),
        "running_max": chance.randint(1, 6),
        "chunk_tokens": chance.choice([1, 3, 7, 32, 512]),
        "batching": chance.choice(["continuous", "continuous", "static"]),
        "chunked_prefill": chance.random() < 0.8,
        "prefix_caching": chance.random() < 0.8,
        "kv_layout": chance.choice(["paged"] * 6 + ["contiguous", "none"]),
        "priority_first": chance.choice(["lower", "higher"]),
    }
    method = chance.choice([None, *get_args(Method)])
    if method:
        settings["speculation"] = SpecConfig(
            method=method,
            num_tokens=chance.choice([1, 3, 8]),
            adaptive=chance.random() < 0.3,
            batch_size_max=chance.choice([1, 16]),
            prompt_lookup_min=1,
            # The best draft model is the model itself, and the worst heads are random ones.
            model={"draft_model": model, "medusa": heads}.get(method),
            exit_layer=1 if method == "early_exit" else None,
        )
    return settings


def drawn_params(chance: random.Random, room: int) -> SamplingParams:
    def sometimes(value: Any, otherwise: Any, share: float = 0.25) -> Any:
        return value if chance.random() < share else otherwise

    max_tokens = chance.randint(1, room)
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=sometimes(chance.randint(0, max_tokens), 0),
        temperature=sometimes(1.0, 0.0),
        seed=chance.randint(-5, 2**64),
        top_p=sometimes(0.8, 1.0),
        top_k=sometimes(5, 0),
        min_p=sometimes(0.05, 0.0),
        repetition_penalty=sometimes(1.7, 1.0),
        presence_penalty=sometimes(1.0, 0.0),
        frequency_penalty=sometimes(-1.5, 0.0),
        logit_bias=sometimes({chance.randrange(512): 8.0, 3: -100.0}, {}),
        logprobs=sometimes(chance.choice([0, 1, 20]), None),
        stop=sometimes(("e", "th"), ()),
        stop_token_ids=sometimes(frozenset(chance.sample(range(512), 60)), frozenset()),
        ignore_eos=chance.random() < 0.5,
    )


def drawn_requests(chance: random.Random) -> list[tuple[Request, Grammar | None]]:
    texts = [[chance.randrange(512) for _ in range(SIZE_MAX)] for _ in range(3)]
    requests: list[tuple[Request, Grammar | None]] = []
    for number in range(chance.randint(3, 8)):
        length = chance.choice([1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 40])
        params = drawn_params(chance, min(16, SIZE_MAX - length))
        grammar = None
        if is_installed() and chance.random() < 0.2:
            grammar = Grammar(kind=GrammarKind.REGEX, text=chance.choice(GRAMMARS))
        first = Request(
            id=f"{number}",
            prompt=chance.choice(texts)[:length],
            params=params,
            salt=chance.choice(["", "", "salt"]),
            priority=chance.choice([0, 0, -1, 2]),
        )
        for choice in range(chance.choice([1, 1, 1, 2, 3])):
            params = replace(params, seed=(params.seed or 0) + choice)
            name = f"{number}.{choice}"
            leader = f"{number}.0" if choice else None
            requests.append((replace(first, id=name, params=params, fork_of=leader), grammar))
    return requests


def with_matcher(engine: Engine, request: Request, grammar: Grammar | None) -> Request:
    return replace(request, matcher=engine.grammars.compile(grammar)) if grammar else request


def alone(engine: Engine, request: Request, grammar: Grammar | None) -> Heard:
    engine.submit(replace(with_matcher(engine, request, grammar), fork_of=None))
    heard = Heard()
    while engine.has_work:
        for output in engine.step():
            heard.on_token(output)
    return heard


def run(
    engine: Engine, requests: list[tuple[Request, Grammar | None]], chance: random.Random
) -> dict[str, Heard]:
    """Submit a few between steps, and abort some in the middle."""
    heard: dict[str, Heard] = {}
    waiting = list(requests)
    steps, aborts = 0, chance.choice([0, 0, 1, 3])
    while waiting or engine.has_work:
        for _ in range(chance.choice([0, 1, 3])):
            if waiting:
                request, grammar = waiting.pop(0)
                engine.submit(with_matcher(engine, request, grammar))
                heard[request.id] = Heard()
        outputs = engine.step()
        unfinished = [name for name in heard if engine.sequence(name)]
        # Only a few: else a request that is stuck for ever is aborted in the end, and the test does not notice.
        if aborts and unfinished and chance.random() < 0.2:
            aborts -= 1
            last = engine.abort(chance.choice(unfinished))
            outputs += [last] if last else []
        for output in outputs:
            heard[output.id].on_token(output)
        steps += 1
        assert steps < 2000, "it does not come to an end"
    return heard


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_engine_answers_any_requests_as_a_plain_one_does(
    seed: int, plain: Plain, checkpoint: Callable[[str], Path], heads: Path
) -> None:
    chance = random.Random(seed)
    weights = drawn_weights(chance)
    model = checkpoint(weights["model"])
    settings = drawn_settings(chance, model, heads)
    engine = Engine.load(EngineConfig(**{**weights, "model": model}, **settings, seed=0))
    # They have the same tokens. A compiler starts a process: one for both is enough.
    engine.grammars = plain(weights).grammars
    requests = drawn_requests(chance)
    heard = run(engine, requests, chance)
    for request, grammar in requests:
        got, wanted = heard[request.id], alone(plain(weights), request, grammar)
        context = f"{weights} {settings} {request}"
        if got.finish == "abort" != wanted.finish:
            assert got.tokens == wanted.tokens[: len(got.tokens)], context
            continue
        assert (got.tokens, got.text, got.finish) == (wanted.tokens, wanted.text, wanted.finish), context
        assert [one.token for one in got.logprobs] == [one.token for one in wanted.logprobs], context
        if weights["kv_dtype"] == "auto":
            # In INT8 a rounding of 1e-7 may move a number by a whole step.
            likely = pytest.approx([one.logprob for one in wanted.logprobs], abs=1e-3)
            assert [one.logprob for one in got.logprobs] == likely, context
    engine.tree.check()
    assert engine.tree.available_blocks == engine.tree.pool.capacity
