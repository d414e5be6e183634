"""Trees of drafts: a second candidate that is right is accepted, and nothing of the answer or the cache changes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.workers.engine.conftest import finish_all
from tests.unit.workers.engine.speculative.test_speculation import (
    hidden_states,
    request,
    tokens_of,
    told,
    words,
    write_heads,
)
from workers.engine.config.engine_config import EngineConfig
from workers.engine.config.speculation_config import SpecConfig
from workers.engine.engine import Engine
from workers.engine.grammar.grammar import Grammar, GrammarKind
from workers.engine.grammar.matcher import masks_along, masks_in_tree
from workers.engine.request import Request
from workers.engine.speculative.medusa_tree import ACCURACIES

HEADS = 3
FULL_TREE = 14
"""Two candidates after each draft: 2 + 4 + 8 drafts."""
PROMPT = words(33, start=43)
TOKENS = 29


def plain_engine(model: Path, **settings: Any) -> Engine:
    return Engine.load(EngineConfig(model=model, seed=0, **settings))


def heads_with_the_right_token_second(model: Path, directory: Path) -> Path:
    """Heads that know what the model says to PROMPT, with a wrong token that seems likelier at most positions."""
    engine = plain_engine(model)
    text = PROMPT + tokens_of(engine, request("a", PROMPT, max_tokens=TOKENS + 2))
    states = hidden_states(engine, text)[len(PROMPT) - 1 :]
    weights = {}
    for head in range(HEADS):
        targets = torch.tensor(text[len(PROMPT) + head + 1 :])
        places = torch.arange(len(targets))
        wanted = torch.zeros(len(targets), 512)
        wanted[places, (targets + 7) % 512] = 2.0 * (places % 3 != head)
        wanted[places, targets] = 1.0
        weights[f"{head}.0.linear.weight"] = torch.zeros(64, 64)
        weights[f"{head}.0.linear.bias"] = torch.zeros(64)
        weights[f"{head}.1.weight"] = torch.linalg.lstsq(
            states[: len(targets)], wanted
        ).solution.T.contiguous()
    write_heads(directory, weights)
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    config[ACCURACIES] = [[0.5, 0.5]] * HEADS
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def known_heads(
    tmp_path_factory: pytest.TempPathFactory, checkpoint: Callable[[str], Path]
) -> Callable[[str], Path]:
    """The heads for a variant, made at the first use."""
    made: dict[str, Path] = {}

    def heads(variant: str) -> Path:
        if variant not in made:
            directory = tmp_path_factory.mktemp("heads")
            made[variant] = heads_with_the_right_token_second(checkpoint(variant), directory)
        return made[variant]

    return heads


def tree_engine(model: Path, heads: Path, *, drafts: int = FULL_TREE, **settings: Any) -> Engine:
    speculation = SpecConfig(method="medusa", model=heads, num_tokens=drafts, adaptive=False)
    return plain_engine(model, speculation=speculation, **settings)


@pytest.mark.parametrize(
    ("variant", "settings"),
    [
        ("llama-gqa", {"block_size": 4}),
        ("llama-gqa", {"block_size": 1}),
        ("llama-gqa", {"kv_dtype": "k8v4"}),
        ("llama-gqa", {"kv_layout": "contiguous"}),
        ("mistral-window", {"block_size": 4}),
        ("mistral-window-of-two", {"block_size": 1}),
        ("qwen3-window", {"block_size": 4}),
    ],
)
def test_second_candidates_are_accepted_and_the_answer_is_that_of_plain_decoding(
    variant: str,
    settings: dict[str, Any],
    checkpoint: Callable[[str], Path],
    known_heads: Callable[[str], Path],
) -> None:
    asked = request("a", PROMPT, max_tokens=TOKENS)
    wanted = tokens_of(plain_engine(checkpoint(variant), **settings), asked)
    engine = tree_engine(checkpoint(variant), known_heads(variant), **settings)
    # The second time the prompt is a prefix hit, also on blocks that hold what was moved together.
    longer = request("b", PROMPT + wanted[:-8], max_tokens=8)
    assert (wanted, wanted[-8:]) == (tokens_of(engine, asked), tokens_of(engine, longer))
    if settings.get("kv_dtype") is None:
        # Otherwise the model says something else than the heads know.
        assert engine.speculation.accepted_length > 3


def test_rows_that_verify_trees_share_steps_with_prompts_in_chunks(
    checkpoint: Callable[[str], Path], known_heads: Callable[[str], Path]
) -> None:
    """Chunks of as many tokens as a tree has rows, beside trees: each is computed by its own rule."""
    requests = [request(str(n), PROMPT[: 33 - n] if n else PROMPT, max_tokens=TOKENS) for n in range(6)]
    wanted = told(
        {asked.id: finish_all(plain_engine(checkpoint("llama-gqa")), [asked])[asked.id] for asked in requests}
    )
    for budget in (1 + FULL_TREE, 2 + 2 * FULL_TREE, 100):
        engine = tree_engine(
            checkpoint("llama-gqa"), known_heads("llama-gqa"), chunk_tokens=budget, block_size=4
        )
        assert wanted == told(finish_all(engine, requests))
        assert engine.speculation.num_accepted_tokens > 0


@pytest.mark.parametrize("max_tokens", range(1, 7))
def test_an_answer_of_few_tokens_gets_few_levels(
    max_tokens: int, checkpoint: Callable[[str], Path], known_heads: Callable[[str], Path]
) -> None:
    engine = tree_engine(checkpoint("llama-gqa"), known_heads("llama-gqa"), block_size=4)
    engine.submit(request("a", PROMPT, max_tokens=max_tokens))
    drafts = []
    plan = engine.scheduler.plan

    def watched(*now: float) -> Any:
        made = plan(*now)
        drafts.extend(item.drafts for item in made.items)
        return made

    engine.scheduler.plan = watched  # type: ignore[method-assign]
    while engine.has_work:
        engine.step()
    # The prompt gives one token; each level of 2, 4 and 8 drafts may give one more, and the step one besides.
    assert drafts[1:2] == {1: [], 2: [0], 3: [2], 4: [6]}.get(max_tokens, [14])


def test_an_adaptive_engine_takes_fewer_levels_where_candidates_are_wrong(
    checkpoint: Callable[[str], Path], known_heads: Callable[[str], Path]
) -> None:
    speculation = SpecConfig(
        method="medusa", model=known_heads("llama-gqa"), num_tokens=FULL_TREE, verify_cost=0.05
    )
    engine = plain_engine(checkpoint("llama-gqa"), speculation=speculation)
    wanted = tokens_of(
        plain_engine(checkpoint("llama-gqa")), request("a", words(20, start=9), max_tokens=200)
    )
    assert tokens_of(engine, request("a", words(20, start=9), max_tokens=200)) == wanted
    # Without adapting each of the 199 steps would verify the whole tree.
    assert engine.speculation.num_draft_tokens < 199 * FULL_TREE / 20


@pytest.mark.parametrize("seed", [None, 4])
def test_a_grammar_masks_each_path_of_drafts_alone(
    seed: int | None, checkpoint: Callable[[str], Path], known_heads: Callable[[str], Path]
) -> None:
    grammar = Grammar(kind=GrammarKind.REGEX, text=r"(red|green|blue)( (one|two|three)){2,6}\.")

    def answer(engine: Engine) -> list[int]:
        asked = request("a", PROMPT, max_tokens=60, temperature=0.0 if seed is None else 1.0, seed=seed)
        held = Request(
            id="a", prompt=asked.prompt, params=asked.params, matcher=engine.grammars.compile(grammar)
        )
        found = tokens_of(engine, held)
        engine.grammars.close()
        return found

    engine = tree_engine(checkpoint("llama-gqa"), known_heads("llama-gqa"))
    assert answer(engine) == answer(plain_engine(checkpoint("llama-gqa")))
    assert engine.speculation.num_draft_tokens > 0


def test_masks_in_a_tree_are_those_along_each_of_its_paths(checkpoint: Callable[[str], Path]) -> None:
    engine = plain_engine(checkpoint("llama-gqa"))
    a, b, c = (engine.tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "abc")
    matcher = engine.grammars.compile(Grammar(kind=GrammarKind.REGEX, text="(ab|ba|aac)+"))
    drafts, parents = [a, b, c, b, a, c, a], [-1, -1, -1, 0, 0, 4, 1]
    masks = masks_in_tree(matcher, drafts, parents)
    paths = [[], [a], [b], [], [a, b], [a, a], [a, a, c], [b, a]]
    assert [row.tolist() for row in masks] == [masks_along(matcher, path)[0][-1].tolist() for path in paths]
    engine.grammars.close()
