"""ContentStore in a bucket of S3, or of a store with its protocol (MinIO, Ceph, R2, Google's XML API)."""

import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import obstore
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import S3Store

from gateway.files.content_store import ContentDown, ContentLost
from gateway.settings.files import S3Settings

PART_BYTES = 8 * 1024 * 1024
"""The size of the parts of an upload, which may have at most 10,000 parts; S3 requires at least 5 MiB."""
PARTS_AT_ONCE = 2
PIECE_BYTES = 1024 * 1024
RETRIES_MAX = 3
RETRY_SECONDS_MAX = 20

_FAILURES = (BaseError, OSError)
"""Errors of the library, and Python's own where there is one: FileNotFoundError also for a missing bucket."""


class S3ContentStore:
    """A ContentStore in a bucket.

    An interrupted upload is aborted in the bucket. For uploads that could not be aborted, set the bucket's
    lifecycle rule AbortIncompleteMultipartUpload.
    """

    def __init__(self, settings: S3Settings) -> None:
        self._where = f"s3://{settings.bucket}"
        options: dict[str, Any] = {}
        for name, secret in (
            ("access_key_id", settings.access_key_id),
            ("secret_access_key", settings.secret_access_key),
        ):
            if secret is not None:
                options[name] = secret.reveal()
        if settings.endpoint is not None:
            options["endpoint"] = settings.endpoint
        self._store = S3Store(
            settings.bucket,
            prefix=settings.prefix or None,
            region=settings.region,
            # Few stores other than Amazon's have a host name for every bucket.
            virtual_hosted_style_request=settings.endpoint is None,
            client_options={"allow_http": True, "timeout": "60s"},
            retry_config={"max_retries": RETRIES_MAX, "retry_timeout": timedelta(seconds=RETRY_SECONDS_MAX)},
            **options,
        )

    async def write(self, name: str, pieces: AsyncIterator[bytes]) -> None:
        """Upload the whole content, or nothing. Raises ContentDown, and what `pieces` raises."""
        raised: list[BaseException] = []

        async def passed() -> AsyncIterator[bytes]:
            try:
                async for piece in pieces:
                    yield piece
            finally:
                # The library turns an error that is raised here into a text in an error of its own.
                if (err := sys.exc_info()[1]) is not None:
                    raised.append(err)

        try:
            await obstore.put_async(
                self._store,
                name,
                passed(),
                use_multipart=True,
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_AT_ONCE,
            )
        except _FAILURES as err:
            if raised:
                raise raised[0] from None
            raise self._down(err) from err

    async def read(self, name: str) -> AsyncIterator[bytes]:
        """Yield the pieces of a content. Raises ContentLost, ContentDown."""
        try:
            found = await obstore.get_async(self._store, name)
            async for piece in found.stream(min_chunk_size=PIECE_BYTES):
                yield bytes(piece)
        except (NotFoundError, FileNotFoundError) as err:
            raise ContentLost(name) from err
        except _FAILURES as err:
            raise self._down(err) from err

    async def delete(self, name: str) -> None:
        """Delete a content if it exists. Raises ContentDown."""
        try:
            await obstore.delete_async(self._store, name)
        except (NotFoundError, FileNotFoundError):
            pass
        except _FAILURES as err:
            raise self._down(err) from err

    def _down(self, err: Exception) -> ContentDown:
        # The library's text has addresses and replies in it, over many lines.
        return ContentDown(f"{self._where}: {type(err).__name__}: {' '.join(str(err).split())[:300]}")
