"""Guesses of a model that is cheaper than the one it guesses for.

    early exit     the first layers of the model itself, then its norm and head. No weights and no KV of its own:
                   it writes keys and values of these layers into the model's own blocks, where the model, when it
                   verifies, writes the same numbers again                     (Zhang et al. 2023, Draft & Verify;
                                                                                Elhoushi et al. 2024, LayerSkip)
    draft model    a smaller model with the same tokens and a KV store of its own, under the same block ids
                                                                               (Leviathan et al. 2023)

    tokens   a b c d e             held: what its KV has (see draft_kv); here 3
    step 1         d e -> f        one span of all that it lacks
    step 2             f -> g      then one token after the other, for all sequences together
    step 3               g -> h

It prefills beside the model, chunk by chunk. What it lacks beyond that (it did not run while nobody wanted guesses)
it works off in the same way, a bounded number of tokens in a step, before it guesses again.
"""

from collections.abc import Sequence as Items
from dataclasses import replace
from weakref import WeakSet

import torch
from torch import Tensor

from workers.engine.attention.attention_backend import AttentionBackend
from workers.engine.execution.packing import pack
from workers.engine.execution.sampling_rows import draw_uniform, sampling_row_after_drafts
from workers.engine.model.decoder import Decoder
from workers.engine.sampling.distribution import distribution
from workers.engine.sampling.random_numbers import RandomStream
from workers.engine.sampling.sampler import draw_tokens, sample_tokens
from workers.engine.scheduler.drafter import ComputedStep
from workers.engine.scheduler.plan import StepItem
from workers.engine.scheduler.sequence import Sequence
from workers.engine.speculative.draft_kv import DraftKV

LAG_MAX = 32
"""Tokens that it may catch up with while it guesses; a larger lag is worked off beside other steps."""


def early_exit(decoder: Decoder, layers: int) -> Decoder:
    """The model cut after its first layers; it shares weights, and the numbers of its layers."""
    return replace(decoder, layers=decoder.layers[:layers])


class ModelDrafter:
    """Drafter that runs a decoder. Without `own_kv` it reads and writes the KV of the model that it guesses for."""

    def __init__(
        self,
        decoder: Decoder,
        attention: AttentionBackend,
        device: torch.device,
        *,
        cost: float,
        draws: bool,
        catch_up_tokens: int,
        own_kv: DraftKV | None = None,
    ) -> None:
        self.cost = cost
        self._decoder = decoder
        self._attention = attention
        self._device = device
        self._draws = draws
        self._catch_up_tokens = catch_up_tokens
        self._kv = own_kv
        self._behind: WeakSet[Sequence] = WeakSet()

    def draft_count(self, sequence: Sequence, limit: int) -> int:
        """As promised by Drafter."""
        if limit and len(sequence.tokens) - self._held(sequence) > LAG_MAX:
            self._behind.add(sequence)
            return 0
        self._behind.discard(sequence)
        return limit

    def propose(self, items: Items[StepItem]) -> dict[Sequence, Tensor]:
        """As promised by Drafter; one pass over the batch for each guess."""
        for item in items:
            item.sequence.drafts = []
        drawn_from: dict[Sequence, list[Tensor]] = {
            item.sequence: [] for item in items if self._draws_for(item.sequence)
        }
        depth, going = 0, list(items)
        while going:
            self._guess([item.sequence for item in going], drawn_from)
            depth += 1
            going = [item for item in going if item.drafts > depth]
        return {sequence: torch.stack(rows) for sequence, rows in drawn_from.items()}

    def after_step(self, step: ComputedStep) -> None:
        """Forget what did not stand; prefill beside the model; work off a lag."""
        if self._kv is None:
            return
        results = iter(step.tokens)
        budget, late = self._catch_up_tokens, []
        for item in step.items:
            sequence = item.sequence
            known = item.start + item.count - item.drafts
            if item.samples:
                accepted = len(next(results)) - 1
                self._kv.cut(sequence.blocks, known + accepted)
            if item.drafts or (sequence.is_decoding and sequence not in self._behind):
                continue
            held = self._held(sequence)
            count = min(known - held, budget)
            if count > 0:
                budget -= count
                late.append(StepItem(sequence=sequence, start=held, count=count, samples=False))
        if late:
            self._forward(late)

    def _guess(self, sequences: Items[Sequence], drawn_from: dict[Sequence, list[Tensor]]) -> None:
        """One more guess for each."""
        logits = self._decoder.logits(self._forward([self._lacking(sequence) for sequence in sequences]))
        rows = [sampling_row_after_drafts(sequence) for sequence in sequences]
        drawn = [place for place, sequence in enumerate(sequences) if sequence in drawn_from]
        others = [place for place, sequence in enumerate(sequences) if sequence not in drawn_from]
        tokens = dict[int, int]()
        if others:
            # With the chance of the token itself: where the two models agree about the odds, they draw alike.
            tokens.update(
                zip(others, sample_tokens(logits[others], [rows[place] for place in others]), strict=True)
            )
        if drawn:
            offered = distribution(logits[drawn], [rows[place] for place in drawn])
            who = [sequences[place] for place in drawn]
            guesses = draw_tokens(
                offered, [draw_uniform(one, len(one.drafts), RandomStream.DRAFT) for one in who]
            )
            tokens.update(zip(drawn, guesses.tolist(), strict=True))
            for sequence, distributed in zip(who, offered, strict=True):
                drawn_from[sequence].append(distributed)
        for place, sequence in enumerate(sequences):
            sequence.drafts.append(tokens[place])

    def _lacking(self, sequence: Sequence) -> StepItem:
        """All that must be computed before the next guess."""
        end = len(sequence.tokens) + len(sequence.drafts)
        start = end - 1 if sequence.drafts else self._held(sequence)
        return StepItem(sequence=sequence, start=start, count=end - start, samples=True)

    def _forward(self, items: Items[StepItem]) -> Tensor:
        """Compute the items; hidden states [items that sample, hidden]."""
        packed = pack(items, self._device)
        hidden = self._decoder.forward(packed.tokens, packed.positions, self._attention.begin(packed.spans))
        if self._kv:
            for item in items:
                self._kv.fill(item.sequence.blocks, item.start, item.start + item.count)
        return hidden.index_select(0, packed.sampled)

    def _held(self, sequence: Sequence) -> int:
        """Positions whose keys and values it can read; at least one is always lacking."""
        if self._kv is None:
            return sequence.num_computed
        return min(self._kv.held(sequence.blocks), len(sequence.tokens) - 1)

    def _draws_for(self, sequence: Sequence) -> bool:
        """Are this sequence's guesses drawn? Not with a seed: its tokens are to be those of plain decoding."""
        return self._draws and not sequence.params.greedy and sequence.params.seed is None
