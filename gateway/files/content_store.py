"""ContentStore: the Protocol of stores for the contents of files; a name is the tenant, `/`, and the file's id.

A content can be read only after `write` has returned, so a reader never gets half of it. Only a few pieces are in
memory, whatever the size. Every implementation passes tests/conformance/test_content_store.py.
"""

from collections.abc import AsyncIterator
from typing import Protocol


class ContentLost(Exception):
    """There is no content of that name."""


class ContentDown(Exception):
    """The content store cannot be reached, or is full."""


class ContentStore(Protocol):
    """Stores the contents of files by name."""

    async def write(self, name: str, pieces: AsyncIterator[bytes]) -> None:
        """Write the whole content, or nothing. Raises ContentDown, and what `pieces` raises."""
        ...

    def read(self, name: str) -> AsyncIterator[bytes]:
        """Yield the pieces of a content. Raises ContentLost, ContentDown."""
        ...

    async def delete(self, name: str) -> None:
        """Delete a content if it exists. Raises ContentDown."""
        ...
