"""The tally of an answer's output, for an answer that ends before its worker reports its usage.

    running usage   data: {"choices":[{"index":1,..}],"usage":{"completion_tokens":40,..}}     by vLLM, SGLang;
                    data: {"choices":[{"index":0,..}],"usage":{"completion_tokens":38,..}}     each has its own
    text            data: {"choices":[{"delta":{"content":"Hello wor"}}]}                      else text counts

Frames are parsed late and together: a stream that ends with its usage needs none of this.
"""

import re
from collections.abc import Callable

import msgspec

from gateway.domain.token_usage import TokenUsage, read_usage

UNREAD_BYTES_MAX = 16 * 1024
"""Bytes of frames that are kept before they are parsed."""
TEXT_BYTES_MAX = 8192
"""Bytes of text that are kept to be tokenized; the tokens of a longer text are extrapolated from them."""
WHOLE_BYTES_MAX = 1024**2
"""Bytes of a whole answer that are parsed; the text of a longer one is extrapolated from them."""
CHOICES_MAX = 4096
"""Choices of one request whose running usage is kept."""

LAST_FIELDS_MAX = 8
"""Fields that may follow the usage in a frame. Without this bound a frame of many usages would be read from each of
them to its end."""

# The quantifiers are possessive, since `re` keeps memory for each position to which it could backtrack.
_FLAT_VALUE = rb'(?:[\w.+-]++|"[^"\\]*+(?:\\.[^"\\]*+)*+"|\[[^\[\]{}"]*+\]|\{[^{}]*+\})'
RUNNING_USAGE = re.compile(
    rb',"usage":(?P<usage>\{[^{}]*+(?:\{[^{}]*+\}[^{}]*+)*+\})'
    rb'(?=(?:,"\w++":%b){0,%d}+\}\r?\n)' % (_FLAT_VALUE, LAST_FIELDS_MAX)
)
"""Usage at the end of a frame, as engines write it: without spaces, which makes it quick to find. Only flat fields
follow it: vLLM writes `prompt_token_ids` in the first frame, `system_fingerprint` in the last. Inside a JSON string
its quotes would be escaped."""

_TEXT = re.compile(
    rb'"(?:content|text|reasoning_content|reasoning|arguments|refusal)"\s*:\s*"([^"\\]*+(?:\\.[^"\\]*+)*+)"',
    re.DOTALL,
)
_FINISHED = re.compile(rb'"finish_reason"\s*:\s*"')
_INDEX = re.compile(rb'"choices"\s*:\s*\[\s*\{[^{}\[\]]*?"index"\s*:\s*(\d{1,6})')


class AnswerTally:
    """The output of one answer so far: the running usage of its choices, or their text."""

    __slots__ = (
        "_finished",
        "_framed",
        "_text",
        "_text_bytes",
        "_usage",
        "counted",
        "last_counted",
        "unread",
    )

    def __init__(self, whole: bytes | None = None) -> None:
        """`whole`: the answer, if it came in one piece."""
        self._framed = whole is None
        self.counted = 0
        """Frames that were passed on, without those in `unread`."""
        self.unread: bytearray | bytes = bytearray() if whole is None else whole
        """What has not been parsed: frames without usage, see `read_text`, or a whole answer."""
        self.last_counted = b""
        """The last frames with running usage, of an answer with one choice; they are read when they are needed."""
        self._usage: dict[int, TokenUsage] = {}
        self._text = bytearray()
        self._text_bytes = 0
        self._finished = 0

    def read_text(self) -> None:
        """Parse the unread frames; call it once there are more than UNREAD_BYTES_MAX."""
        unread, times = self.unread, 1.0
        if self._framed:
            self.counted += frames_in(unread)
        if len(unread) > WHOLE_BYTES_MAX:
            # A quote ends the string that is cut, unless it would be escaped.
            times = len(unread) / WHOLE_BYTES_MAX
            unread = unread[:WHOLE_BYTES_MAX].rstrip(b"\\") + b'"'
        self._finished += len(_FINISHED.findall(unread))
        text = b"".join(_TEXT.findall(unread))
        self._text_bytes += int(len(text) * times)
        self._text += text[: TEXT_BYTES_MAX - len(self._text)]
        self.unread = bytearray()

    def read_usage(self, frames: bytes) -> None:
        """Read running usage (the last of each choice holds) and finish reasons in frames of several choices."""
        self._finished += len(_FINISHED.findall(frames))
        looked_at = number = 0  # The end of what was looked at, and the choice of the frame that this is in.
        for found in RUNNING_USAGE.finditer(frames):
            usage = read_usage(found["usage"])
            start = frames.rfind(b"\n\n", looked_at, found.start())
            if start >= 0 or not looked_at:
                index = _INDEX.search(frames, max(start, 0), found.start())
                number = int(index[1]) if index is not None else 0
            looked_at = found.start()
            if usage is not None and (number in self._usage or len(self._usage) < CHOICES_MAX):
                self._usage[number] = usage

    @property
    def frames(self) -> int:
        """Frames that were passed on, without `[DONE]`."""
        self.read_text()
        return self.counted

    @property
    def finished(self) -> int:
        """Choices that reported why they ended."""
        self.read_text()
        return self._finished + len(_FINISHED.findall(self.last_counted))

    @property
    def usage(self) -> TokenUsage | None:
        """The running usage of all choices together, each with the same prompt; None if none was reported."""
        if self.last_counted:
            self.read_usage(self.last_counted)
            self.last_counted = b""
        reported = list(self._usage.values())
        if not reported:
            return None
        output_tokens = sum(usage.completion_tokens or 0 for usage in reported)
        return msgspec.structs.replace(reported[0], completion_tokens=output_tokens)

    def text_tokens(self, count: Callable[[str], int]) -> int:
        """Return how many tokens the text has; `count` counts those of a short text."""
        self.read_text()
        if not self._text:
            return 0
        text = bytes(self._text)
        try:
            decoded = msgspec.json.decode(b'"%b"' % text, type=str)
        except (msgspec.DecodeError, UnicodeDecodeError):
            decoded = text.decode(errors="replace")  # Cut within an escaped character.
        return -(-count(decoded) * self._text_bytes // len(text))


def frames_in(data: bytes | bytearray) -> int:
    """Return how many blank lines there are in whole frames, each of which ends one."""
    return data.count(b"\n\n") + (data.count(b"\n\r\n") if data.rfind(b"\r") >= 0 else 0)
