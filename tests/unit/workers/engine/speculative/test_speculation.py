"""Speculation changes the number of steps and nothing else: same tokens, same endings, same blocks, same cache."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from workers.engine.config.engine_config import EngineConfig
from workers.engine.config.speculation_config import SpecConfig
from workers.engine.engine import Engine
from workers.engine.errors import CheckpointInvalid, ConfigInvalid
from workers.engine.grammar.grammar import Grammar, GrammarKind
from workers.engine.request import Request
from workers.engine.sampling.sampling_params import SamplingParams
from workers.engine.scheduler.plan import StepItem
from workers.engine.scheduler.sequence import FinishReason, Sequence
from workers.engine.speculative.medusa import HEADS_FILE
from workers.engine.speculative.model_drafter import LAG_MAX, early_exit
from workers.engine.tiny_checkpoint import build

NOISE = 0.04
METHODS = ["ngram", "draft_model", "early_exit", "medusa"]
TREE_DRAFTS = 7
"""Drafts of the tree of three heads: 3 for the next token but one, then 3, then 1."""
Finish = Callable[..., dict[str, Any]]
Speculate = Callable[..., Engine]


def request(name: str, prompt: list[int], **params: Any) -> Request:
    settings = {"max_tokens": 24, "temperature": 0.0, "ignore_eos": True, **params}
    return Request(id=name, prompt=prompt, params=SamplingParams(**settings))


def words(count: int, start: int = 10) -> list[int]:
    """Ends as it begins, so that there is something to look up."""
    once = [start + (number * 37) % 400 for number in range(max(1, count // 2))]
    return (once * 3)[:count]


def some(**params: Any) -> list[Request]:
    return [
        request(f"{length}", words(length, start=10 + length), **params)
        for length in (1, 3, 15, 16, 17, 33, 70)
    ]


@pytest.fixture(scope="session")
def heads(tmp_path_factory: pytest.TempPathFactory, checkpoint: Callable[[str], Path]) -> Path:
    """Medusa heads for "llama-gqa" that know what it says to `words(33, start=43)`, and nothing else.

    A head without residual is a matrix W with W h = target. A tiny model's states along one text are linearly
    independent, so there is one for any targets: no training.
    """
    engine = Engine.load(EngineConfig(model=checkpoint("llama-gqa")))
    prompt = words(33, start=43)
    text = prompt + tokens_of(engine, request("a", prompt, max_tokens=31))
    states = hidden_states(engine, text)[len(prompt) - 1 :]
    weights = {}
    for head in range(3):
        targets = torch.tensor(text[len(prompt) + head + 1 :])
        known = states[: len(targets)]
        wanted = torch.nn.functional.one_hot(targets, 512).float()
        weights[f"{head}.0.linear.weight"] = torch.zeros(64, 64)
        weights[f"{head}.0.linear.bias"] = torch.zeros(64)
        weights[f"{head}.1.weight"] = torch.linalg.lstsq(known, wanted).solution.T.contiguous()
    return write_heads(tmp_path_factory.mktemp("medusa"), weights)


def write_heads(directory: Path, weights: dict[str, torch.Tensor], heads: int = 3) -> Path:
    save_file(weights, directory / HEADS_FILE)
    config = {"medusa_num_heads": heads, "medusa_num_layers": 1, "base_model_name_or_path": "tiny"}
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


def tokens_of(engine: Engine, asked: Request) -> list[int]:
    engine.submit(asked)
    tokens: list[int] = []
    while engine.has_work:
        for output in engine.step():
            tokens += output.tokens
    return tokens


def hidden_states(engine: Engine, text: list[int]) -> torch.Tensor:
    """Last hidden state of each position, [tokens, hidden], computed by the engine's own decoder."""
    decoder = engine._runner._decoder
    seen: list[torch.Tensor] = []

    class Watched:
        spec, embedding, logits = decoder.spec, decoder.embedding, decoder.logits

        def forward(self, *inputs: Any) -> torch.Tensor:
            seen.append(decoder.forward(*inputs))
            return seen[-1]

    engine.flush_cache()
    engine._runner._decoder = Watched()
    tokens_of(engine, request("watched", text, max_tokens=1))
    engine._runner._decoder = decoder
    return torch.cat(seen)[-len(text) :]


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory, checkpoint: Callable[[str], Path]) -> Path:
    """A model that agrees with "llama-gqa" about half of the time: the same, with noise in its weights."""
    directory = tmp_path_factory.mktemp("draft") / "draft"
    shutil.copytree(checkpoint("llama-gqa"), directory)
    weights = load_file(directory / "model.safetensors")
    chance = torch.Generator().manual_seed(0)
    noisy = {
        name: weight + NOISE * weight.std() * torch.randn(weight.shape, generator=chance)
        for name, weight in weights.items()
    }
    save_file(noisy, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


@pytest.fixture
def speculate(load: Callable[..., Engine], heads: Path, other: Path) -> Speculate:
    """An engine that speculates by a method."""

    def engine(
        method: str, *, model: Path | None = None, spec: dict[str, Any] | None = None, **settings: Any
    ) -> Engine:
        drafts = TREE_DRAFTS if method == "medusa" else 3
        chosen: dict[str, Any] = {"adaptive": False, "num_tokens": drafts, **(spec or {})}
        if method == "draft_model":
            chosen["model"] = model or other
        elif method == "medusa":
            chosen["model"] = model or heads
        elif method == "early_exit":
            chosen["exit_layer"] = 1
        return load(speculation=SpecConfig(method=method, **chosen), **settings)

    return engine


@pytest.fixture(scope="module")
def plain(checkpoint: Callable[[str], Path]) -> Callable[[list[Request]], dict[str, list[int]]]:
    """What an engine says that does not speculate, each request alone and from an empty cache; asked once."""
    engine = Engine.load(EngineConfig(model=checkpoint("llama-gqa"), seed=0))
    known: dict[str, list[int]] = {}

    def answer(asked: Request) -> list[int]:
        name = repr((asked.prompt, asked.params))
        if name not in known:
            engine.flush_cache()
            known[name] = tokens_of(engine, asked)
        return known[name]

    return lambda requests: {asked.id: answer(asked) for asked in requests}


def told(answers: dict[str, Any]) -> dict[str, list[int]]:
    return {name: answer.tokens for name, answer in answers.items()}


@pytest.mark.parametrize("method", METHODS)
def test_greedy_tokens_are_those_of_plain_decoding(
    method: str, speculate: Speculate, finish: Finish, plain: Callable[..., dict[str, list[int]]]
) -> None:
    wanted = plain(some())
    alone = speculate(method)
    assert wanted == {asked.id: finish(alone, [asked])[asked.id].tokens for asked in some()}
    # Again, each with a prefix hit: on the same engine.
    assert wanted == {asked.id: finish(alone, [asked])[asked.id].tokens for asked in some()}
    assert wanted == told(finish(speculate(method), some()))
    assert alone.speculation.num_draft_tokens > 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "settings",
    [
        {"chunk_tokens": 5},
        {"chunk_tokens": 16, "block_size": 1, "kv_tokens": 1024},
        {"block_size": 4, "kv_tokens": 200},
        {"running_max": 2},
    ],
    ids=["chunked", "blocks-of-one", "preempted", "few-run"],
)
def test_greedy_tokens_stay_the_same_chunked_preempted_and_queued(
    method: str,
    settings: dict[str, Any],
    speculate: Speculate,
    finish: Finish,
    plain: Callable[..., dict[str, list[int]]],
) -> None:
    engine = speculate(method, **settings)
    preempted: list[str] = []
    plan = engine.scheduler.plan
    engine.scheduler.plan = lambda *now: (made := plan(*now), preempted.extend(s.id for s in made.preempted))[
        0
    ]
    for _ in range(2):
        assert plain(some()) == told(finish(engine, some()))
    assert bool(preempted) == (settings.get("kv_tokens") == 200)
    assert engine.speculation.num_draft_tokens > 0


@pytest.mark.parametrize("method", METHODS)
def test_a_request_with_a_seed_gets_the_same_tokens_as_without_speculation(
    method: str, speculate: Speculate, finish: Finish, plain: Callable[..., dict[str, list[int]]]
) -> None:
    cut = some(temperature=0.8, top_p=0.9, top_k=50, seed=5)
    requests = [*cut, request("open", words(9), temperature=0.7, seed=6)]
    wanted = plain(requests)
    assert wanted == told(finish(speculate(method), requests))
    tight = speculate(method, chunk_tokens=9, block_size=4, kv_tokens=240)
    assert wanted == told(finish(tight, requests))


@pytest.mark.parametrize("method", METHODS)
def test_grammars_penalties_and_log_probabilities_are_those_of_plain_decoding(
    method: str, load: Callable[..., Engine], speculate: Speculate, finish: Finish
) -> None:
    """Each row sees the drafts before it: as history, and as a place in the grammar."""
    grammar = Grammar(kind=GrammarKind.REGEX, text="([a-d]{2,5} [0-9]{1,3}; )+")

    def requests(engine: Engine) -> list[Request]:
        settings: list[dict[str, Any]] = [
            {"temperature": 0.0},
            {"temperature": 3.0, "seed": 7},
            {"temperature": 1.0, "seed": 8, "frequency_penalty": 1.5, "repetition_penalty": 1.3},
            {"temperature": 0.0, "logprobs": 2, "presence_penalty": -1.0},
        ]
        asked = [request(str(n), words(12 + n), **chosen) for n, chosen in enumerate(settings)]
        return [replace(one, matcher=engine.grammars.compile(grammar)) for one in asked[:3]] + asked[3:]

    def run(engine: Engine) -> dict[str, Any]:
        answers = finish(engine, requests(engine))
        engine.grammars.close()
        return {name: (answer.tokens, answer.text, answer.finish) for name, answer in answers.items()}

    guessing = speculate(method)
    told_by_guessing = run(guessing)
    assert run(load()) == told_by_guessing
    assert guessing.speculation.num_draft_tokens > 0
    for name in "012":
        assert re.match("([a-d]{2,5} [0-9]{1,3}; )", told_by_guessing[name][1])


def test_drafts_that_were_drawn_keep_to_the_grammar(speculate: Speculate, finish: Finish) -> None:
    engine = speculate("early_exit", spec={"draft_sample_method": "probabilistic"})
    grammar = Grammar(kind=GrammarKind.REGEX, text="[a-d]{9}(x|yy)[0-9]{9}")
    asked = [
        replace(request(str(n), words(9 + n), temperature=4.0), matcher=engine.grammars.compile(grammar))
        for n in range(8)
    ]
    answers = finish(engine, asked)
    engine.grammars.close()
    assert engine.speculation.num_draft_tokens > 0
    for answer in answers.values():
        assert (answer.finish, bool(re.fullmatch(grammar.text, answer.text))) == ("stop", True)


@pytest.mark.parametrize("method", ["draft_model", "early_exit"])
def test_an_engine_with_a_seed_repeats_what_it_drew_and_rejected(
    method: str, speculate: Speculate, finish: Finish
) -> None:
    requests = some(temperature=1.0)
    first, second = (finish(speculate(method, seed=3), requests) for _ in range(2))
    assert told(first) == told(second)
    assert told(first) != told(finish(speculate(method, seed=4), requests))


def test_a_draft_model_that_agrees_is_always_accepted(
    speculate: Speculate, finish: Finish, checkpoint: Callable[[str], Path]
) -> None:
    engine = speculate("draft_model", model=checkpoint("llama-gqa"))
    answer = finish(engine, [request("a", words(20), max_tokens=41)])["a"]
    counters = engine.speculation
    assert len(answer.tokens) == 41
    # The first token comes from the prompt; ten verifications of three drafts give the other forty.
    assert (counters.num_drafts, counters.num_draft_tokens, counters.num_accepted_tokens) == (10, 30, 30)
    assert counters.num_accepted_tokens_per_pos == [10, 10, 10]
    assert (counters.acceptance_rate, counters.accepted_length, counters.num_rejected_tokens) == (1.0, 4.0, 0)


@pytest.mark.parametrize("sampled", [False, True])
def test_a_draft_model_that_agrees_is_accepted_after_hits_pauses_and_preemption_too(
    sampled: bool, speculate: Speculate, finish: Finish, checkpoint: Callable[[str], Path]
) -> None:
    """Its own KV is right wherever the model's is: else it would disagree with itself."""
    engine = speculate(
        "draft_model",
        model=checkpoint("llama-gqa"),
        spec={"batch_size_max": 3},
        block_size=4,
        kv_tokens=260,
        chunk_tokens=24,
    )
    params = {"max_tokens": 40, **({"temperature": 0.9} if sampled else {})}
    for _ in range(3):
        # At times more than three decode, so that no drafts are made; at times the pool is full.
        finish(engine, some(**params))
    counters = engine.speculation
    assert counters.num_drafts > 30
    assert counters.num_rejected_tokens == 0


@pytest.mark.parametrize("method", ["draft_model", "early_exit"])
def test_drafts_are_the_answers_of_the_draft_model_alone(
    method: str, speculate: Speculate, load: Callable[..., Engine], finish: Finish, other: Path
) -> None:
    """However many of its drafts were rejected before, and whatever its KV held for them."""
    engine = speculate(method, block_size=4, kv_tokens=240, chunk_tokens=24)
    said: list[tuple[list[int], list[int]]] = []
    drafter = engine._runner._drafter
    propose = drafter.propose

    def listen(items: list[StepItem]) -> dict[Sequence, torch.Tensor]:
        result = propose(items)
        said.extend((list(item.sequence.tokens), list(item.sequence.drafts)) for item in items)
        return result

    drafter.propose = listen
    for _ in range(2):
        finish(engine, some())
    alone = load(model=other) if method == "draft_model" else load()
    if method == "early_exit":
        alone._runner._decoder = early_exit(alone._runner._decoder, 1)
    assert len(said) > 100
    assert 0.05 < engine.speculation.acceptance_rate < 0.9
    for number, (tokens, drafts) in enumerate(said):
        assert drafts == tokens_of(alone, request(str(number), tokens, max_tokens=len(drafts)))


def test_a_draft_model_catches_up_after_a_long_pause_before_it_drafts_again(
    speculate: Speculate, finish: Finish, checkpoint: Callable[[str], Path]
) -> None:
    engine = speculate(
        "draft_model", model=checkpoint("llama-gqa"), spec={"batch_size_max": 1}, chunk_tokens=20
    )
    engine.submit(request("a", words(8), max_tokens=120))
    engine.submit(request("b", words(9, start=60), max_tokens=60))
    lags = []
    while engine.has_work:
        engine.step()
        if len(engine.scheduler.running) == 1:
            sequence = engine.scheduler.running[0]
            lags.append(len(sequence.tokens) - engine._runner._drafter._computed(sequence))
    # Sixty tokens were computed without it. It works off twenty in a step, and only then drafts again.
    assert lags[0] > LAG_MAX
    assert lags[3] <= LAG_MAX
    assert engine.speculation.num_drafts > 10
    assert engine.speculation.num_rejected_tokens == 0


def test_early_exit_is_always_accepted_where_the_later_layers_change_nothing(
    speculate: Speculate, finish: Finish
) -> None:
    engine = speculate("early_exit", chunk_tokens=24)
    for part in (engine._runner._decoder.layers[1].output, engine._runner._decoder.layers[1].down):
        part.weight.zero_()
    finish(engine, some())
    finish(engine, some(temperature=1.2))
    assert engine.speculation.num_drafts > 50
    assert engine.speculation.num_rejected_tokens == 0


def test_medusa_heads_fitted_to_the_text_are_always_accepted(speculate: Speculate, finish: Finish) -> None:
    # So many drafts as heads, with typical accuracies: a chain.
    engine = speculate("medusa", spec={"num_tokens": 3}, block_size=4)
    for name in ("cold", "warm"):
        finish(engine, [request(name, words(33, start=43), max_tokens=29)])
        # One token from the prompt, four from each verification.
        assert (engine.speculation.accepted_length, engine.speculation.num_rejected_tokens) == (4.0, 0)


def test_a_loop_is_guessed_by_looking_it_up(speculate: Speculate, finish: Finish) -> None:
    engine = speculate("ngram", spec={"num_tokens": 8})
    # Without attention a token depends on the one before it only, so that greedy text ends in a loop.
    for layer in engine._runner._decoder.layers:
        layer.output.weight.zero_()
    answer = finish(engine, [request("a", words(9), max_tokens=400)])["a"]
    assert len(answer.tokens) == 400
    assert engine.speculation.num_accepted_tokens > 10 * engine.speculation.num_rejected_tokens


@pytest.mark.parametrize("place", range(5, 13))
def test_a_stop_token_among_accepted_drafts_ends_the_answer_there(
    place: int,
    speculate: Speculate,
    load: Callable[..., Engine],
    finish: Finish,
    checkpoint: Callable[[str], Path],
) -> None:
    whole = finish(load(), [request("a", words(20))])["a"]
    stop = frozenset({whole.tokens[place]})
    wanted = finish(load(), [request("a", words(20), stop_token_ids=stop)])["a"]
    engine = speculate("draft_model", model=checkpoint("llama-gqa"), block_size=4)
    answer = finish(engine, [request("a", words(20), stop_token_ids=stop)])["a"]
    assert (wanted.tokens, wanted.text, FinishReason.STOP) == (answer.tokens, answer.text, answer.finish)
    assert wanted.completion_tokens == answer.completion_tokens


@pytest.mark.parametrize("begin", [17, 20, 23, 26])
def test_a_stop_string_among_accepted_drafts_ends_the_answer_there(
    begin: int,
    speculate: Speculate,
    load: Callable[..., Engine],
    finish: Finish,
    checkpoint: Callable[[str], Path],
) -> None:
    whole = finish(load(), [request("a", words(9))])["a"].text
    stop = ("never said", whole[begin : begin + 5])
    wanted = finish(load(), [request("a", words(9), stop=stop)])["a"]
    engine = speculate("draft_model", model=checkpoint("llama-gqa"), block_size=4)
    answer = finish(engine, [request("a", words(9), stop=stop)])["a"]
    assert (wanted.tokens, wanted.text, FinishReason.STOP) == (answer.tokens, answer.text, answer.finish)
    assert wanted.completion_tokens == answer.completion_tokens == len(answer.tokens)


@pytest.mark.parametrize("max_tokens", range(1, 10))
def test_no_token_is_computed_behind_the_last_one_allowed(
    max_tokens: int, speculate: Speculate, finish: Finish, checkpoint: Callable[[str], Path]
) -> None:
    # Prompt and answer fill the pool exactly: one position more has no place.
    engine = speculate("draft_model", model=checkpoint("llama-gqa"), block_size=1, kv_tokens=11 + max_tokens)
    answer = finish(engine, [request("a", words(11), max_tokens=max_tokens)])["a"]
    assert (max_tokens, FinishReason.LENGTH) == (len(answer.tokens), answer.finish)


@pytest.mark.parametrize("method", METHODS)
def test_the_cache_has_accepted_tokens_and_no_rejected_draft(
    method: str, speculate: Speculate, load: Callable[..., Engine], finish: Finish
) -> None:
    engines = [load(block_size=4), speculate(method, block_size=4)]
    for engine in engines:
        finish(engine, some())
    cached = [
        {
            tuple(token for step in [*node.path_to_root()][::-1] for token in step.tokens)
            for node in engine.tree.nodes()
        }
        for engine in engines
    ]
    assert cached[0] == cached[1]


@pytest.mark.parametrize("method", METHODS)
def test_between_steps_a_sequence_holds_no_block_for_drafts(method: str, speculate: Speculate) -> None:
    engine = speculate(method, block_size=2)
    for asked in some():
        engine.submit(asked)
    while engine.has_work:
        engine.step()
        for sequence in engine.scheduler.running:
            assert len(sequence.blocks.ids) == -(-sequence.num_computed // 2)
            assert not sequence.drafts
        engine.tree.check()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_aborting_a_sequence_that_speculates_frees_everything(
    method: str, steps: int, speculate: Speculate
) -> None:
    engine = speculate(method, block_size=2)
    engine.submit(request("a", words(20)))
    for _ in range(steps):
        engine.step()
    assert engine.abort("a") is not None
    assert not engine.has_work
    assert engine.loads().used_tokens == 0
    engine.tree.check()


def test_above_the_largest_batch_nothing_is_drafted(speculate: Speculate, finish: Finish) -> None:
    engine = speculate("early_exit", spec={"batch_size_max": 2})
    finish(engine, [request(str(n), words(8, start=n), max_tokens=20) for n in range(3)])
    assert engine.speculation.num_drafts == 0
    finish(engine, [request(str(n), words(8, start=n), max_tokens=20) for n in range(2)])
    assert engine.speculation.num_drafts > 0


def test_where_drafts_are_rejected_an_adaptive_engine_stops_drafting(
    speculate: Speculate, finish: Finish, tmp_path: Path
) -> None:
    shape = {"hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 48, "vocab": 512}
    stranger = build(tmp_path / "draft", **shape, context=512, init=0.3, seed=9)
    counters = {}
    for adaptive in (True, False):
        engine = speculate("draft_model", model=stranger, spec={"adaptive": adaptive})
        finish(engine, [request("a", words(8), max_tokens=300)])
        counters[adaptive] = engine.speculation
    assert counters[False].acceptance_rate < 0.1
    assert counters[True].num_draft_tokens < counters[False].num_draft_tokens / 3


def test_the_rate_of_generation_counts_tokens_and_not_steps(
    speculate: Speculate, checkpoint: Callable[[str], Path]
) -> None:
    engine = speculate("draft_model", model=checkpoint("llama-gqa"))
    now = iter(range(1000))
    engine._meter._clock = lambda: float(next(now))
    engine.submit(request("a", words(20), max_tokens=60))
    for _ in range(4):
        engine.step()
    # Three drafts and one more in each second.
    assert engine.loads().generated_per_second == pytest.approx(4.0)


def test_a_draft_model_with_other_tokens_is_refused(tmp_path: Path, speculate: Speculate) -> None:
    shape = {"hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 48, "context": 512}
    with pytest.raises(ConfigInvalid, match="300 tokens and the model 512"):
        speculate("draft_model", model=build(tmp_path / "draft", **shape, vocab=300))


def test_a_draft_model_with_a_shorter_context_is_refused(tmp_path: Path, speculate: Speculate) -> None:
    shape = {"hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 48, "vocab": 512}
    draft = build(tmp_path / "draft", **shape, context=64)
    with pytest.raises(ConfigInvalid, match="64 tokens is shorter than 512"):
        speculate("draft_model", model=draft)
    speculate("draft_model", model=draft, context_length=64)


def test_an_exit_behind_the_last_layer_is_refused(load: Callable[..., Engine]) -> None:
    with pytest.raises(ConfigInvalid, match="less than the model's 2 layers"):
        load(speculation=SpecConfig(method="early_exit", exit_layer=2))


@pytest.mark.parametrize("prefix", ["", "medusa_heads."])
def test_heads_without_a_matrix_of_their_own_use_the_models(
    prefix: str, tmp_path: Path, speculate: Speculate, finish: Finish
) -> None:
    weights = {f"{prefix}0.0.linear.weight": torch.zeros(64, 64), f"{prefix}0.0.linear.bias": torch.zeros(64)}
    engine = speculate("medusa", model=write_heads(tmp_path, weights, heads=1))
    finish(engine, some())
    assert engine.speculation.num_draft_tokens > 0


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"0.0.linear.weight": torch.zeros(64, 64)}, r"no tensor 0\.0\.linear\.bias"),
        (
            {"0.0.linear.weight": torch.zeros(8, 8), "0.0.linear.bias": torch.zeros(64)},
            r"0\.0\.linear\.weight has shape \(8, 8\), not \(64, 64\)",
        ),
        (
            {
                "0.0.linear.weight": torch.zeros(64, 64),
                "0.0.linear.bias": torch.zeros(64),
                "0.1.weight": torch.zeros(300, 64),
            },
            r"0\.1\.weight has shape \(300, 64\), not \(512, 64\)",
        ),
    ],
)
def test_heads_that_do_not_fit_are_refused_by_name(
    weights: dict[str, torch.Tensor], message: str, tmp_path: Path, speculate: Speculate
) -> None:
    with pytest.raises(CheckpointInvalid, match=message):
        speculate("medusa", model=write_heads(tmp_path, weights, heads=1))


def test_heads_that_are_no_safetensors_are_refused(tmp_path: Path, speculate: Speculate) -> None:
    write_heads(tmp_path, {})
    (tmp_path / HEADS_FILE).write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointInvalid, match="cannot be read"):
        speculate("medusa", model=tmp_path)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", [None, 8])
def test_processors_count_the_drafts_before_their_position(
    method: str,
    seed: int | None,
    speculate: Speculate,
    finish: Finish,
    plain: Callable[..., dict[str, list[int]]],
) -> None:
    # Strong enough that one draft too many or too few in the history would change what comes next.
    requests = some(
        seed=seed,
        temperature=0.0 if seed is None else 0.8,
        presence_penalty=1.5,
        frequency_penalty=1.0,
        repetition_penalty=1.4,
        min_tokens=9,
        logprobs=2,
    )
    assert plain(requests) == told(finish(speculate(method), requests))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("params", [{}, {"temperature": 1.0, "seed": 3}, {"temperature": 1.0}])
def test_an_answer_held_to_a_grammar_keeps_it_with_drafts(
    method: str, params: dict[str, Any], speculate: Speculate, load: Callable[..., Engine], finish: Finish
) -> None:
    pattern = r"(red|green|blue)( (one|two|three)){2,6}\."

    def asked(engine: Engine) -> Request:
        settings = SamplingParams(max_tokens=80, **{"temperature": 0.0, **params})
        matcher = engine.grammars.compile(Grammar(kind=GrammarKind.REGEX, text=pattern))
        return Request(id="a", prompt=words(20), params=settings, matcher=matcher)

    alone, engine = load(seed=1), speculate(method, seed=1)
    wanted, found = finish(alone, [asked(alone)])["a"], finish(engine, [asked(engine)])["a"]
    assert re.fullmatch(pattern, found.text)
    # Without a seed of its own a sampled request may be told something else, by the same odds.
    if params != {"temperature": 1.0}:
        assert wanted.tokens == found.tokens
