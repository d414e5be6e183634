"""The decoder against transformers: logits within 1e-4, greedy tokens equal, however the work is cut."""

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from workers.engine.attention.attention_backend import AttentionSpan
from workers.engine.config.engine_config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.execution import token_drawing as drawing_module
from workers.engine.request import Request
from workers.engine.sampling.sampling_params import SamplingParams

NEW_TOKENS = 12
LENGTHS = (1, 3, 15, 16, 17, 33, 48, 70)
LENGTHS_BY_SINGLE_TOKENS = LENGTHS[:6]
"""Of a prompt whose tokens are computed one a step, two blocks of the largest size are enough."""
ALL_VARIANTS = [f"{a}-{h}" for a in ("llama", "qwen2", "qwen3", "mistral") for h in ("mha", "gqa", "mqa")]
BUDGETS, BLOCK_SIZES = (1, 7, 48, 100_000), (1, 4, 16)
"""One variant runs with each pair of these, the others with each budget and each block size."""
WINDOWS = ["mistral-window", "mistral-window-of-two", "qwen2-window", "qwen3-window"]


def prompts() -> list[list[int]]:
    chance = random.Random(7)
    return [[chance.randrange(4, 500) for _ in range(length)] for length in LENGTHS]


def greedy_requests(name: str) -> list[Request]:
    params = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True)
    return [Request(id=f"{name}{n}", prompt=prompt, params=params) for n, prompt in enumerate(prompts())]


@pytest.fixture(scope="session")
def expected(checkpoint: Callable[[str], Path]) -> Callable[[str], list[list[int]]]:
    """What `generate` answers to the prompts, per variant."""
    known: dict[str, list[list[int]]] = {}

    def answers(variant: str) -> list[list[int]]:
        if variant not in known:
            model = AutoModelForCausalLM.from_pretrained(checkpoint(variant), dtype=torch.float32)
            known[variant] = [
                model.generate(
                    torch.tensor([prompt]),
                    attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                    max_new_tokens=NEW_TOKENS,
                    do_sample=False,
                    eos_token_id=None,
                    pad_token_id=3,
                )[0][len(prompt) :].tolist()
                for prompt in prompts()
            ]
        return known[variant]

    return answers


@pytest.mark.parametrize("variant", ALL_VARIANTS + WINDOWS)
def test_each_prompt_alone_gets_the_tokens_that_generate_gives(
    variant: str,
    load: Callable[..., Engine],
    finish: Callable[..., Any],
    expected: Callable[[str], list[list[int]]],
) -> None:
    engine = load(variant)
    answers = [finish(engine, [request])[request.id].tokens for request in greedy_requests("alone")]
    assert expected(variant) == answers


@pytest.mark.parametrize(
    ("variant", "budget", "block_size"),
    [
        *itertools.product(["llama-gqa"], BUDGETS, BLOCK_SIZES),
        *(
            (variant, budget, BLOCK_SIZES[(number + place) % 3])
            for number, variant in enumerate(ALL_VARIANTS)
            for place, budget in enumerate(BUDGETS)
            if variant != "llama-gqa"
        ),
        *itertools.product(WINDOWS, (7, 100_000), (4, 16)),
    ],
)
def test_a_ragged_batch_gets_the_same_tokens_cold_and_from_the_cache(
    variant: str,
    budget: int,
    block_size: int,
    load: Callable[..., Engine],
    finish: Callable[..., Any],
    expected: Callable[[str], list[list[int]]],
) -> None:
    engine = load(variant, chunk_tokens=budget, block_size=block_size, kv_tokens=2048)
    lengths = LENGTHS_BY_SINGLE_TOKENS if budget == 1 else LENGTHS
    for name in ("cold", "warm"):
        answers = finish(engine, greedy_requests(name)[: len(lengths)])
        assert expected(variant)[: len(lengths)] == [answer.tokens for answer in answers.values()]
        wanted = [0 if name == "cold" else (length - 1) // block_size * block_size for length in lengths]
        assert wanted == [answer.cached_tokens for answer in answers.values()]


def test_requests_that_come_while_others_decode_get_the_same_tokens(
    load: Callable[..., Engine], expected: Callable[[str], list[list[int]]]
) -> None:
    engine = load("llama-gqa", chunk_tokens=16)
    arriving = greedy_requests("late")
    answers: dict[str, list[int]] = {request.id: [] for request in arriving}
    while arriving or engine.has_work:
        if arriving:
            engine.submit(arriving.pop(0))
        for _ in range(3):
            for output in engine.step():
                answers[output.id] += output.tokens
    assert expected("llama-gqa") == list(answers.values())


@pytest.mark.parametrize("variant", ALL_VARIANTS + WINDOWS)
def test_logits_are_those_of_transformers(
    variant: str,
    checkpoint: Callable[[str], Path],
    load: Callable[..., Engine],
    finish: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[torch.Tensor] = []
    real = drawing_module.sample_tokens
    monkeypatch.setattr(
        drawing_module,
        "sample_tokens",
        lambda logits, rows: seen.append(logits.clone()) or real(logits, rows),
    )
    prompt = prompts()[-1]
    engine = load(variant, chunk_tokens=24)
    params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    tokens = finish(engine, [Request(id="a", prompt=prompt, params=params)])["a"].tokens
    model = AutoModelForCausalLM.from_pretrained(checkpoint(variant), dtype=torch.float32)
    with torch.inference_mode():
        wanted = model(torch.tensor([prompt + tokens[:-1]])).logits[0, len(prompt) - 1 :]
    torch.testing.assert_close(torch.cat(seen), wanted, atol=1e-4, rtol=0)


ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 500_000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 10_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 8.0,
        "original_max_position_embeddings": 64,
    },
}


@pytest.mark.parametrize(
    ("family", "kind", "tied"),
    [
        *(("llama", kind, tied) for kind in ROPES for tied in (True, False)),
        ("qwen2", "yarn", True),
        ("qwen3", "llama3", True),
        ("qwen3", "yarn", False),
        ("mistral", "linear", False),
    ],
)
def test_checkpoints_that_transformers_saved_run_the_same(
    family: str,
    kind: str,
    tied: bool,
    tmp_path: Path,
    checkpoint: Callable[[str], Path],
    finish: Callable[..., Any],
) -> None:
    """Every rope kind, biases where they can be, a tied head, several shards, and the new form of config.json."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family,
        vocab_size=512,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16 if family == "qwen2" else 32,
        max_position_embeddings=512,
        initializer_range=0.3,
        rope_parameters=ROPES[kind],
        tie_word_embeddings=tied,
        attention_bias=True,
        mlp_bias=True,
        eos_token_id=2,
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    (tmp_path / "tokenizer.json").write_bytes((checkpoint("llama-gqa") / "tokenizer.json").read_bytes())
    prompt = prompts()[-1] * 2
    wanted = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=24,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=3,
    )
    engine = Engine.load(EngineConfig(model=tmp_path, chunk_tokens=50))
    params = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
    answer = finish(engine, [Request(id="a", prompt=prompt, params=params)])["a"]
    assert wanted[0][len(prompt) :].tolist() == answer.tokens


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("variant", ["llama-gqa", "qwen2-mqa"])
def test_a_cuda_device_gives_the_same_tokens(
    variant: str,
    load: Callable[..., Engine],
    finish: Callable[..., Any],
    expected: Callable[[str], list[list[int]]],
) -> None:
    engine = load(variant, device="cuda", chunk_tokens=48)
    for name in ("cold", "warm"):
        assert expected(variant) == [a.tokens for a in finish(engine, greedy_requests(name)).values()]


@pytest.mark.parametrize("variant", ["llama-gqa", "qwen2-mqa", "qwen3-gqa", "mistral-window"])
def test_bfloat16_is_as_close_to_float32_as_that_of_transformers(
    variant: str,
    checkpoint: Callable[[str], Path],
    load: Callable[..., Engine],
    record_property: Callable[[str, object], None],
) -> None:
    # Equality is a property of float32 only. Teacher-forced: every position of the same text, one after another.
    text = prompts()[-1]
    exact = AutoModelForCausalLM.from_pretrained(checkpoint(variant), dtype=torch.float32)
    rounded = AutoModelForCausalLM.from_pretrained(checkpoint(variant), dtype=torch.bfloat16)
    with torch.inference_mode():
        wanted, theirs = (model(torch.tensor([text])).logits[0].float() for model in (exact, rounded))
    engine = load(variant, dtype="bfloat16")
    assert engine.info.dtype == "bfloat16"
    ours = forced_logits(engine, text)
    errors = [(seen - wanted).abs().max().item() for seen in (ours, theirs)]
    agreed = [(seen.argmax(-1) == wanted.argmax(-1)).float().mean().item() for seen in (ours, theirs)]
    record_property("max_logit_error", errors[0])
    record_property("top1_agreement", agreed[0])
    # Our angles stay in float32, so we should be no worse.
    assert errors[0] <= 1.5 * errors[1]
    assert agreed[0] >= agreed[1] - 0.1
    assert agreed[0] > 0.7


def forced_logits(engine: Engine, text: list[int]) -> torch.Tensor:
    """The scores after every token of `text`, [tokens, vocab]: the model alone, over the engine's own attention."""
    runner: Any = engine._runner
    blocks = list(range(1, 1 + -(-len(text) // engine.info.block_size)))
    with torch.inference_mode():
        step = runner._attention.begin([AttentionSpan(start=0, count=len(text), blocks=blocks)])
        hidden = runner._decoder.forward(torch.tensor(text), torch.arange(len(text)), step)
        return runner._decoder.logits(hidden)
