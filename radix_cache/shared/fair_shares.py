"""Computes how much of a full index each isolation group has above its fair share.

    bound   |-----------------------------|
    sizes   a: 2   b: 3          c: 40        of 30 there are 25 for c, which is 15 above its share

A group that needs less than an equal share leaves the rest to the others (max-min fairness). So a group that sends
many prompts evicts its own paths, and not those of other groups.
"""

from collections.abc import Mapping


class FairShares:
    """The amounts to take from each group so that all groups together fit a bound."""

    def __init__(self, sizes: Mapping[str, int], bound: int) -> None:
        level = _level(sizes, bound)
        self._above = {group: size - level for group, size in sizes.items() if size > level}

    def take(self, group: str, size: int) -> bool:
        """Take `size` from a group if the group is above its share; return whether it was."""
        above = self._above.get(group, 0)
        if above <= 0:
            return False
        self._above[group] = above - size
        return True


def _level(sizes: Mapping[str, int], bound: int) -> int:
    """Return the largest size that a group may have so that all together are within the bound."""
    left = bound
    for number, size in enumerate(sorted(sizes.values())):
        share = left // (len(sizes) - number)
        if size > share:
            return max(0, share)
        left -= size
    return bound
