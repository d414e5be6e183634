"""What an answer's worker reports as cached, held against what the index knew when the request left.

    nothing reported       nothing is known
    more than was known    the index learns that much
    less                   what was beyond it is cut, with all that hung there; but only if nobody else's request
                           was on its way along that path, or has come by since: the news might be old then
    less, of a worker      its credit falls instead: it is not known which of the counts are wrong
    that is in doubt

Counts are whole blocks, and of the prompt without its last token, which is always computed.
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
    """Requests on one worker under the same first block: how many there were, and how many are under way."""

    sent: int = 0
    under_way: int = 0


@dataclass(frozen=True, slots=True)
class Expectation:
    """What was known of a request's worker when it left. `alone`: nobody else was bringing that path there."""

    worker: WorkerId
    prompt: PromptBlocks
    known: int
    alone: bool
    number: int


class Feedback:
    """`sent`, then perhaps `reported`, then `left`, once each for every request and place."""

    def __init__(
        self, index: PrefixIndex, credits: MatchConfidence, raised: Callable[[Namespace, Hashes, WorkerId], None]
    ) -> None:
        """`raised`: told of a path that a worker says it held, and the index did not know of."""
        self.credits = credits
        self._raised = raised
        self._index = index
        self._paths: dict[tuple[WorkerId, int], _Path] = {}

    def blocks(self, match: PrefixMatch, worker: WorkerId) -> int:
        """Leading blocks that routing should count on."""
        credit = self.credits.of(worker)
        if credit == 1.0:
            return match.blocks(worker)
        return max(int(match.held(worker) * credit), match.pending.get(worker, 0))

    def sent(
        self, worker: WorkerId, prompt: PromptBlocks, match: PrefixMatch | None = None
    ) -> Expectation:
        """A request leaves; call it before the index records that."""
        if not prompt.hashes:
            return Expectation(worker, prompt, 0, False, 0)
        if match is None:
            match = self._index.match(prompt.namespace, prompt.hashes)
        path = self._paths.setdefault((worker, prompt.hashes[0]), _Path())
        alone = not path.under_way and not match.pending.get(worker)
        path.sent += 1
        path.under_way += 1
        return Expectation(worker, prompt, match.held(worker), alone, path.sent)

    def left(self, expected: Expectation) -> None:
        if not expected.prompt.hashes:
            return
        at = (expected.worker, expected.prompt.hashes[0])
        path = self._paths[at]
        path.under_way -= 1
        if not path.under_way:
            del self._paths[at]

    def reported(self, expected: Expectation, writer: str, cached_tokens: int | None) -> None:
        """Call it after the index was told that the path is there, and before the prediction is withdrawn."""
        prompt, worker = expected.prompt, expected.worker
        if cached_tokens is None or not prompt.hashes:
            return
        size = prompt.namespace.block_size
        possible = (prompt.prompt_tokens - 1) // size
        if len(prompt.hashes) - possible not in (0, 1):
            return  # Several prompts: the tokens are those of all, the blocks those of the first.
        held = min(cached_tokens // size, possible)
        known = min(expected.known, possible)
        self.credits.learn(worker, known, held)
        if held > known:
            self._raised(prompt.namespace, prompt.hashes[:held], worker)
        elif held < known and not self.credits.hybrid(worker):
            path = self._paths[worker, prompt.hashes[0]]
            if expected.alone and path.sent == expected.number:
                self._index.report(prompt.namespace, prompt.hashes, worker, writer, held)
