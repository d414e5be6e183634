"""Sampled speculation with a draft model: 3,000 texts against their exact probabilities.

That the rule is right is proved in `test_rejection_sampling.py`. Here its parts are put together wrongly, if they
are: a processor that does not see the drafts, a chance used twice, KV of another text. Looks K + 2 tokens deep
behind the first one, which comes from the prompt and has no drafts.
"""

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from workers.engine.attention.attention_backend import AttentionSpan
from workers.engine.attention.sdpa_backend import SdpaBackend
from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.config.speculation_config import SpecConfig
from workers.engine.execution import token_drawing as drawing_module
from workers.engine.execution.model_runner import ModelRunner
from workers.engine.kv.block_pool import BlockPool
from workers.engine.kv.kv_codec import kv_codec
from workers.engine.kv.kv_store import KVStore
from workers.engine.kv.prefix_tree import PrefixTree
from workers.engine.model.decoder import Decoder
from workers.engine.model.weight_loading import load_decoder
from workers.engine.sampling.distribution import distribution
from workers.engine.sampling.random_numbers import RandomStream
from workers.engine.sampling.sampling_params import SamplingParams
from workers.engine.sampling.sampling_row import SamplingRow
from workers.engine.scheduler.scheduler import Scheduler
from workers.engine.scheduler.sequence import Sequence
from workers.engine.scheduler.speculation import SpeculationController
from workers.engine.speculative.draft_kv import DraftKV
from workers.engine.speculative.model_drafter import ModelDrafter, early_exit

DRAWS = 3_000
DRAFTS = 2
DEPTH = DRAFTS + 2
PROMPT = [0, 1, 2, 1, 0]
BLOCKS, SIZE = 4_000, 4
CPU = torch.device("cpu")
Text = tuple[int, ...]


def model(directory: Path, vocab: int, seed: int) -> Decoder:
    """Two small layers over very few tokens, whose odds are far from even."""
    chance = torch.Generator().manual_seed(seed)
    config = {
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
    }
    shapes = {"self_attn.q_proj": (16, 16), "self_attn.k_proj": (8, 16), "self_attn.v_proj": (8, 16)}
    shapes |= {f"mlp.{name}_proj": (16, 16) for name in ("gate", "up", "down")}
    shapes["self_attn.o_proj"] = (16, 16)
    weights = {
        f"model.layers.{layer}.{name}.weight": 0.5 * torch.randn(shape, generator=chance)
        for layer in range(2)
        for name, shape in shapes.items()
    }
    for layer in range(2):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{layer}.{norm}.weight"] = torch.ones(16)
    weights |= {
        "model.norm.weight": torch.ones(16),
        "model.embed_tokens.weight": torch.randn(vocab, 16, generator=chance),
        "lm_head.weight": 0.35 * torch.randn(vocab, 16, generator=chance),
    }
    directory.mkdir()
    save_file(weights, directory / "model.safetensors")
    spec = ModelSpec.from_config(config, {})
    return load_decoder(directory, spec, context_length=64, dtype=torch.float32, device=CPU)


def attention(decoder: Decoder) -> SdpaBackend:
    codec = kv_codec("auto", torch.float32)
    store = KVStore(
        decoder.spec, blocks=BLOCKS + 1, block_size=SIZE, codec=codec, dtype=torch.float32, device=CPU
    )
    return SdpaBackend(store, decoder.spec)


def drawn(target: Decoder, draft: Decoder, params: dict[str, Any], seed: int) -> tuple[Counter[Text], float]:
    """How often each text came, the first token left out; and the share of drafts that were accepted."""
    backend = attention(target)
    own = draft.layers[0] is not target.layers[0]
    drafter = ModelDrafter(
        draft,
        attention(draft) if own else backend,
        CPU,
        cost=0.0,
        samples_drafts=True,
        catch_up_tokens=10_000,
        own_kv=DraftKV(SIZE) if own else None,
    )
    config = SpecConfig(
        method="early_exit", exit_layer=1, num_tokens=DRAFTS, adaptive=False, batch_size_max=10_000
    )
    speculation = SpeculationController(config, drafter)
    scheduler = Scheduler(
        PrefixTree(BlockPool(BLOCKS, SIZE)),
        token_budget=100_000,
        running_max=256,
        waiting_max=DRAWS,
        speculation=speculation,
    )
    sequences = [
        Sequence(
            id=str(number),
            order=number,
            tokens=list(PROMPT),
            num_prompt=len(PROMPT),
            params=SamplingParams(max_tokens=1 + DEPTH, **params),
            seed=seed * DRAWS + number,
            salt="",
            stop_ids=frozenset(),
        )
        for number in range(DRAWS)
    ]
    runner = ModelRunner(target, backend, CPU, drafter)
    for sequence in sequences:
        scheduler.submit(sequence)
    while scheduler.has_work:
        plan = scheduler.plan()
        scheduler.commit(plan, runner.run(plan))
    begin = len(PROMPT) + 1
    counts = Counter(tuple(sequence.tokens[begin : begin + DEPTH]) for sequence in sequences)
    return counts, speculation.counters.acceptance_rate


def odds(target: Decoder, params: dict[str, Any]) -> dict[Text, float]:
    """Probability of each text of the model alone, summed over the first token; no blocks, batches or drafts."""
    backend, settings = attention(target), SamplingParams(max_tokens=99, **params)
    reached: dict[Text, float] = {(): 1.0}
    for _ in range(1 + DEPTH):
        longer: dict[Text, float] = {}
        for text, share in reached.items():
            tokens = [*PROMPT, *text]
            span = AttentionSpan(start=0, count=len(tokens), blocks=[1, 2, 3])
            hidden = target.forward(torch.tensor(tokens), torch.arange(len(tokens)), backend.begin([span]))
            row = SamplingRow(params=settings, tokens=tokens, num_prompt=len(PROMPT))
            for token, part in enumerate(distribution(target.logits(hidden[-1:]), [row])[0].tolist()):
                if part:
                    longer[(*text, token)] = share * part
        reached = longer
    total: dict[Text, float] = defaultdict(float)
    for text, share in reached.items():
        total[text[1:]] += share
    return total


def chi_square_tail(counts: Counter[Text], odds: dict[Text, float]) -> float:
    """Probability that right draws lie as far off as these. Texts expected less than five times are one."""
    cells: list[tuple[float, int]] = [
        (probability * DRAWS, counts[text]) for text, probability in odds.items() if probability * DRAWS >= 5
    ]
    rare = DRAWS - sum(wanted for wanted, _ in cells)
    if rare >= 5:
        cells.append((rare, DRAWS - sum(count for _, count in cells)))
    statistic = sum((count - wanted) ** 2 / wanted for wanted, count in cells)
    degrees = torch.tensor(len(cells) - 1, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees / 2, torch.tensor(statistic / 2, dtype=torch.float64)))


CASES = {
    "three tokens": (3, {}, False),
    "six tokens, penalised": (6, {"presence_penalty": 1.0, "repetition_penalty": 1.3, "min_p": 0.1}, False),
    "six tokens, cut, early exit": (6, {"temperature": 1.3, "top_p": 0.8, "top_k": 4}, True),
}


@pytest.mark.parametrize("case", CASES)
def test_texts_come_as_often_as_from_the_model_alone(case: str, tmp_path: Path) -> None:
    vocab, params, exits = CASES[case]
    target = model(tmp_path / "target", vocab, seed=1)
    draft = early_exit(target, 1) if exits else model(tmp_path / "draft", vocab, seed=2)
    with torch.inference_mode():
        counts, acceptance = drawn(target, draft, params, seed=1)
        assert 0.2 < acceptance < 0.95
        assert chi_square_tail(counts, odds(target, params)) > 1e-6


def test_one_chance_for_judging_and_replacing_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = drawing_module.draw_uniforms
    monkeypatch.setattr(
        drawing_module,
        "draw_uniforms",
        lambda sequence, count, _stream: real(sequence, count, RandomStream.ACCEPT),
    )
    target, draft = model(tmp_path / "target", 6, seed=1), model(tmp_path / "draft", 6, seed=2)
    with torch.inference_mode():
        counts, _ = drawn(target, draft, {}, seed=1)
        assert chi_square_tail(counts, odds(target, {})) < 1e-6


def test_the_tail_of_chi_square_is_the_one_in_the_tables() -> None:
    # Four even cells: three degrees of freedom, of which 7.815 cuts off one in twenty.
    share = DRAWS / 4
    step = (7.815 * share / 4) ** 0.5
    even = {(number,): 0.25 for number in range(4)}
    counts = Counter({(0,): share + step, (1,): share - step, (2,): share + step, (3,): share - step})
    assert chi_square_tail(counts, even) == pytest.approx(0.05, rel=1e-3)
