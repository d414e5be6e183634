"""The shape of the tree that the candidates of Medusa heads form, chosen for the most accepted drafts.

    head 0     a 0.60   b 0.12 ...       the probability that the candidate of this rank is the right token
    head 1     c 0.51   d 0.10 ...

    a 0.60 --+-- ac 0.31      A path is right with the product of its probabilities, and a step of n drafts
             +-- ad 0.06      accepts the sum over its n paths on average: so the n likeliest paths
    b 0.12 --+-- bc 0.06      are the best tree (Cai et al. 2024, section 2.3.3).

`fit_medusa` measures these accuracies and writes them into the heads' config.json; heads without them get TYPICAL
ones. Where the first candidates are nearly always right the best tree is a chain.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workers.engine.checkpoint.json_files import read_json
from workers.engine.draft_tree import DraftTree
from workers.engine.errors import CheckpointInvalid

ACCURACIES = "medusa_accuracies"
"""A key of config.json: for each head a list, the accuracy of its likeliest token, of its second, and so on."""
RANKS_MAX = 10
"""The most candidates of one head."""
TYPICAL = (0.6, 0.12, 0.06, 0.03)
"""The accuracies by rank that are assumed of the first head."""
TYPICAL_DECAY = 0.85
"""The accuracy assumed of each further head, as a share of the head before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateTree:
    """A tree of drafts, and the candidate that each draft is."""

    shape: DraftTree
    candidates: tuple[tuple[int, int], ...]
    """The head and the rank of each draft."""

    @property
    def heads(self) -> int:
        """The number of heads that the tree takes candidates of."""
        return 1 + max(head for head, _ in self.candidates)


def best_tree(accuracies: Sequence[Sequence[float]], drafts: int) -> CandidateTree:
    """Return the tree of at most `drafts` drafts that is expected to have the most accepted.

    Args:
        accuracies: for each head the probability that its candidate of each rank is right, in falling order.
        drafts: the most drafts, at least 1.
    """
    chosen: list[tuple[int, ...]] = []
    # Paths, each as the ranks of its candidates, with the likeliest on top. A path becomes known when the path
    # before it, or its sibling of one rank less, is chosen: both are likelier.
    known: list[tuple[float, tuple[int, ...]]] = [(-accuracies[0][0], (0,))]
    while known and len(chosen) < drafts:
        negated, path = heapq.heappop(known)
        chosen.append(path)
        head, rank = len(path) - 1, path[-1]
        if rank + 1 < len(accuracies[head]) and accuracies[head][rank] > 0:
            sibling = negated / accuracies[head][rank] * accuracies[head][rank + 1]
            heapq.heappush(known, (sibling, (*path[:-1], rank + 1)))
        if head + 1 < len(accuracies):
            heapq.heappush(known, (negated * accuracies[head + 1][0], (*path, 0)))
    chosen.sort(key=len)
    numbers = {path: number for number, path in enumerate(chosen)}
    return CandidateTree(
        shape=DraftTree(tuple(numbers.get(path[:-1], -1) for path in chosen)),
        candidates=tuple((len(path) - 1, path[-1]) for path in chosen),
    )


def read_accuracies(directory: Path, *, heads: int) -> Sequence[Sequence[float]]:
    """Return the accuracies of the heads in `directory`, or typical ones where config.json has none.

    Raises:
        CheckpointInvalid: The accuracies are not lists of falling numbers in [0, 1], one list for each head.
    """
    found = read_json(directory / "config.json").get(ACCURACIES)
    if found is None:
        return [[share * TYPICAL_DECAY**head for share in TYPICAL] for head in range(heads)]
    if not isinstance(found, list) or len(found) != heads or not all(map(_are_accuracies, found)):
        raise CheckpointInvalid(
            f"{directory / 'config.json'}: {ACCURACIES} must be {heads} lists, one for each head, "
            "of falling numbers between 0 and 1"
        )
    return found


def _are_accuracies(values: object) -> bool:
    return (
        isinstance(values, list)
        and 0 < len(values) <= RANKS_MAX
        and all(type(value) in (int, float) and 0 <= value <= 1 for value in values)
        and values == sorted(values, reverse=True)
    )
