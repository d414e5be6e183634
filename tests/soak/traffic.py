"""The requests of a soak: the same for the same seed, and without end to their variety.

Every tenant has a conversation with each model. It grows for some turns and is then replaced by a new one, now
and then under another system prompt. So prefixes are shared, split, abandoned and evicted in every namespace.
Some clients leave, in the middle of a stream or as soon as their request is sent, and some requests are refused.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from random import Random

import orjson

from tests.benchmarks.wire import Texts

TEXT, TOKENS, ENGINE = "soak-text", "soak-tokens", "soak-engine"
"""A model without a tokenizer; one with a tokenizer; and one that a real engine serves, with KV events."""

TURNS_MAX = 6
SYSTEM_CHARACTERS = 1200
TURN_CHARACTERS = 300
CHUNKS = 8
LEFT_CHUNKS, LEFT_GAP_MS = 64, 5
LONG_CHUNKS, LONG_GAP_MS = 20, 1000
"""A stream that is open for twenty seconds, so that thousands of them are open at once."""


STREAMS = 0.35
LEAVING = 0.02
REFUSED, REFUSED_KINDS = 0.01, 3
ON_THE_ENGINE = 0.01
ENGINE_TOURS = 5


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    data: bytes
    """The request as it is sent, head and body."""
    status: int = 200
    """The expected status of the answer."""
    leave_after: int | None = None
    """The client closes the connection after so many reads of the answer (0: once the request is sent)."""


@dataclass(slots=True)
class _Conversation:
    messages: list[dict[str, str]] = field(default_factory=list)


class Traffic:
    """An endless iterator of requests; `keys` are the API keys of all tenants."""

    def __init__(self, keys: Mapping[str, str], seed: int) -> None:
        self._random = Random(seed)
        self._texts = Texts()
        self._keys = list(keys.values())
        self._systems: dict[str, str] = {}
        self._conversations: dict[tuple[str, str], _Conversation] = {}

    def __iter__(self) -> Iterator[Ask]:
        return self

    def tour(self) -> Iterator[Ask]:
        """Yield each kind of request once for every tenant: everything kept for a kind exists from then on.

        The engine gets more requests here, since it later gets one in a hundred only.
        """
        for _, key in product(range(ENGINE_TOURS), self._keys):
            yield Ask(_bytes(key, self._body(key, ENGINE, max_tokens=4, stream=True)))
        for key in self._keys:
            for model in (TEXT, TOKENS):
                yield Ask(_bytes(key, self._body(key, model, max_tokens=4, stream=True)))
            for model in (TEXT, TOKENS):
                yield self._left(key, model, 1)
            for kind in range(REFUSED_KINDS):
                yield self._refused(key, kind)

    def __next__(self) -> Ask:
        chance, key = self._random.random(), self._random.choice(self._keys)
        if chance < REFUSED:
            return self._refused(key, self._random.randrange(REFUSED_KINDS))
        if chance < REFUSED + LEAVING:
            return self._left(key, self._random.choice((TEXT, TOKENS)), self._random.choice((0, 1, 3)))
        if chance < REFUSED + LEAVING + ON_THE_ENGINE:
            return Ask(_bytes(key, self._body(key, ENGINE, max_tokens=4, stream=True)))
        model = TEXT if self._random.random() < 0.5 else TOKENS
        if chance < REFUSED + LEAVING + ON_THE_ENGINE + STREAMS:
            return Ask(_bytes(key, self._body(key, model, max_tokens=CHUNKS, stream=True)))
        return Ask(_bytes(key, self._body(key, model, max_tokens=16)))

    def long_stream(self, *, leave_after: int | None) -> Ask:
        """Return a request whose stream is open for twenty seconds, or until its client leaves."""
        key, model = self._random.choice(self._keys), self._random.choice((TEXT, TOKENS))
        body = self._body(key, model, max_tokens=LONG_CHUNKS, seed=LONG_GAP_MS, stream=True)
        return Ask(_bytes(key, body), leave_after=leave_after)

    def _left(self, key: str, model: str, reads: int) -> Ask:
        body = self._body(key, model, max_tokens=LEFT_CHUNKS, seed=LEFT_GAP_MS, stream=True)
        return Ask(_bytes(key, body), leave_after=reads)

    def _refused(self, key: str, kind: int) -> Ask:
        body = orjson.dumps(self._body(key, TEXT))
        if kind == 0:
            return Ask(_head(f"{key[:-4]}{self._random.randrange(10**4):04}", len(body)) + body, 401)
        if kind == 1:
            return Ask(_head(key, len(body) - 1) + body[:-1], 400)
        return Ask(_bytes(key, self._body(key, f"unknown-{self._random.getrandbits(32):x}")), 404)

    def _body(self, key: str, model: str, **more: object) -> dict[str, object]:
        # The fields that the fast worker reads stand first; see tests/benchmarks/fast_worker.py.
        return {"model": model, **more, "messages": self._messages(key, model)}

    def _messages(self, key: str, model: str) -> list[dict[str, str]]:
        if model not in (TEXT, TOKENS, ENGINE):
            return [{"role": "user", "content": "hello"}]
        conversation = self._conversations.setdefault((key, model), _Conversation())
        messages = conversation.messages
        if len(messages) > 2 * TURNS_MAX:
            messages.clear()
        if not messages:
            if key not in self._systems or self._random.random() < 0.25:
                self._systems[key] = self._texts.new(SYSTEM_CHARACTERS)
            messages.append({"role": "system", "content": self._systems[key]})
        else:
            messages.append({"role": "assistant", "content": self._texts.new(TURN_CHARACTERS // 3)})
        messages.append({"role": "user", "content": self._texts.new(TURN_CHARACTERS)})
        return messages


def _bytes(key: str, body: dict[str, object]) -> bytes:
    data = orjson.dumps(body)
    return _head(key, len(data)) + data


def _head(key: str, length: int) -> bytes:
    return (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\n"
        f"authorization: Bearer {key}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    ).encode()
