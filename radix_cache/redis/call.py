"""Calls to Redis: Lua scripts, functions and plain commands, each with the future of its answer."""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

ScriptAnswer = list[int] | int
CommandArgument = str | bytes | int | float


class RedisDown(Exception):
    """Redis did not answer, or answered with an error."""


@dataclass(frozen=True, slots=True)
class Script:
    """Lua code that a server runs by name: a script, or one function of a library (see library.py).

    A library is compiled once for all calls; a script defines its own functions in each call.
    """

    text: str
    """The code to load when the server does not have the name."""
    name: str
    run: str = "EVALSHA"
    """The command that runs the code."""
    load: tuple[str, str] = ("SCRIPT", "LOAD")
    """The command that loads the code."""

    @classmethod
    def from_text(cls, text: str) -> "Script":
        """Return the script with this text; Redis names scripts by SHA-1."""
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())

    @classmethod
    def from_file(cls, package: str, name: str) -> "Script":
        """Return the script `name`.lua of an installed package."""
        return cls.from_text(read_lua(package, name))

    @classmethod
    def from_library_function(cls, body: str, function: str) -> "Script":
        """Return a function of a library as a script, for servers that have reached their `maxmemory`.

        Such a server refuses to load a library that it does not have (FUNCTION LOAD), but loads scripts (SCRIPT
        LOAD).
        """
        return cls.from_text(f"#!lua flags=allow-oom\n{body}\nreturn verbs.{function}(KEYS, ARGV)")


UNKNOWN_SCRIPT_ERRORS = ("NOSCRIPT", "ERR Function not found")
"""Prefixes of the errors of a server that does not have a script."""


def read_lua(package: str, *names: str) -> str:
    """Return the joined texts of the files `name`.lua of an installed package, in this order."""
    folder = files(package) / "lua"
    return "\n".join((folder / f"{name}.lua").read_text(encoding="utf-8") for name in names)


@dataclass(slots=True, eq=False)
class RedisCall:
    """One command on its way to a server, with the future of its answer."""

    packed: bytes
    """The command in wire format."""
    keys: Sequence[CommandArgument]
    """The keys that the command touches; in a cluster they are all of one slot."""
    script: Script | None
    answer: "asyncio.Future[Any]"
    repeated: bool = False
    """Whether the call was sent a second time."""
    asking: bool = False
    """Send ASKING before it: the slot is being moved to the server."""
    slot: int | None = None
    """The cluster slot of its keys; None until it is computed."""
    number: int = 0
    """The call's place in the order of calls to a cluster."""
    load: int = 0
    """The number of the script load that the call relies on."""

    def succeed(self, reply: Any) -> None:
        """Set the answer."""
        if not self.answer.done():
            self.answer.set_result(reply)

    def fail(self, why: object) -> None:
        """Let the answer raise RedisDown."""
        if not self.answer.done():
            self.answer.set_exception(RedisDown(str(why)))
            # Retrieved here: a cancelled caller never retrieves it, and asyncio would log that.
            self.answer.exception()


def ignore_result(call: "asyncio.Future[ScriptAnswer]") -> None:
    """Ignore the result or failure of a call."""
    call.add_done_callback(lambda done: done.cancelled() or done.exception())
