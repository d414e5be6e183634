"""ContentStore: the promise of whoever keeps the contents of files. A name is a tenant, `/`, and a file's id.

Nobody sees half a content: it is there when `write` has returned, and not before. A few pieces are in memory,
whatever the size. Every implementation passes tests/conformance/test_content_store.py.
"""

from collections.abc import AsyncIterator
from typing import Protocol


class ContentLost(Exception):
    """There is no content of that name."""


class ContentDown(Exception):
    """Where contents are kept cannot be reached, or has no room."""


class ContentStore(Protocol):
    async def write(self, name: str, pieces: AsyncIterator[bytes]) -> None:
        """All of it, or nothing. Raises ContentDown, and what `pieces` raises."""
        ...

    def read(self, name: str) -> AsyncIterator[bytes]:
        """Its pieces. Raises ContentLost, ContentDown."""
        ...

    async def delete(self, name: str) -> None:
        """Also what is not there. Raises ContentDown."""
        ...
