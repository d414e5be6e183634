"""Webhooks: events sent to addresses of the operator, signed, and tried again for three days.

Signatures follow standardwebhooks.com: `webhook-signature: v1,BASE64(HMAC-SHA-256(secret, "ID.TIMESTAMP.BODY"))`.
The id is the same in every attempt, so that a receiver notices a repeated event; the timestamp is the attempt's, so
that an old attempt cannot be replayed. Addresses come only from the settings; a redirect counts as a failure.
"""

import asyncio
import base64
import hashlib
import hmac
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import aiohttp
import msgspec

from gateway.database.database import DatabaseConflict, DatabaseDown
from gateway.database.webhook_outbox import Outbox
from gateway.ledger.usage_query_parsing import moment_text
from gateway.settings.usage import WebhookSettings, webhook_secret

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
AWAY_SECONDS = 15.0
ANSWER_SECONDS_MAX = 15.0
CLAIM_SECONDS = 120.0
AT_ONCE = 8

AGAIN_SECONDS = (5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""Seconds before each retry, as the specification suggests: more than three days in all."""

GONE = 410
"""The status by which a receiver refuses further attempts of an event."""


def signed(secret: bytes, event_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers of one attempt; `timestamp` is Unix time in seconds."""
    text = f"{event_id}.{timestamp}.".encode() + body
    signature = base64.b64encode(hmac.digest(secret, text, hashlib.sha256)).decode()
    return {
        "content-type": "application/json",
        "user-agent": "radixgate",
        "webhook-id": event_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{signature}",
    }


class Webhooks:
    """Delivers events of the outbox to these webhooks.

    `wall` is Unix time in seconds; `again` holds the seconds before each retry.
    """

    def __init__(
        self,
        hooks: Sequence[WebhookSettings],
        outbox: Outbox,
        *,
        wall: Callable[[], float] = time.time,
        again: Sequence[float] = AGAIN_SECONDS,
    ) -> None:
        self.delivered = 0
        self.failed = 0
        self._hooks = {hook.id: hook for hook in hooks}
        self._secrets = {hook.id: webhook_secret(hook.secret.reveal()) or b"" for hook in hooks}
        self._outbox = outbox
        self._wall = wall
        self._again = again
        self._away = False

    def wanting(self, kind: str) -> list[str]:
        """Return the names of the webhooks for events of this type (`usage...` or `budget...`)."""
        return [name for name, hook in self._hooks.items() if kind.partition(".")[0] in hook.events]

    async def run(self) -> None:
        """Deliver events, until this coroutine is cancelled."""
        if not self._hooks:
            return
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS_MAX)
        async with aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as http:
            while True:
                try:
                    some = await self.deliver(http)
                    self._away = False
                except (DatabaseDown, DatabaseConflict, TimeoutError) as err:
                    if not self._away:
                        log.warning("webhooks wait until the database answers: %s", err)
                    self._away = True
                    some = False
                if not some:
                    await asyncio.sleep(AWAY_SECONDS if self._away else POLL_SECONDS)

    async def deliver(self, http: aiohttp.ClientSession) -> bool:
        """Deliver some of the events that are due; return False if there is none. Raises DatabaseDown."""
        now = self._wall()
        claimed = await self._outbox.claim(
            list(self._hooks),
            now_ms=round(now * 1000),
            until_ms=round((now + CLAIM_SECONDS) * 1000),
            limit=AT_ONCE,
        )
        try:
            outcomes = await asyncio.gather(*(self._attempt(http, event) for event in claimed))
        except asyncio.CancelledError:
            await self._give_back(claimed)
            raise
        for event, (status, words) in zip(claimed, outcomes, strict=True):
            await self._store_outcome(event, status, words)
        return bool(claimed)

    async def _give_back(self, claimed: Sequence[Mapping[str, Any]]) -> None:
        """Make events due at once whose delivery was interrupted, since the gateway stops."""
        with suppress(DatabaseDown, DatabaseConflict):
            for event in claimed:
                due_ms = round(self._wall() * 1000)
                await self._outbox.store_outcome(event, outcome="interrupted", due_ms=due_ms, ended_ms=None)

    async def _attempt(self, http: aiohttp.ClientSession, event: Mapping[str, Any]) -> tuple[int, str]:
        """Return the status of an attempt (0 without an answer) and a text that describes it."""
        hook = self._hooks[event["hook"]]
        body = msgspec.json.encode(
            {"type": event["type"], "timestamp": moment_text(event["at_ms"]), "data": event["data"]}
        )
        headers = signed(self._secrets[hook.id], event["id"], int(self._wall()), body)
        try:
            async with http.post(hook.url, data=body, headers=headers, allow_redirects=False) as answer:
                return answer.status, f"status {answer.status}"
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as err:
            # Only the name of the error: its text may hold the address, with credentials.
            return 0, type(err).__name__

    async def _store_outcome(self, event: Mapping[str, Any], status: int, words: str) -> None:
        now_ms, tried = round(self._wall() * 1000), event["attempts"]
        if 200 <= status < 300:
            self.delivered += 1
            await self._outbox.store_outcome(event, outcome=words, due_ms=None, ended_ms=now_ms)
            return
        self.failed += 1
        if status == GONE or tried > len(self._again):
            log.error(
                "webhook %s: event %s is given up after %d attempts: %s",
                *(event["hook"], event["id"], tried, words),
            )
            await self._outbox.store_outcome(event, outcome=words, due_ms=None, ended_ms=now_ms)
            return
        # Spread out, so that a receiver that was unreachable for a day does not get all events at once.
        seconds = self._again[tried - 1] * random.uniform(0.9, 1.1)
        log.warning(
            "webhook %s: event %s was not delivered (%s); next attempt in %.0f s",
            *(event["hook"], event["id"], words, seconds),
        )
        await self._outbox.store_outcome(
            event, outcome=words, due_ms=now_ms + round(seconds * 1000), ended_ms=None
        )
