"""The runner of step plans: draft, pack, forward, sample, verify. It takes no scheduling decision.

items            a 5+1!    d 6+3~2!        b 0+4     written as StepPlan (plan.py) writes them
drafter.propose            d7 d8                     the draft tokens
decoder          one forward pass over all tokens and drafts
drawn            a6        d7 d8' d9                 the tokens that plain decoding would draw at each position
verify           a6        d7 d8'                    draft d8 was rejected, and with it the token after it
"""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import accumulate, compress

import torch
from torch import Tensor

from workers.engine.attention.attention_backend import AttentionBackend
from workers.engine.execution.decode_graphs import DecodeGraphs
from workers.engine.execution.packing import PackedStep, pack
from workers.engine.execution.step_sampling_rows import draw_uniforms, sampling_rows
from workers.engine.id_tensor import id_tensor
from workers.engine.model.decoder import Decoder
from workers.engine.model.lora import LoraAdapter, lora_groups
from workers.engine.sampling.distribution import distribution
from workers.engine.sampling.logprobs import LogprobReader, TokenLogprob
from workers.engine.sampling.random_numbers import RandomStream
from workers.engine.sampling.rejection_sampling import count_agreed, verify_drafts
from workers.engine.sampling.sampler import sample_tokens
from workers.engine.sampling.sampling_row import SamplingRow
from workers.engine.scheduler.drafter import ComputedStep, Drafter
from workers.engine.scheduler.plan import SampledTokens, StepItem, StepPlan
from workers.engine.scheduler.sequence import Sequence

Tokens = tuple[int, ...]
Logprobs = tuple[TokenLogprob, ...]


class ModelRunner:
    """Runs step plans with one decoder on one device, and with a drafter where there is speculation."""

    def __init__(
        self,
        decoder: Decoder,
        attention: AttentionBackend,
        device: torch.device,
        drafter: Drafter | None = None,
        loras: Mapping[str, LoraAdapter] | None = None,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        self._decoder = decoder
        self._attention = attention
        self._device = device
        self._drafter = drafter
        self._loras = loras or {}
        self._graphs = graphs

    def run(self, plan: StepPlan) -> list[SampledTokens]:
        """Compute the plan's tokens, and return one result for each item that samples, in the plan's order."""
        with torch.inference_mode():
            self._attention.copy_blocks(plan.copies)
            drafting = [item for item in plan.items if item.drafts]
            drawn_from = self._drafter.propose(drafting) if self._drafter and drafting else {}
            packed = pack(plan.items, self._device, plan.padding)
            hidden = self._forward(packed)
            hidden = hidden.index_select(0, packed.sampled)
            sampling = [item for item in plan.items if item.samples]
            results, logprobs = self._sample(sampling, hidden, drawn_from) if sampling else ([], [])
            tokens = [drawn.tokens for drawn in results]
            if self._drafter:
                self._gather_accepted(sampling, results)
                newest = id_tensor(_newest(sampling, results), self._device)
                self._drafter.after_step(
                    ComputedStep(items=plan.items, hidden=hidden.index_select(0, newest), tokens=tokens)
                )
            return [
                SampledTokens(tokens=kept, logprobs=likely)
                for kept, likely in zip(tokens, logprobs, strict=True)
            ]

    def _forward(self, packed: PackedStep) -> Tensor:
        """Return the last hidden states of a step, by a CUDA graph where one fits and no row has an adapter."""
        groups = lora_groups(packed.lora_rows, self._loras)
        replayed = self._graphs.forward(packed) if self._graphs and not groups else None
        if replayed is not None:
            return replayed
        return self._decoder.forward(
            packed.tokens, packed.positions, self._attention.begin(packed.spans), groups
        )

    def _sample(
        self, items: Items[StepItem], hidden: Tensor, drawn_from: dict[Sequence, Tensor]
    ) -> tuple[list["_Drawn"], list[Logprobs]]:
        """Return the tokens of each item and their log probabilities.

        `hidden` [rows, hidden] has a row for each sampled position.
        """
        logits, wanted = self._decoder.logits(hidden), sampling_rows(items)
        # Before the logits are overwritten.
        reader = LogprobReader(logits, wanted)
        results = (
            self._verified(items, wanted, logits, drawn_from)
            if drawn_from
            else _compare(items, wanted, logits)
        )
        return results, [
            reader.read([first + row for row in drawn.rows], drawn.tokens)
            for first, drawn in zip(_firsts(items), results, strict=True)
        ]

    def _verified(
        self,
        items: Items[StepItem],
        wanted: Items[SamplingRow],
        logits: Tensor,
        drawn_from: dict[Sequence, Tensor],
    ) -> list["_Drawn"]:
        """Return the tokens of each item, in their order.

        Drafts that were drawn at random are judged by the distribution that they were drawn from (`_judge`); others
        are compared with the tokens that plain decoding draws (`_compare`).
        """
        judged = [item.sequence in drawn_from for item in items]
        of_judged = [was for item, was in zip(items, judged, strict=True) for _ in range(1 + item.drafts)]
        places = torch.tensor(of_judged, device=self._device)
        first = iter(
            _judge(
                list(compress(items, judged)), list(compress(wanted, of_judged)), logits[places], drawn_from
            )
        )
        second = iter(
            _compare(
                [item for item, was in zip(items, judged, strict=True) if not was],
                [row for row, was in zip(wanted, of_judged, strict=True) if not was],
                logits[~places],
            )
        )
        return [next(first if was else second) for was in judged]

    def _gather_accepted(self, items: Items[StepItem], results: Items["_Drawn"]) -> None:
        """Move the KV of the accepted path of each tree of drafts to the places right after the last token."""
        for item, drawn in zip(items, results, strict=True):
            moves = [
                (item.start + row, item.start + place) for place, row in enumerate(drawn.rows) if row != place
            ]
            if moves:
                self._attention.move_tokens(item.sequence.blocks.ids, moves)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """The tokens that one item yielded, and the rows of the item that they were drawn from."""

    tokens: Tokens
    rows: Items[int]


def _compare(items: Items[StepItem], wanted: Items[SamplingRow], logits: Tensor) -> list[_Drawn]:
    """Return the tokens of items with drafts that are accepted where plain decoding draws the same token."""
    drawn = sample_tokens(logits, wanted) if items else []
    results = []
    for first, item in zip(_firsts(items), items, strict=True):
        here = drawn[first : first + 1 + item.drafts]
        rows: Items[int]
        if item.draft_tree is None:
            rows = range(count_agreed(item.sequence.drafts, here[:-1]) + 1)
        else:
            rows = [0, *(number + 1 for number in item.draft_tree.accepted_path(item.sequence.drafts, here))]
        results.append(_Drawn(tuple(here[row] for row in rows), rows))
    return results


def _judge(
    items: Items[StepItem], wanted: Items[SamplingRow], logits: Tensor, drawn_from: dict[Sequence, Tensor]
) -> list[_Drawn]:
    """Return the tokens of items with drafts that were drawn from distributions of their own."""
    p = distribution(logits, wanted)
    nothing = p.new_zeros(1, p.shape[-1])
    verified = verify_drafts(
        p,
        torch.cat([part for item in items for part in (drawn_from[item.sequence], nothing)]),
        [item.sequence.drafts[: item.drafts] for item in items],
        [draw_uniforms(item.sequence, item.drafts, RandomStream.ACCEPT) for item in items],
        [draw_uniforms(item.sequence, item.drafts + 1, RandomStream.RESAMPLE) for item in items],
    )
    return [_Drawn(tokens, range(len(tokens))) for tokens in verified]


def _firsts(items: Items[StepItem]) -> list[int]:
    """Return the index of each item's first row among all sampled rows."""
    return list(accumulate((1 + item.drafts for item in items[:-1]), initial=0)) if items else []


def _newest(items: Items[StepItem], results: Items[_Drawn]) -> list[int]:
    """Return the index of the row that each item's last token was drawn from, among all sampled rows."""
    return [first + drawn.rows[-1] for first, drawn in zip(_firsts(items), results, strict=True)]
