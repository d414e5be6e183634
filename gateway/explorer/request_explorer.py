"""Finds finished requests at all gateways."""

from collections.abc import Callable
from contextlib import suppress

import msgspec

from gateway.explorer.request_details import RequestDetails
from gateway.explorer.request_query import RequestQuery
from gateway.explorer.request_store import RequestStore
from gateway.queueing.shared.gateway_reports import GatewayReports
from gateway.queueing.shared.keys import QueueKeys
from radix_cache.redis.scripts import ScriptCaller

SUBJECT = "requests"


class RequestQuestion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A question to the other gateways: for one request by its id, or for those that match a query."""

    id: str | None = None
    query: RequestQuery | None = None


class RequestExplorer:
    """Lists and finds the requests that the gateways keep. `handlers`: see TurnReader."""

    def __init__(
        self,
        store: RequestStore,
        scripts: ScriptCaller,
        keys: QueueKeys,
        gateway: str,
        gateways: Callable[[], int],
    ) -> None:
        """`gateway`: the name of this gateway in the queue. `gateways`: returns how many are alive."""
        self._store = store
        self._reports = GatewayReports(
            scripts, keys, gateway, subject=SUBJECT, own=self._answer, gateways=gateways
        )
        self.handlers = self._reports.handlers
        self.close = self._reports.close

    async def search(self, query: RequestQuery) -> list[RequestDetails]:
        """Return the requests that match, the latest first, of all gateways that answer in time."""
        found = self._store.search(query)
        for text in await self._reports.gather(_encoded(RequestQuestion(query=query))):
            found += _decoded(text)
        return sorted(found, key=lambda details: -details.at)[: query.limit]

    async def find(self, identity: str) -> RequestDetails | None:
        """Return the request with this id from the gateway that keeps it, if any."""
        found = self._store.find(identity)
        if found is not None:
            return found
        for text in await self._reports.gather(_encoded(RequestQuestion(id=identity))):
            for details in _decoded(text):
                return details
        return None

    def _answer(self, question: str) -> bytes:
        """Return this gateway's answer to the question of another gateway."""
        found: list[RequestDetails] = []
        with suppress(msgspec.DecodeError):  # A gateway of another version sends another form.
            asked = msgspec.json.decode(question, type=RequestQuestion)
            if asked.query is not None:
                found = self._store.search(asked.query)
            elif asked.id is not None and (details := self._store.find(asked.id)) is not None:
                found = [details]
        return msgspec.json.encode(found)


def _encoded(question: RequestQuestion) -> str:
    return msgspec.json.encode(question).decode()


def _decoded(text: bytes) -> list[RequestDetails]:
    try:
        return msgspec.json.decode(text, type=list[RequestDetails])
    except msgspec.DecodeError:  # A gateway of another version answers in another form.
        return []
