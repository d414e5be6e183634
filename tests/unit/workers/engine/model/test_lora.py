"""A request of a LoRA adapter gets the tokens of the merged model W + scale B A, whatever else is in the batch."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.fakes.tiny_lora import build_lora, generated, merged_model
from workers.engine.config.lora_config import LoraConfig
from workers.engine.config.speculation_config import SpecConfig
from workers.engine.engine import Engine
from workers.engine.errors import RequestRefused
from workers.engine.model.lora import LoraPart, LoraUpdate
from workers.engine.request import Request
from workers.engine.sampling.sampling_params import SamplingParams

NEW_TOKENS = 12
PROMPT_LENGTHS = (1, 7, 33)
NAMES = ("", "all", "attention", "rslora", "second-layer")
"""The adapters of the tests; the empty name is the model itself."""

Expected = Callable[[str], dict[tuple[str, int], list[int]]]


def prompts() -> list[list[int]]:
    chance = random.Random(11)
    return [[chance.randrange(4, 500) for _ in range(length)] for length in PROMPT_LENGTHS]


def requests(batch: str) -> list[Request]:
    """Each prompt for each adapter, the adapters in turn."""
    params = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True)
    return [
        Request(id=f"{batch} {name} {number}", prompt=prompt, params=params, lora=name)
        for number, prompt in enumerate(prompts())
        for name in NAMES
    ]


@pytest.fixture(scope="session")
def adapters(
    checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[tuple[str, Path], ...]]:
    """The adapters of a variant."""
    root, known = tmp_path_factory.mktemp("adapters"), dict[str, tuple[tuple[str, Path], ...]]()

    def built(variant: str) -> tuple[tuple[str, Path], ...]:
        if variant not in known:
            place, model = root / variant, checkpoint(variant)
            known[variant] = (
                ("all", build_lora(place / "all", model, seed=1)),
                (
                    "attention",
                    build_lora(
                        place / "attention", model, seed=2, rank=2, alpha=5, targets=["q_proj", "v_proj"]
                    ),
                ),
                ("rslora", build_lora(place / "rslora", model, seed=3, rank=8, alpha=4, use_rslora=True)),
                (
                    "second-layer",
                    build_lora(
                        place / "second",
                        model,
                        seed=4,
                        targets=["up_proj", "down_proj"],
                        layers=[1],
                        size=0.5,
                    ),
                ),
            )
        return known[variant]

    return built


@pytest.fixture(scope="session")
def expected(
    checkpoint: Callable[[str], Path], adapters: Callable[[str], tuple[tuple[str, Path], ...]]
) -> Expected:
    """By adapter and number of the prompt, what `generate` of the merged model answers."""
    known: dict[str, dict[tuple[str, int], list[int]]] = {}

    def answers(variant: str) -> dict[tuple[str, int], list[int]]:
        if variant not in known:
            found = dict[tuple[str, int], list[int]]()
            for name, path in (("", None), *adapters(variant)):
                model = merged_model(checkpoint(variant), path)
                for number, prompt in enumerate(prompts()):
                    found[name, number] = generated(model, prompt, NEW_TOKENS)
            known[variant] = found
        return known[variant]

    return answers


def answers_by_request(batch: str, found: dict[str, Any]) -> dict[tuple[str, int], list[int]]:
    return {
        (name, number): found[f"{batch} {name} {number}"].tokens
        for name in NAMES
        for number in range(len(PROMPT_LENGTHS))
    }


@pytest.mark.parametrize(
    ("variant", "settings"),
    [
        ("llama-gqa", {"chunk_tokens": 7, "block_size": 4}),
        ("llama-gqa", {"prefix_caching": False}),
        ("llama-gqa", {"kv_layout": "none"}),
        ("qwen2-mha", {}),
        ("qwen3-mqa", {"running_max": 2, "block_size": 1}),
        ("mistral-window", {"block_size": 4}),
    ],
    ids=str,
)
def test_a_mixed_batch_gets_the_tokens_of_each_merged_model_cold_and_warm(
    variant: str,
    settings: dict[str, Any],
    load: Callable[..., Engine],
    finish: Callable[..., Any],
    adapters: Callable[[str], tuple[tuple[str, Path], ...]],
    expected: Expected,
) -> None:
    engine = load(variant, lora=LoraConfig(adapters=adapters(variant)), kv_tokens=4096, **settings)
    for batch in ("cold", "warm"):
        found = finish(engine, requests(batch))
        assert expected(variant) == answers_by_request(batch, found)


def test_the_adapters_of_the_tests_change_the_answers(expected: Expected) -> None:
    answers = expected("llama-gqa")
    longest = len(PROMPT_LENGTHS) - 1
    assert len({tuple(answers[name, longest]) for name in NAMES}) == len(NAMES)


@pytest.mark.parametrize(
    "speculation",
    [
        SpecConfig(method="ngram", prompt_lookup_min=1, adaptive=False),
        SpecConfig(method="early_exit", exit_layer=1, adaptive=False),
        SpecConfig(method="draft_model", model=Path(), adaptive=False),
    ],
    ids=lambda given: given.method,
)
def test_drafts_change_no_answer_of_an_adapter(
    speculation: SpecConfig,
    load: Callable[..., Engine],
    finish: Callable[..., Any],
    checkpoint: Callable[[str], Path],
    adapters: Callable[[str], tuple[tuple[str, Path], ...]],
    expected: Expected,
) -> None:
    if speculation.model is not None:
        speculation = SpecConfig(method="draft_model", model=checkpoint("llama-gqa"), adaptive=False)
    engine = load(
        lora=LoraConfig(adapters=adapters("llama-gqa")), speculation=speculation, kv_tokens=4096, block_size=4
    )
    for batch in ("cold", "warm"):
        assert expected("llama-gqa") == answers_by_request(batch, finish(engine, requests(batch)))
    assert engine.speculation.num_draft_tokens > 0


def test_blocks_of_one_adapter_are_no_hits_for_another_or_for_the_model(
    load: Callable[..., Engine],
    finish: Callable[..., Any],
    adapters: Callable[[str], tuple[tuple[str, Path], ...]],
) -> None:
    engine = load(lora=LoraConfig(adapters=adapters("llama-gqa")))
    prompt = list(range(10, 60))
    params = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)

    def cached(number: int, name: str) -> int:
        request = Request(id=f"{number} {name}", prompt=prompt, params=params, lora=name)
        found: int = finish(engine, [request])[request.id].cached_tokens
        return found

    assert [cached(1, name) for name in NAMES] == [0] * len(NAMES)
    assert [cached(2, name) for name in NAMES] == [48] * len(NAMES)


def test_preempted_requests_of_adapters_get_the_same_tokens(
    load: Callable[..., Engine],
    finish: Callable[..., Any],
    adapters: Callable[[str], tuple[tuple[str, Path], ...]],
    expected: Expected,
) -> None:
    engine = load(lora=LoraConfig(adapters=adapters("llama-gqa")), kv_tokens=96, block_size=4)
    found = finish(engine, requests("tight"))
    assert expected("llama-gqa") == answers_by_request("tight", found)
    assert engine.metrics.preemptions > 0


def test_a_choice_of_another_adapter_shares_no_prefill(
    load: Callable[..., Engine],
    finish: Callable[..., Any],
    adapters: Callable[[str], tuple[tuple[str, Path], ...]],
    expected: Expected,
) -> None:
    engine = load(lora=LoraConfig(adapters=adapters("llama-gqa")))
    last = len(PROMPT_LENGTHS) - 1
    params = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True)
    names = ("all", "all", "rslora", "")
    forks = [
        Request(
            id=str(number),
            prompt=prompts()[last],
            params=params,
            lora=name,
            fork_of="0" if number else None,
        )
        for number, name in enumerate(names)
    ]
    found = finish(engine, forks)
    assert [found[request.id].tokens for request in forks] == [
        expected("llama-gqa")[name, last] for name in names
    ]


def test_equal_prompts_of_two_adapters_do_not_wait_for_each_other(
    load: Callable[..., Engine], adapters: Callable[[str], tuple[tuple[str, Path], ...]]
) -> None:
    engine = load(lora=LoraConfig(adapters=adapters("llama-gqa")))
    params = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
    for name in NAMES:
        engine.submit(Request(id=name or "base", prompt=list(range(10, 60)), params=params, lora=name))
    assert len(engine.step()) == len(NAMES)


def test_an_embedding_of_an_adapter_is_that_of_the_merged_model(
    load: Callable[..., Engine],
    checkpoint: Callable[[str], Path],
    adapters: Callable[[str], tuple[tuple[str, Path], ...]],
) -> None:
    paths = dict(adapters("llama-gqa"))
    engine = load(lora=LoraConfig(adapters=adapters("llama-gqa")))
    prompt = prompts()[-1]
    merged = merged_model(checkpoint("llama-gqa"), paths["all"])
    with torch.no_grad():
        hidden = merged.model(torch.tensor([prompt])).last_hidden_state[0, -1]
    assert engine.embedder is not None
    text = engine.embedder.begin(prompt, "all")
    while not text.done:
        text.advance(10)
    torch.testing.assert_close(torch.tensor(text.vector), F.normalize(hidden, dim=0), atol=1e-5, rtol=1e-4)


def test_adapters_work_over_quantised_weights(
    load: Callable[..., Engine],
    finish: Callable[..., Any],
    adapters: Callable[[str], tuple[tuple[str, Path], ...]],
) -> None:
    """A mixed batch says what each request says alone."""
    engine = load(lora=LoraConfig(adapters=adapters("llama-gqa")), quantization="int8", prefix_caching=False)
    together = finish(engine, requests("together"))
    for request in requests("alone"):
        alone = finish(engine, [request])[request.id].tokens
        assert together[request.id.replace("alone", "together")].tokens == alone


def test_an_unknown_adapter_is_refused(load: Callable[..., Engine]) -> None:
    params = SamplingParams(max_tokens=2)
    with pytest.raises(RequestRefused, match="no LoRA adapter 'sql'") as caught:
        load().submit(Request(id="a", prompt=[5], params=params, lora="sql"))
    assert caught.value.param == "model"


def test_an_update_changes_its_rows_and_its_columns_only() -> None:
    update = LoraUpdate(
        down=torch.eye(2),
        parts=(LoraPart(ranks=slice(0, 2), columns=slice(1, 3), up=torch.eye(2)),),
    )
    outputs = torch.zeros(3, 4)
    update.add(outputs, torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), torch.tensor([0, 2]))
    assert outputs.tolist() == [[0, 1, 2, 0], [0, 0, 0, 0], [0, 5, 6, 0]]
