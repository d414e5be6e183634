"""Issuer: keeps the public keys of an identity provider in memory, and verifies the tokens that it has signed.

    every refresh_seconds ---------------------> read the keys
    a token signed with a key that is unknown -> read the keys, once for all waiters, not again for REREAD_SECONDS
    no answer ---------------------------------> known keys are valid for known_keys_seconds_max

Only addresses from the settings or from the issuer's own metadata are read. Redirects are not followed, and the
length of an answer is bounded.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

import aiohttp
import jwt
import msgspec
from jwt import exceptions as wrong

from gateway.settings.token_issuers import IssuerSettings
from gateway.tenants.issuer_key_set import KeySet, KeysUnreadable, PublicKey
from gateway.tenants.token_errors import IssuerUnavailable, TokenInvalid

Rules = TypeVar("Rules", bound=IssuerSettings)

log = logging.getLogger(__name__)

REREAD_SECONDS = 10.0
FETCH_SECONDS_MAX = 3.0
DOCUMENT_BYTES_MAX = 512 * 1024
RETRY_SECONDS = 5.0
DISCOVERY = "/.well-known/openid-configuration"

_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (wrong.ExpiredSignatureError, "it has expired"),
    (wrong.ImmatureSignatureError, "it is not valid yet"),
    (wrong.InvalidAudienceError, "it is not for this service"),
    (wrong.MissingRequiredClaimError, "a claim is missing"),
    (wrong.InvalidIssuerError, "its issuer is another one"),
)


IssuerState = Literal["known", "away", "stale", "not read"]


class IssuerMetadata(msgspec.Struct, frozen=True):
    """The addresses that an issuer publishes; the addresses for logins only if it supports logins."""

    issuer: str
    jwks_uri: str
    authorization_endpoint: str | None = None
    token_endpoint: str | None = None
    end_session_endpoint: str | None = None

    def addresses(self) -> list[str]:
        """Return all addresses that the metadata names."""
        given = (self.jwks_uri, self.authorization_endpoint, self.token_endpoint, self.end_session_endpoint)
        return [url for url in given if url is not None]


class Issuer(Generic[Rules]):
    """One identity provider: its settings, its public keys and their age; `clock` is monotonic, in seconds."""

    def __init__(
        self, rules: Rules, http: aiohttp.ClientSession, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rules = rules
        self.version = 0  # raised whenever the keys change
        self.failures = 0  # attempts to read the keys that failed
        self.http = http
        self._clock = clock
        self._keys: KeySet | None = None
        self._read_at = float("-inf")
        self._asked_at = float("-inf")
        self._away = False
        self._reading: asyncio.Task[None] | None = None

    @property
    def fresh(self) -> bool:
        """Whether the keys are known and were read recently enough."""
        limit = self.rules.refresh_seconds + self.rules.known_keys_seconds_max
        return self._keys is not None and self._clock() - self._read_at <= limit

    @property
    def state(self) -> IssuerState:
        """The state of the keys: known, away (known keys are still valid), stale (no longer valid), or not read."""
        if self._keys is None:
            return "not read"
        return "stale" if not self.fresh else "away" if self._away else "known"

    async def run(self) -> None:
        """Read the keys at the interval of the settings, until this coroutine is cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(self.rules.refresh_seconds if not self._away else RETRY_SECONDS)

    async def claims(
        self, token: str, header: Mapping[str, Any], audiences: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Return the claims of a token after verifying that this issuer signed it and that it is valid now.

        Args:
            token: The token as presented.
            header: The header of the token, which is not trusted.
            audiences: Accepted in place of the audiences in the settings.

        Raises TokenInvalid, IssuerUnavailable.
        """
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in self.rules.algorithms or "crit" in header:
            raise TokenInvalid("its signature is of a kind that is not accepted")
        key = await self._key(key_id if isinstance(key_id, str) else None, algorithm)
        rules = self.rules
        try:
            return jwt.decode(
                token,
                key.key,
                algorithms=[algorithm],
                audience=list(audiences or rules.audiences),
                issuer=rules.issuer,
                leeway=rules.leeway_seconds,
                options={"require": ["iss", "aud", "exp"]},
            )
        except (wrong.PyJWTError, ValueError, TypeError, OverflowError) as err:
            reason = next((words for kind, words in _REASONS if isinstance(err, kind)), None)
            raise TokenInvalid(reason or "its signature is wrong") from err

    async def refresh(self) -> None:
        """Read the keys; calls during a read wait for the same answer."""
        if self._reading is None or self._reading.done():
            self._asked_at = self._clock()
            self._reading = asyncio.create_task(self._read(), name=f"keys of {self.rules.issuer}")
        await asyncio.shield(self._reading)

    def close(self) -> None:
        """Cancel a read that is under way."""
        if self._reading is not None:
            self._reading.cancel()

    async def _key(self, key_id: str | None, algorithm: str) -> PublicKey:
        found = self._keys.find(key_id, algorithm) if self._keys is not None and self.fresh else None
        if found is not None:
            return found
        reading = self._reading is not None and not self._reading.done()
        if reading or self._clock() - self._asked_at >= REREAD_SECONDS:
            await self.refresh()
            found = self._keys.find(key_id, algorithm) if self._keys is not None and self.fresh else None
        if found is None:
            # While the issuer does not answer, an unknown key may be a new one.
            raise IssuerUnavailable if self._away or not self.fresh else TokenInvalid("its key is not known")
        return found

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(FETCH_SECONDS_MAX):
                keys = KeySet(await self._get(self.rules.jwks_url or (await self.metadata()).jwks_uri))
        except (aiohttp.ClientError, OSError, TimeoutError, KeysUnreadable, ValueError) as err:
            self.failures += 1
            if not self._away:
                log.warning("the keys of %s cannot be read: %s", self.rules.issuer, str(err) or "no answer")
            self._away = True
            return
        if self._away:
            log.warning("the keys of %s can be read again", self.rules.issuer)
        if self._keys is None or keys.keys != self._keys.keys:
            self.version += 1
        self._keys, self._read_at, self._away = keys, self._clock(), False

    async def metadata(self) -> IssuerMetadata:
        """Read the issuer's metadata (OpenID Connect Discovery 1.0, 4.3).

        Raises KeysUnreadable, and what reading raises: aiohttp.ClientError, OSError, TimeoutError, ValueError.
        """
        text = await self._get(self.rules.issuer.rstrip("/") + DISCOVERY)
        try:
            found = msgspec.json.decode(text, type=IssuerMetadata)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
            raise KeysUnreadable(f"its metadata is malformed: {err}") from err
        if found.issuer != self.rules.issuer:
            raise KeysUnreadable(f"its metadata is of another issuer: {found.issuer[:200]!r}")
        wanted = ("https:",) if self.rules.issuer.startswith("https:") else ("https:", "http:")
        if not all(url.startswith(wanted) for url in found.addresses()):
            raise KeysUnreadable("its metadata names an address that is not https")
        return found

    async def _get(self, url: str) -> bytes:
        async with self.http.get(url, allow_redirects=False) as answer:
            if answer.status != 200:
                raise KeysUnreadable(f"status {answer.status} from {url}")
            return await read_bounded(answer)


async def read_bounded(answer: aiohttp.ClientResponse) -> bytes:
    """Return the whole body of an answer. Raises KeysUnreadable if it has more than DOCUMENT_BYTES_MAX bytes."""
    text = b""
    async for chunk in answer.content.iter_any():
        text += chunk
        if len(text) > DOCUMENT_BYTES_MAX:
            raise KeysUnreadable(f"more than {DOCUMENT_BYTES_MAX} bytes from {answer.url.origin()}")
    return text
