"""Feedback from answers: compares the cached tokens that a worker reports with what the index knew at dispatch.

    nothing reported       nothing is learnt
    more than was known    the index records the path up to there
    less                   the rest is cut, with everything below it, unless another request was or is under way on
                           that path: then the report might be outdated
    less, of a worker      its confidence falls instead, since it is unknown which of the counts are wrong
    with confidence < 1

Counts are in whole blocks, and leave out the prompt's last token, which engines always compute.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.domain.prompt_blocks import PromptBlocks
from gateway.kv_index.match_confidence import MatchConfidence
from radix_cache.blocks import Hashes
from radix_cache.index import PrefixIndex
from radix_cache.match import PrefixMatch, WorkerId
from radix_cache.namespace import Namespace


@dataclass(slots=True)
class _Path:
    """The requests with the same first block on one worker: how many in all, and how many under way."""

    sent: int = 0
    under_way: int = 0


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the index knew of a request's worker when the request was dispatched."""

    worker: WorkerId
    prompt: PromptBlocks
    known: int
    """Leading blocks that the worker was known to hold."""
    alone: bool
    """No other request was bringing that path to the worker."""
    number: int
    """The serial number of the request among those with the same first block on the worker."""


class Feedback:
    """Learns from the cached tokens that workers report.

    For every attempt call `request_sent`, then `cache_reported` (if the worker reports), then `request_ended`.

    Args:
        index: The prefix index.
        confidence: How far to trust the index for each worker.
        hold_reported: Called with a path that a worker reported as cached and the index did not have.
    """

    def __init__(
        self,
        index: PrefixIndex,
        confidence: MatchConfidence,
        hold_reported: Callable[[Namespace, Hashes, WorkerId], None],
    ) -> None:
        self.confidence = confidence
        self._hold_reported = hold_reported
        self._index = index
        self._paths: dict[tuple[WorkerId, int], _Path] = {}

    def trusted_blocks(self, match: PrefixMatch, worker: WorkerId) -> int:
        """Return how many leading blocks routing should count on."""
        share = self.confidence.of(worker)
        if share == 1.0:
            return match.blocks(worker)
        return max(int(match.held(worker) * share), match.pending.get(worker, 0))

    def request_sent(
        self, worker: WorkerId, prompt: PromptBlocks, match: PrefixMatch | None = None
    ) -> Expectation:
        """Note that a request is dispatched; call this before the index records its prediction.

        `match` is the index's match of the prompt, if the caller has it.
        """
        if not prompt.hashes:
            return Expectation(worker, prompt, 0, False, 0)
        if match is None:
            match = self._index.match(prompt.namespace, prompt.hashes)
        path = self._paths.setdefault((worker, prompt.hashes[0]), _Path())
        alone = not path.under_way and not match.pending.get(worker)
        path.sent += 1
        path.under_way += 1
        return Expectation(worker, prompt, match.held(worker), alone, path.sent)

    def request_ended(self, expectation: Expectation) -> None:
        """Note that the request has ended."""
        if not expectation.prompt.hashes:
            return
        key = (expectation.worker, expectation.prompt.hashes[0])
        path = self._paths[key]
        path.under_way -= 1
        if not path.under_way:
            del self._paths[key]

    def cache_reported(self, expectation: Expectation, writer: str, cached_tokens: int | None) -> None:
        """Learn from the cached tokens that the worker reported.

        Call this after the path was confirmed in the index, and before the prediction is withdrawn.
        """
        prompt, worker = expectation.prompt, expectation.worker
        if cached_tokens is None or not prompt.hashes:
            return
        size = prompt.namespace.block_size
        possible = (prompt.prompt_tokens - 1) // size
        if len(prompt.hashes) - possible not in (0, 1):
            return  # Several prompts: the tokens count all of them, the blocks only the first.
        held = min(cached_tokens // size, possible)
        known = min(expectation.known, possible)
        self.confidence.learn(worker, known, held)
        if held > known:
            self._hold_reported(prompt.namespace, prompt.hashes[:held], worker)
        elif held < known and not self.confidence.is_hybrid(worker):
            path = self._paths[worker, prompt.hashes[0]]
            if expectation.alone and path.sent == expectation.number:
                self._index.report(prompt.namespace, prompt.hashes, worker, writer, held)
