"""The runner of step plans: draft, pack, forward, sample, verify. It takes no scheduling decision.

items            a 5+1!    d 6+3~2!        b 0+4     written as StepPlan (plan.py) writes them
drafter.propose            d7 d8                     the draft tokens
decoder          one forward pass over all tokens and drafts
drawn            a6        d7 d8' d9                 the tokens that plain decoding would draw at each position
verify           a6        d7 d8'                    draft d8 was rejected, and with it the token after it
"""

from collections.abc import Mapping
from collections.abc import Sequence as Items

import torch
from torch import Tensor

from workers.engine.attention.attention_backend import AttentionBackend
from workers.engine.execution.decode_graphs import DecodeGraphs
from workers.engine.execution.packing import PackedStep, pack
from workers.engine.execution.step_sampling_rows import sampling_rows
from workers.engine.execution.token_drawing import ItemTokens, draw_step_tokens, first_rows, newest_rows
from workers.engine.id_tensor import id_tensor
from workers.engine.model.decoder import Decoder
from workers.engine.model.lora import LoraAdapter, lora_groups
from workers.engine.sampling.logprobs import LogprobReader, TokenLogprob
from workers.engine.scheduler.drafter import ComputedStep, Drafter
from workers.engine.scheduler.plan import SampledTokens, StepItem, StepPlan
from workers.engine.scheduler.sequence import Sequence

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
            draft_distributions = self._drafter.propose(drafting) if self._drafter and drafting else {}
            packed = pack(plan.items, self._device, plan.padding)
            hidden = self._forward(packed)
            hidden = hidden.index_select(0, packed.sampled)
            sampling = [item for item in plan.items if item.samples]
            results, logprobs = self._sample(sampling, hidden, draft_distributions) if sampling else ([], [])
            tokens = [drawn.tokens for drawn in results]
            if self._drafter:
                self._gather_accepted(sampling, results)
                newest = id_tensor(newest_rows(sampling, results), self._device)
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
        self, items: Items[StepItem], hidden: Tensor, draft_distributions: dict[Sequence, Tensor]
    ) -> tuple[list[ItemTokens], list[Logprobs]]:
        """Return the tokens of each item and their log probabilities.

        `hidden` [rows, hidden] has a row for each sampled position.
        """
        logits, wanted = self._decoder.logits(hidden), sampling_rows(items)
        # Before the logits are overwritten.
        reader = LogprobReader(logits, wanted)
        results = draw_step_tokens(items, wanted, logits, draft_distributions)
        return results, [
            reader.read([first + row for row in drawn.rows], drawn.tokens)
            for first, drawn in zip(first_rows(items), results, strict=True)
        ]

    def _gather_accepted(self, items: Items[StepItem], results: Items[ItemTokens]) -> None:
        """Move the KV of the accepted path of each tree of drafts to the places right after the last token."""
        for item, drawn in zip(items, results, strict=True):
            moves = [
                (item.start + row, item.start + place) for place, row in enumerate(drawn.rows) if row != place
            ]
            if moves:
                self._attention.move_tokens(item.sequence.blocks.ids, moves)
