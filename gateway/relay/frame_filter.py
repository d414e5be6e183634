r"""Server-sent events on their way through the gateway: frames pass as they came, and their usage is read.

    bytes from the worker      data: {..}\n\ndata: {..}\n\nda | ta: {"choices":[],"usage":{..}}\n\n
    bytes to the client        data: {..}\n\ndata: {..}\n\n   | (withheld, unless the client asked for usage)

A frame is one event with the blank line that ends it. Chunks of bytes may be cut anywhere. Only whole frames are
passed on, so that a client never gets half a frame before an error; since workers write whole frames, this delays
almost nothing. A frame that is not JSON passes unchanged. A frame is decoded only if it has a usage object, which
the byte pattern below finds: inside JSON strings quotes are escaped, so that generated text cannot look like one.

Usage that an engine reports in every frame, as the gateway requests, is taken out of the frames, unless the client
requested it too. So are counts of cached tokens that the client must not get, and addresses of workers. A frame
that reports an error ends the stream: it is withheld from the client and noted in `error`, and no frame after it
passes.

A frame longer than FRAME_BYTES_MAX is not waited for: it passes as it comes, with all that it has, and is not
decoded, unless its beginning has an error.
"""

import re
from collections.abc import Callable, Iterator

import msgspec

from gateway.domain.answer_tally import RUNNING_USAGE, UNREAD_BYTES_MAX, AnswerTally, frames_in
from gateway.domain.token_usage import TokenUsage, read_usage
from gateway.relay.redaction import (
    MAY_COUNT_CACHED,
    TRANSFER_FIELD,
    without_cached_tokens,
    without_transfers,
)
from gateway.relay.worker_errors import ERROR_FIELD, StreamError, WorkerErrorFields, error_in_frame

FRAME_BYTES_MAX = 1024**2

DONE_MARK = b"[DONE]"
USAGE_FIELD = b'"usage"'

_ERROR = re.compile(re.escape(ERROR_FIELD))

_LONG_ERROR = re.compile(rb'"error"\s*:\s*[{"]')
"""Found in a frame that is too long to be decoded, where it reports an error."""

TOO_LONG_TO_READ = StreamError(None, WorkerErrorFields(message="The worker reported a very long error."))
_TRANSFER = re.compile(re.escape(TRANSFER_FIELD))
_DONE = re.compile(rb"^data: ?\[DONE\]\s*$", re.MULTILINE)
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_NO_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')
_FRAME_END = re.compile(rb"\r?\n\r?\n")


class _UsageFrame(msgspec.Struct):
    usage: msgspec.Raw = msgspec.Raw(b"null")
    choices: list[msgspec.Raw] | None = None


_DECODER = msgspec.json.Decoder(_UsageFrame)


class FrameFilter:
    """Passes the frames of one stream on, without what the client must not see, and reads what they report."""

    __slots__ = (
        "_answers",
        "_last",
        "_passing",
        "_reports_cached_tokens",
        "_running_usage",
        "_tail",
        "_tail_bytes",
        "_wants_running_usage",
        "_wants_usage",
        "done",
        "error",
        "tally",
        "usage",
    )

    def __init__(
        self,
        *,
        wants_usage: bool,
        reports_cached_tokens: bool = True,
        answers: int = 1,
        running_usage: bool = False,
        wants_running_usage: bool = False,
    ) -> None:
        """Create a filter.

        Args:
            wants_usage: Whether the client asked for the usage frame.
            reports_cached_tokens: Whether the client gets the count of cached tokens of its prompt.
            answers: Choices that the stream has.
            running_usage: Whether the worker was asked for usage in every frame.
            wants_running_usage: Whether the client asked for usage in every frame.
        """
        self._wants_usage = wants_usage
        self._reports_cached_tokens = reports_cached_tokens
        self._answers = answers
        self._running_usage = running_usage
        self._wants_running_usage = wants_running_usage
        # The beginning of a frame, in the pieces in which it came: they are joined once, when its end is there.
        self._tail: list[bytes] = []
        self._tail_bytes = 0
        self._last = b""  # the last two bytes of the tail
        self._passing = False  # the rest of a frame that is too long to be kept
        self.usage: TokenUsage | None = None
        """The last usage that the worker reported of the whole answer."""
        self.tally = AnswerTally()
        """What came and was passed on so far, for a stream that ends before its usage."""
        self.done = False
        """Whether `[DONE]` has come."""
        self.error: StreamError | None = None
        """The error that the worker reported in the stream."""

    def feed_plain(self, chunk: bytes) -> bytes | None:
        """Return what can be passed on now of a chunk about which nothing is to be decided.

        None, with nothing done, for a chunk that does not begin a frame, that may have an error or the end, or that
        follows an error.
        """
        if self._tail or self._passing or self.error is not None:
            return None
        if chunk.rfind(ERROR_FIELD) >= 0 or chunk.rfind(DONE_MARK) >= 0:
            return None
        if not chunk.endswith(b"\n\n"):
            chunk = self._keep_rest(chunk)
        passed = self._pass_sound_frames(chunk)
        return passed if self._tail_bytes <= FRAME_BYTES_MAX else passed + self._give_up_tail()

    def feed(self, chunk: bytes) -> bytes:
        """Return what can be passed on now."""
        # Usually no frame is under way: the last chunk ended with one.
        if not self._tail and not self._passing:
            return self._pass_whole_frames(chunk)

        # A frame is under way, and does not end here either.
        if not (_has_end(self._last + chunk[:2]) or _has_end(chunk)):
            return self._continue_frame(chunk)

        # Its end is here, and its beginning was kept.
        if self._tail:
            chunk = b"".join((*self._tail, chunk))
            self._keep(b"")
            return self._pass_whole_frames(chunk)

        # Its end is here, and its beginning was passed on, being too long to be kept.
        end = _FRAME_END.search(self._last + chunk)
        assert end is not None
        cut = end.end() - len(self._last)
        self._passing, self._last = False, b""
        if self.error is not None:
            return b""
        self.tally.counted += 1
        return chunk[:cut] + self._pass_whole_frames(chunk[cut:])

    def end(self) -> bytes:
        """Return what is left at the end of the stream, if it is a whole frame that lacks its blank line."""
        if not self._tail:
            return b""
        tail = b"".join(self._tail)
        self._keep(b"")
        return self._pass_whole_frames(tail + b"\n\n")[:-2] if _is_whole(tail) else b""

    @property
    def ended(self) -> bool:
        """Whether the worker has marked the end of the answer: by `[DONE]`, or by all finish reasons."""
        return self.error is None and (self.done or self.tally.finished >= self._answers)

    def _pass_whole_frames(self, chunk: bytes) -> bytes:
        """Return what passes of the whole frames at the beginning of a chunk; the rest is kept."""
        # Keep the beginning of a frame that does not end here.
        if not chunk.endswith(b"\n\n"):
            chunk = self._keep_rest(chunk)

        # Withhold an error of the worker, and all that follows it.
        if chunk.rfind(ERROR_FIELD) >= 0 or self.error is not None:
            chunk = self._before_error(chunk)

        passed = self._pass_sound_frames(chunk)

        # Note the end, which is no frame of the answer.
        if passed.rfind(DONE_MARK) >= 0 and _has_done_frame(passed):
            self.done = True
            self.tally.counted -= 1

        return passed if self._tail_bytes <= FRAME_BYTES_MAX else passed + self._give_up_tail()

    def _pass_sound_frames(self, chunk: bytes) -> bytes:
        """Return what passes of whole frames without an error; `[DONE]` counts as one of them.

        Each step first looks for a mark of what it handles, since most frames have none. `rfind` takes a fraction
        of the time of `in`, and of a pattern's search.
        """
        # Read the usage; frames before the first one that has it are not looked at.
        usage_at = _first_usage(chunk) if chunk.rfind(USAGE_FIELD) >= 0 else -1
        without_usage = chunk
        if usage_at >= 0:
            start = _end_of_frames(chunk, usage_at)
            without_usage = chunk[:start]
            chunk = without_usage + self._read_usage(chunk[start:])

        # Take out what the client must not get: cached tokens of other tenants, addresses of workers.
        if not self._reports_cached_tokens and MAY_COUNT_CACHED.search(chunk) is not None:
            chunk = _redacted(chunk, MAY_COUNT_CACHED, without_cached_tokens)
        if chunk.rfind(TRANSFER_FIELD) >= 0:
            chunk = _redacted(chunk, _TRANSFER, without_transfers)

        # Note what came: its text and its frames are looked at only for a stream that ends before its usage.
        tally = self.tally
        tally.unread += without_usage
        if len(tally.unread) > UNREAD_BYTES_MAX:
            tally.read_text()
        return chunk

    def _keep_rest(self, chunk: bytes) -> bytes:
        """Keep the beginning of a frame that does not end in this chunk, and return what is before it."""
        cut = _end_of_frames(chunk, len(chunk))
        self._keep(chunk[cut:])
        return chunk[:cut]

    def _continue_frame(self, chunk: bytes) -> bytes:
        """Take a chunk in which no frame ends; return what of it passes."""
        self._last = (self._last + chunk[-2:])[-2:]
        if self._passing:
            return chunk if self.error is None else b""
        self._tail.append(chunk)
        self._tail_bytes += len(chunk)
        return self._give_up_tail() if self._tail_bytes > FRAME_BYTES_MAX else b""

    def _keep(self, rest: bytes) -> None:
        self._tail, self._tail_bytes, self._last = [rest] if rest else [], len(rest), rest[-2:]

    def _give_up_tail(self) -> bytes:
        """Return the beginning of a frame that is too long to be kept; the rest of it passes as it comes.

        If it reports an error, nothing of it passes.
        """
        tail = b"".join(self._tail)
        self._tail, self._tail_bytes, self._passing = [], 0, True
        if _LONG_ERROR.search(tail) is not None:
            self.error = self.error or TOO_LONG_TO_READ
        return tail if self.error is None else b""

    def _before_error(self, chunk: bytes) -> bytes:
        """Return the frames before one that reports an error, which is withheld; no frame after it passes."""
        if self.error is not None:
            return b""
        for start, end in _frames_with(_ERROR, chunk):
            self.error = error_in_frame(chunk[start:end])
            if self.error is not None:
                return chunk[:start]
        return chunk

    def _read_usage(self, chunk: bytes) -> bytes:
        """Take in the usage in frames, running or final, and return those frames that pass, as they pass."""
        if self._running_usage and _NO_CHOICES.search(chunk) is None:
            return self._read_running_usage(chunk)
        passed: list[bytes] = []
        at = 0
        for start, end in _frames_with(_USAGE, chunk):
            frame = chunk[start:end]
            running = self._running_usage and _NO_CHOICES.search(frame) is None
            self.tally.unread += chunk[at : start if running else end]
            read = self._read_running_usage if running else self._read_final_usage
            passed += chunk[at:start], read(frame)
            if not passed[-1]:
                self.tally.counted -= 1  # It is among the unread frames, and does not pass.
            at = end
        self.tally.unread += chunk[at:]
        return b"".join((*passed, chunk[at:]))

    def _read_running_usage(self, frames: bytes) -> bytes:
        """Take in the running usage in frames with choices; return the frames, without it unless the client asked.

        Of an answer with one choice the frames are only kept: the last ones are read if no final usage comes.
        """
        self.tally.counted += frames_in(frames)
        if self._answers == 1:
            self.tally.last_counted = frames
        else:
            self.tally.read_usage(frames)
        return frames if self._wants_running_usage else RUNNING_USAGE.sub(b"", frames)

    def _read_final_usage(self, frame: bytes) -> bytes:
        """Read the usage of the whole answer; return its frame, or nothing if the client did not request it."""
        try:
            decoded = _DECODER.decode(_payload(frame))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return frame
        self.usage = read_usage(decoded.usage) or self.usage
        if decoded.choices == [] and not self._wants_usage:
            return b""
        return frame


def _payload(frame: bytes) -> bytes:
    if frame.startswith(b"data:") and frame.count(b"\n") == 2 and frame.endswith(b"\n\n"):
        return frame[5:-2]  # Nearly all frames are one line.
    return b"".join([line[5:] for line in frame.splitlines() if line.startswith(b"data:")])


def _redacted(chunk: bytes, pattern: "re.Pattern[bytes]", redact: Callable[[bytes], bytes]) -> bytes:
    """Return a chunk in which frames that match have their payload as `redact` returns it."""
    passed: list[bytes] = []
    at = 0
    for start, end in _frames_with(pattern, chunk):
        payload = _payload(chunk[start:end])
        redacted = redact(payload)
        if redacted is not payload:
            passed += chunk[at:start], b"data: ", redacted, b"\n\n"
            at = end
    return b"".join((*passed, chunk[at:])) if passed else chunk


def _has_end(data: bytes) -> bool:
    return b"\n\n" in data or b"\n\r\n" in data


def _has_done_frame(chunk: bytes) -> bool:
    """Return whether a line of the chunk is `data: [DONE]`, and not part of a text."""
    at = chunk.rfind(DONE_MARK)
    while at >= 0:
        line = chunk.rfind(b"\n", 0, at) + 1
        if _DONE.match(chunk, line) is not None:
            return True
        at = chunk.rfind(DONE_MARK, 0, line)
    return False


def _first_usage(chunk: bytes) -> int:
    """Return where the first usage object is of a chunk that has the field; -1 if there is none."""
    last = chunk.rfind(USAGE_FIELD)
    # Most often the only one is in the last frame.
    found = _USAGE.search(chunk, 0 if chunk.rfind(USAGE_FIELD, 0, last) >= 0 else last)
    return found.start() if found is not None else -1


def _is_whole(frame: bytes) -> bool:
    """Return whether the data of a frame is `[DONE]`, or JSON with its end."""
    data = frame.partition(b"data:")[2].strip()
    if data == b"[DONE]":
        return True
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _end_of_frames(data: bytes, before: int, after: int = 0) -> int:
    """Return the end of the last whole frame between `after` and `before`; `after` if there is none."""
    lf = data.rfind(b"\n\n", after, before)
    crlf = data.rfind(b"\n\r\n", max(lf, after), before)
    return max(after, lf + 2 if lf >= 0 else 0, crlf + 3 if crlf >= 0 else 0)


def _frames_with(pattern: "re.Pattern[bytes]", data: bytes) -> Iterator[tuple[int, int]]:
    """Yield where each frame that matches begins and ends; what is between them is not looked at."""
    end = 0
    while found := pattern.search(data, end):
        start = _end_of_frames(data, found.start(), end)
        ended = _FRAME_END.search(data, found.start())
        end = ended.end() if ended is not None else len(data)
        yield start, end
