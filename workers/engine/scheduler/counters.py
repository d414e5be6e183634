"""Counts of draft tokens and of how many were accepted, since the engine started.

The names are those of vLLM's counters without their prefix `vllm:spec_decode_`:

    acceptance rate      num_accepted_tokens / num_draft_tokens
    accepted length      1 + num_accepted_tokens / num_drafts       tokens that a verifying step yielded on average
    wasted work          num_draft_tokens - num_accepted_tokens     positions computed in vain
"""

from dataclasses import dataclass, field, replace


@dataclass(slots=True, kw_only=True)
class SpecCounters:
    """Counts of speculative decoding over all sequences."""

    num_drafts: int = 0
    """Verifications: one for each sequence in each step in which it had drafts."""
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)
    """How often a first draft token was accepted, a second one, and so on."""

    def record(self, drafts: int, accepted: int, levels: int) -> None:
        """Count one verification of `drafts` draft tokens in `levels` levels, of which `accepted` were accepted."""
        self.num_drafts += 1
        self.num_draft_tokens += drafts
        self.num_accepted_tokens += accepted
        missing = levels - len(self.num_accepted_tokens_per_pos)
        self.num_accepted_tokens_per_pos += [0] * missing
        for position in range(accepted):
            self.num_accepted_tokens_per_pos[position] += 1

    @property
    def num_rejected_tokens(self) -> int:
        """Draft tokens that were computed in vain."""
        return self.num_draft_tokens - self.num_accepted_tokens

    @property
    def acceptance_rate(self) -> float:
        """Accepted draft tokens / draft tokens; 0 before the first."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def accepted_length(self) -> float:
        """Tokens per verification, with the one that every verification yields; 0 before the first."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else 0.0

    def copy(self) -> "SpecCounters":
        """Return a copy of the counts at this moment."""
        return replace(self, num_accepted_tokens_per_pos=list(self.num_accepted_tokens_per_pos))
