"""Drafts by a model that is cheaper than the one that verifies them.

    early exit     the first layers of the model itself, then its norm and head. No weights and no KV of its own:
                   the drafter writes keys and values of these layers into the model's own blocks, where the model
                   writes the same numbers again when it verifies              (Zhang et al. 2023, Draft & Verify;
                                                                                Elhoushi et al. 2024, LayerSkip)
    draft model    a smaller model with the same tokens and a KV store of its own, under the same block ids
                                                                               (Leviathan et al. 2023)

    tokens   a b c d e             the drafter's KV has the first 3 (see draft_kv)
    step 1         d e -> f        one span of all positions that it lacks
    step 2             f -> g      then one token after the other, for all sequences together
    step 3               g -> h

The drafter prefills along with the model, chunk by chunk. Positions that it lacks beyond that, because it did not
run while no drafts were wanted, it computes in the same way, a bounded number of tokens in a step, before it drafts
again.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import replace
from weakref import WeakSet

import torch
from torch import Tensor

from workers.engine.attention.attention_backend import AttentionBackend
from workers.engine.execution.packing import pack
from workers.engine.execution.step_sampling_rows import draw_uniform, sampling_row_after_drafts
from workers.engine.model.decoder import Decoder
from workers.engine.model.lora import LoraAdapter, lora_groups
from workers.engine.sampling.distribution import distribution
from workers.engine.sampling.random_numbers import RandomStream
from workers.engine.sampling.sampler import draw_tokens, sample_tokens
from workers.engine.scheduler.drafter import ComputedStep
from workers.engine.scheduler.plan import StepItem
from workers.engine.scheduler.sequence import Sequence
from workers.engine.speculative.draft_kv import DraftKV

LAG_MAX = 32
"""Most positions that a drafter may lack when it makes drafts; a larger lag is computed along with other steps."""


def early_exit(decoder: Decoder, layers: int) -> Decoder:
    """Return the model cut after its first `layers` layers; weights and layer numbers are shared."""
    return replace(decoder, layers=decoder.layers[:layers])


class ModelDrafter:
    """A drafter that runs a decoder: a smaller draft model, or the first layers of the model itself."""

    def __init__(
        self,
        decoder: Decoder,
        attention: AttentionBackend,
        device: torch.device,
        *,
        cost: float,
        samples_drafts: bool,
        catch_up_tokens: int,
        own_kv: DraftKV | None = None,
        loras: Mapping[str, LoraAdapter] | None = None,
    ) -> None:
        """Start without sequences.

        Args:
            decoder: The draft model.
            attention: Its attention, over the KV that it reads and writes.
            device: Where it computes.
            cost: The time of making one draft, as a share of a plain step.
            samples_drafts: Whether the drafts of sampled requests are sampled too, and not the most likely tokens.
            catch_up_tokens: Most tokens of a step that the drafter computes to reduce its lag.
            own_kv: What the draft model has in its own KV; None where it shares the KV of the model.
            loras: The LoRA adapters of the decoder; None: it drafts without them.
        """
        self.cost = cost
        self.tree = None
        self._decoder = decoder
        self._attention = attention
        self._device = device
        self._samples_drafts = samples_drafts
        self._catch_up_tokens = catch_up_tokens
        self._kv = own_kv
        self._loras = loras
        self._behind: WeakSet[Sequence] = WeakSet()

    def draft_count(self, sequence: Sequence, limit: int) -> int:
        """Return `limit`, or 0 for a sequence with a lag too large for drafts."""
        if limit and len(sequence.tokens) - self._computed(sequence) > LAG_MAX:
            self._behind.add(sequence)
            return 0
        self._behind.discard(sequence)
        return limit

    def propose(self, items: Items[StepItem]) -> dict[Sequence, Tensor]:
        """Make the drafts with one pass over the batch for each, and return the distributions of sampled ones."""
        for item in items:
            item.sequence.drafts = []
        draft_distributions: dict[Sequence, list[Tensor]] = {
            item.sequence: [] for item in items if self._samples_for(item.sequence)
        }
        depth, remaining = 0, list(items)
        while remaining:
            self._add_draft([item.sequence for item in remaining], draft_distributions)
            depth += 1
            remaining = [item for item in remaining if item.drafts > depth]
        return {sequence: torch.stack(rows) for sequence, rows in draft_distributions.items()}

    def after_step(self, step: ComputedStep) -> None:
        """Drop rejected drafts, prefill along with the model, and reduce the lag."""
        if self._kv is None:
            return
        results = iter(step.tokens)
        budget, lagging = self._catch_up_tokens, []
        for item in step.items:
            sequence = item.sequence
            known = item.start + item.count - item.drafts
            if item.samples:
                accepted = len(next(results)) - 1
                self._kv.truncate(sequence.blocks, known + accepted)
            if item.drafts or (sequence.is_decoding and sequence not in self._behind):
                continue
            computed = self._computed(sequence)
            count = min(known - computed, budget)
            if count > 0:
                budget -= count
                lagging.append(StepItem(sequence=sequence, start=computed, count=count, samples=False))
        if lagging:
            self._forward(lagging)

    def _add_draft(
        self, sequences: Items[Sequence], draft_distributions: dict[Sequence, list[Tensor]]
    ) -> None:
        """Add one more draft to each sequence."""
        logits = self._decoder.logits(self._forward([self._lacking(sequence) for sequence in sequences]))
        rows = [sampling_row_after_drafts(sequence) for sequence in sequences]
        drawn = [place for place, sequence in enumerate(sequences) if sequence in draft_distributions]
        others = [place for place, sequence in enumerate(sequences) if sequence not in draft_distributions]
        tokens = dict[int, int]()
        if others:
            # With the random number of the token itself: where the two models agree, they sample the same token.
            tokens.update(
                zip(others, sample_tokens(logits[others], [rows[place] for place in others]), strict=True)
            )
        if drawn:
            offered = distribution(logits[drawn], [rows[place] for place in drawn])
            sampled = [sequences[place] for place in drawn]
            drafts = draw_tokens(
                offered, [draw_uniform(one, len(one.drafts), RandomStream.DRAFT) for one in sampled]
            )
            tokens.update(zip(drawn, drafts.tolist(), strict=True))
            for sequence, distributed in zip(sampled, offered, strict=True):
                draft_distributions[sequence].append(distributed)
        for place, sequence in enumerate(sequences):
            sequence.drafts.append(tokens[place])

    def _lacking(self, sequence: Sequence) -> StepItem:
        """Return the positions that must be computed before the next draft."""
        end = len(sequence.tokens) + len(sequence.drafts)
        start = end - 1 if sequence.drafts else self._computed(sequence)
        return StepItem(sequence=sequence, start=start, count=end - start, samples=True)

    def _forward(self, items: Items[StepItem]) -> Tensor:
        """Compute the items, and return the hidden states [items that sample, hidden]."""
        packed = pack(items, self._device)
        hidden = self._decoder.forward(
            packed.tokens,
            packed.positions,
            self._attention.begin(packed.spans),
            lora_groups(packed.lora_rows, self._loras) if self._loras is not None else (),
        )
        if self._kv:
            for item in items:
                self._kv.mark_computed(item.sequence.blocks, item.start, item.start + item.count)
        return hidden.index_select(0, packed.sampled)

    def _computed(self, sequence: Sequence) -> int:
        """Return how many positions the drafter can read; it always lacks at least one."""
        if self._kv is None:
            return sequence.num_computed
        return min(self._kv.computed_positions(sequence.blocks), len(sequence.tokens) - 1)

    def _samples_for(self, sequence: Sequence) -> bool:
        """Return whether drafts are sampled; not with a seed, to get the tokens of plain decoding."""
        return self._samples_drafts and not sequence.params.greedy and sequence.params.seed is None
