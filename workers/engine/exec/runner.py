"""Runs a plan: pack, forward, draw. It decides nothing."""

import torch

from workers.engine.attention.base import AttentionBackend
from workers.engine.exec.packing import pack
from workers.engine.model.decoder import Decoder
from workers.engine.sample.rng import uniform
from workers.engine.sample.sampler import Draw, sample
from workers.engine.sched.plan import StepPlan
from workers.engine.sched.sequence import Sequence


class Runner:
    """One decoder on one device."""

    def __init__(self, decoder: Decoder, attention: AttentionBackend, device: torch.device) -> None:
        self._decoder = decoder
        self._attention = attention
        self._device = device

    def run(self, plan: StepPlan) -> list[int]:
        """Compute the plan's tokens; one sampled token for each item that samples, in the plan's order."""
        with torch.inference_mode():
            packed = pack(plan.items, self._device)
            hidden = self._decoder.forward(
                packed.tokens, packed.positions, self._attention.begin(packed.spans)
            )
            if not len(packed.sampled):
                return []
            logits = self._decoder.logits(hidden.index_select(0, packed.sampled))
            return sample(logits, [_draw(item.sequence) for item in plan.items if item.samples])


def _draw(sequence: Sequence) -> Draw:
    params = sequence.params
    if params.greedy:
        return Draw(temperature=None)
    return Draw(
        temperature=params.temperature,
        top_k=max(0, params.top_k),
        top_p=params.top_p,
        # The position that the token will have: the same before and after a preemption.
        uniform=uniform(sequence.seed, len(sequence.tokens)),
    )
