"""The state of one choice while it is generated: what each step adds, and all of it together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from workers.engine.request import Output
from workers.engine.sampling.logprobs import TokenLogprob
from workers.engine_server.tools.call_parser import CallDelta, CallParser, ParsedPiece


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceDelta:
    """What one step added to a choice: text, pieces of tool calls, and the log probabilities of its tokens."""

    text: str = ""
    calls: tuple[CallDelta, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()

    def __bool__(self) -> bool:
        """Return whether there is anything to send; half a character or half a marker of a call is not sent yet."""
        return bool(self.text or self.calls or self.logprobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedToolCall:
    """A tool call with all of its arguments."""

    id: str
    name: str
    arguments: str


@dataclass(slots=True, kw_only=True)
class ChoiceState:
    """One choice while it is generated."""

    parser: CallParser | None = None
    """Finds tool calls in the text; None where all of the answer is text."""
    last: Output | None = None
    """The engine's latest output for this choice."""

    def add(self, output: Output) -> ChoiceDelta:
        """Take the engine's next output, and return what it adds to the choice."""
        self.last = output
        if self.parser is None:
            return ChoiceDelta(text=output.text, logprobs=output.logprobs)
        pieces = self.parser.push(output.text) + (self.parser.end() if output.finish else [])
        return ChoiceDelta(
            text="".join(piece for piece in pieces if isinstance(piece, str)),
            calls=_joined(pieces),
            logprobs=output.logprobs,
        )

    @property
    def finish_reason(self) -> str:
        """Why the choice ended, in OpenAI's words; RuntimeError while it has not ended."""
        if self.last is None or self.last.finish is None:
            raise RuntimeError("the choice has not ended")
        called = self.parser is not None and self.parser.calls
        return "tool_calls" if called and self.last.finish == "stop" else str(self.last.finish)

    @property
    def ending(self) -> dict[str, str]:
        """The fields of a response's choice about how it ended."""
        stop = self.last.stop if self.last is not None else None
        # `matched_stop` is SGLang's field; OpenAI has none for it.
        return {"finish_reason": self.finish_reason, **({"matched_stop": stop} if stop is not None else {})}


@dataclass(slots=True, kw_only=True)
class CompletedChoice:
    """Everything that one choice generated, for clients that do not stream."""

    state: ChoiceState
    deltas: list[ChoiceDelta] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(delta.text for delta in self.deltas)

    @property
    def calls(self) -> list[CompletedToolCall]:
        """The tool calls, each with all of its arguments."""
        pieces = [piece for delta in self.deltas for piece in delta.calls]
        return [
            CompletedToolCall(
                id=begin.id,
                name=begin.name or "",
                arguments="".join(piece.arguments for piece in pieces if piece.index == begin.index),
            )
            for begin in pieces
            if begin.id is not None
        ]

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """The log probabilities of all tokens."""
        return tuple(one for delta in self.deltas for one in delta.logprobs)


def _joined(pieces: Sequence[ParsedPiece]) -> tuple[CallDelta, ...]:
    """Return the pieces of calls; join neighbours of one call, except the piece that begins it."""
    joined: list[CallDelta] = []
    for piece in _calls(pieces):
        before = joined[-1] if joined else None
        if before and before.id is None and before.index == piece.index and piece.id is None:
            joined[-1] = CallDelta(index=piece.index, arguments=before.arguments + piece.arguments)
        else:
            joined.append(piece)
    return tuple(joined)


def _calls(pieces: Iterable[ParsedPiece]) -> list[CallDelta]:
    return [piece for piece in pieces if isinstance(piece, CallDelta)]
