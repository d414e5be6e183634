"""What one step of the engine says in one choice, and what a whole choice has said."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from workers.engine.request import Output
from workers.engine.sampling.logprobs import TokenLogprob
from workers.engine_server.tools.call_parser import CallDelta, CallParser, ParsedPiece


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceDelta:
    """Text, pieces of tool calls, and the log probabilities of the tokens that they came from."""

    text: str = ""
    calls: tuple[CallDelta, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()

    def __bool__(self) -> bool:
        """Is there anything to send? A step may let nothing out: half a character, or half a marker."""
        return bool(self.text or self.calls or self.logprobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedToolCall:
    """A tool call with all of its arguments."""

    id: str
    name: str
    arguments: str


@dataclass(slots=True, kw_only=True)
class ChoiceState:
    """One choice while it is said. `parser` None: all of it is text."""

    parser: CallParser | None = None
    last: Output | None = None

    def hear(self, output: Output) -> ChoiceDelta:
        """What this output adds."""
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
    def finish(self) -> str:
        """Why it ended, in OpenAI's words."""
        if self.last is None or self.last.finish is None:
            raise RuntimeError("the choice has not ended")
        called = self.parser is not None and self.parser.calls
        return "tool_calls" if called and self.last.finish == "stop" else str(self.last.finish)

    @property
    def ending(self) -> dict[str, str]:
        """How it has ended, as a choice of an answer says it."""
        stop = self.last.stop if self.last is not None else None
        # SGLang's name; OpenAI has none.
        return {"finish_reason": self.finish, **({"matched_stop": stop} if stop is not None else {})}


@dataclass(slots=True, kw_only=True)
class CompletedChoice:
    """All that a choice said, for clients that do not stream."""

    choice: ChoiceState
    said: list[ChoiceDelta] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Its text."""
        return "".join(said.text for said in self.said)

    @property
    def calls(self) -> list[CompletedToolCall]:
        """Its tool calls."""
        pieces = [piece for said in self.said for piece in said.calls]
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
        """Of all its tokens."""
        return tuple(one for said in self.said for one in said.logprobs)


def _joined(pieces: Sequence[ParsedPiece]) -> tuple[CallDelta, ...]:
    """The pieces of calls; neighbours of one call become one, but what begins a call stands alone."""
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
