"""Gives images, audio and video in a conversation placeholder tokens, made from a digest of their content.

    content   [ text "What is" | image_url data:... | text "this?" ]
    text      ... What is <media NONCE 0> this? ...                     what the template renders
    tokens    t t t t | d0 d1 d2 d3 d0 d1 d2 d3 ... | t t               the medium's digest in place of its tokens

Only the worker computes the tokens of a medium. With placeholders, everything before the first medium is matched
exactly, by the engine's KV events. What follows is matched only by earlier answers: equal media give equal tokens,
different media never do. The real number of tokens depends on the medium's size and the model's processor;
MEDIA_TOKENS is an estimate, which the worker's reported usage corrects.
"""

import re
import secrets
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from xxhash import xxh3_128_digest

from gateway.domain.errors import BadRequest
from radix_cache.blocks import Tokens

MEDIA_TOKENS = 768
"""Estimated tokens of one medium: about an image of a megapixel (LLaVA 576, Qwen2.5-VL 1,369 for 1,024 x 1,024)."""

MEDIA_MAX = 256
"""The most media of one request."""

MEDIA_TYPES = frozenset(
    {"image", "image_url", "input_image", "audio", "audio_url", "input_audio", "video", "video_url"}
)
PLACEHOLDER_BIT = 1 << 31
"""The bit that is set in placeholder tokens; no vocabulary is so large that a text could have the same ids."""

_json = msgspec.json.Encoder(order="sorted")


class ChatMedia:
    """The media of one conversation. The constructor raises BadRequest for more than MEDIA_MAX."""

    def __init__(self, messages: Sequence[Mapping[str, Any]]) -> None:
        self.digests: list[bytes] = []
        # The mark is random for each conversation that has media, so that no client can write one into its text.
        self._nonce = ""
        self.messages = [self._marked(message) for message in messages]
        """The conversation with a mark in the place of each medium."""
        self._marks = re.compile(f"<media {self._nonce} ([0-9]+)>") if self.digests else None

    def __bool__(self) -> bool:
        """Return whether the conversation has any media."""
        return self._marks is not None

    def split(self, text: str) -> tuple[list[str], list[bytes]]:
        """Return the texts around the marks (one more than there are marks), and the digest at each mark."""
        if self._marks is None:
            return [text], []
        # The pattern has one group, so texts alternate with the numbers of the marks.
        pieces = self._marks.split(text)
        return pieces[::2], [self.digests[int(number)] for number in pieces[1::2]]

    def _marked(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        content = message.get("content")
        if not isinstance(content, list) or not any(map(_is_medium, content)):
            return message
        parts = [self._mark(part) if _is_medium(part) else part for part in content]
        return {**message, "content": parts}

    def _mark(self, part: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the text in place of a medium until the template is rendered; a nonce keeps it unguessable."""
        if len(self.digests) >= MEDIA_MAX:
            raise BadRequest(
                f"A request has at most {MEDIA_MAX} images, sounds and videos.", param="messages"
            )
        self._nonce = self._nonce or secrets.token_hex(16)
        self.digests.append(xxh3_128_digest(_json.encode(part)))
        return {"type": "text", "text": f"<media {self._nonce} {len(self.digests) - 1}>"}


def may_have_media(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether any message consists of parts, since only a part can be a medium."""
    for message in messages:  # noqa: SIM110 - any() would cost a frame for each message of every request
        if isinstance(message.get("content"), list):
            return True
    return False


def media_tokens(digest: bytes) -> Tokens:
    """Return the MEDIA_TOKENS placeholder tokens of the medium with this digest (16 bytes)."""
    words = [PLACEHOLDER_BIT | int.from_bytes(digest[at : at + 4], "little") for at in range(0, 16, 4)]
    return array("I", words) * (MEDIA_TOKENS // len(words))


def _is_medium(part: object) -> bool:
    kind = part.get("type") if isinstance(part, Mapping) else None
    return isinstance(kind, str) and kind in MEDIA_TYPES  # A client may have sent anything.
