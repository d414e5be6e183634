"""The cache of tokens that were encoded before, within a bound of memory."""

from collections import OrderedDict

from radix_cache.blocks import TOKEN_BYTES, Tokens

ENTRY_BYTES = 250
"""The memory of one entry beside its tokens: its key, and its place in the dictionary."""


class TokenCache:
    """The tokens of texts under keyed hashes of the texts, those used last.

    The key of a hash differs between isolation groups: otherwise the time to the first token would reveal to one
    tenant what another has sent.
    """

    def __init__(self, bytes_max: int) -> None:
        """Create an empty cache that takes about `bytes_max` of memory at most."""
        self.entries: OrderedDict[bytes, Tokens] = OrderedDict()
        self.bytes = 0
        self._bytes_max = bytes_max

    def remember(self, key: bytes, tokens: Tokens) -> None:
        """Keep the tokens of a text that was used now; the entries that were not used for longest go."""
        if key in self.entries:
            self.entries.move_to_end(key)
            return
        self.entries[key] = tokens
        self.bytes += _bytes_of(tokens)
        while self.bytes > self._bytes_max:
            self.bytes -= _bytes_of(self.entries.popitem(last=False)[1])


def _bytes_of(tokens: Tokens) -> int:
    return len(tokens) * TOKEN_BYTES + ENTRY_BYTES
