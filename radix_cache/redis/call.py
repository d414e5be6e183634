"""What is asked of Redis: Lua scripts and functions, and plain commands, each with the future of its answer."""

import asyncio
import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

ScriptAnswer = list[int] | int
CommandArgument = str | bytes | int | float


class RedisDown(Exception):
    """Redis did not answer, or answered with an error."""


@dataclass(frozen=True, slots=True)
class Script:
    """Lua that a server runs by name: a script, or one function of a library.

    A library is compiled once for all calls; a script makes its own functions anew in each. `text`: what the server
    is given when it does not know the name.
    """

    text: str
    name: str
    run: str = "EVALSHA"
    load: tuple[str, str] = ("SCRIPT", "LOAD")

    @classmethod
    def of(cls, text: str) -> "Script":
        """A script from its text; Redis names scripts by SHA-1."""
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())

    @classmethod
    def read(cls, package: str, name: str) -> "Script":
        """The script `name`.lua of a package, as installed."""
        return cls.of(read_lua(package, name))

    @classmethod
    def library(
        cls, body: str, functions: Iterable[str], *, when_full: Collection[str] = ()
    ) -> "dict[str, Script]":
        """The functions that the text has put into its table `verbs`, called with (keys, args).

        They bear the text's digest: those of several versions are on a server side by side. `when_full`: those that
        run on a server that has reached its `maxmemory`, since they make room.
        """
        names = list(functions)
        flags = [("allow-oom",) if name in when_full else () for name in names]
        digest = hashlib.sha256(f"{body}{list(zip(names, flags, strict=True))}".encode()).hexdigest()
        version = f"radixgate_{digest[:12]}"
        registered = [
            f"redis.register_function{{function_name='{version}_{name}', callback=verbs.{name}, "
            f"flags={{{', '.join(map(repr, flagged))}}}}}"
            for name, flagged in zip(names, flags, strict=True)
        ]
        text = "\n".join([f"#!lua name={version}", body, *registered])
        return {name: cls(text, f"{version}_{name}", "FCALL", ("FUNCTION", "LOAD")) for name in names}

    @classmethod
    def of_library(cls, body: str, function: str) -> "Script":
        """One function of a library that runs on a server which has reached its `maxmemory`, as a script.

        Such a server takes no library that it does not have (FUNCTION LOAD), but takes scripts (SCRIPT LOAD).
        """
        return cls.of(f"#!lua flags=allow-oom\n{body}\nreturn verbs.{function}(KEYS, ARGV)")


UNKNOWN_SCRIPT_ERRORS = ("NOSCRIPT", "ERR Function not found")
"""What a server says that has not been given a script, or has lost it."""


def read_lua(package: str, *names: str) -> str:
    """The files `name`.lua of a package, as installed, in this order."""
    folder = files(package) / "lua"
    return "\n".join((folder / f"{name}.lua").read_text(encoding="utf-8") for name in names)


@dataclass(slots=True, eq=False)
class RedisCall:
    """`keys`: what it touches; in a cluster they are all of one slot. The rest is for whoever sends it."""

    command: Sequence[CommandArgument]
    keys: Sequence[CommandArgument]
    script: Script | None
    answer: "asyncio.Future[Any]"
    repeated: bool = False
    asking: bool = False
    slot: int | None = None
    number: int = 0
    load: int = 0

    def succeed(self, reply: Any) -> None:
        if not self.answer.done():
            self.answer.set_result(reply)

    def fail(self, why: object) -> None:
        """With RedisDown."""
        if not self.answer.done():
            self.answer.set_exception(RedisDown(str(why)))
            # A caller that has left does not fetch it; that is no news.
            self.answer.exception()
