"""What is asked of Redis: Lua scripts and plain commands, each with the future of its answer."""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

Answer = list[int] | int
Argument = str | bytes | int | float


class RedisDown(Exception):
    """Redis did not answer, or answered with an error."""


@dataclass(frozen=True, slots=True)
class Script:
    """One Lua file and the name Redis knows it by."""

    text: str
    sha: str

    @classmethod
    def of(cls, text: str) -> "Script":
        """A script from its text; Redis names scripts by SHA-1."""
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())

    @classmethod
    def read(cls, package: str, *names: str) -> "Script":
        """The script `name`.lua of a package, as installed; of several names one script, in that order."""
        folder = files(package) / "lua"
        return cls.of("\n".join((folder / f"{name}.lua").read_text(encoding="utf-8") for name in names))


@dataclass(slots=True, eq=False)
class Call:
    """`keys`: what it touches; in a cluster they are all of one slot. The rest is for whoever sends it."""

    command: Sequence[Argument]
    keys: Sequence[Argument]
    script: Script | None
    answer: "asyncio.Future[Any]"
    repeated: bool = False
    asking: bool = False
    slot: int | None = None
    number: int = 0

    def succeed(self, reply: Any) -> None:
        if not self.answer.done():
            self.answer.set_result(reply)

    def fail(self, why: object) -> None:
        """With RedisDown."""
        if not self.answer.done():
            self.answer.set_exception(RedisDown(str(why)))
            # A caller that has left does not fetch it; that is no news.
            self.answer.exception()
