r"""Functions of libraries that a server keeps: the libraries of a client are loaded as one.

    quotas: verbs.reserve, ..    queue: verbs.admit, ..    tree: verbs.hold, ..
          \__________________________|__________________________/
                        one library with one function, batch, that calls all of them

So calls of functions of several libraries can leave as one call. A library's name contains the digest of its text:
several versions of the gateway can use one server at the same time.
"""

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from radix_cache.redis.call import Script, read_lua

LOAD = ("FUNCTION", "LOAD")


@dataclass(frozen=True, slots=True, eq=False)
class FunctionLibrary:
    """Lua code with functions that belong together."""

    body: str
    """Lua code that puts the functions, each called with (keys, args), into its local table `verbs`."""
    names: tuple[str, ...]
    """The functions' names in `verbs`."""
    prefix: str
    """The beginning of their names among the functions of all libraries; it follows from the body."""


@dataclass(frozen=True, slots=True, eq=False)
class LibraryFunction:
    """One function of a library."""

    library: FunctionLibrary
    name: str
    """Its name among the functions of all libraries."""
    when_full: bool
    """It also runs on a server that has reached its `maxmemory`, because it frees memory."""


def library_functions(
    body: str, names: Iterable[str], *, when_full: Collection[str] = ()
) -> dict[str, LibraryFunction]:
    """Return functions of a library, by name.

    Args:
        body: See FunctionLibrary.
        names: Names of the functions in the table `verbs`.
        when_full: Names of functions that also run on a server that has reached its `maxmemory`.
    """
    verbs = tuple(names)
    prefix = f"{hashlib.sha256(f'{body}{verbs}'.encode()).hexdigest()[:12]}."
    library = FunctionLibrary(body, verbs, prefix)
    return {name: LibraryFunction(library, prefix + name, name in when_full) for name in verbs}


@dataclass(frozen=True, slots=True)
class MergedLibrary:
    """Several libraries as one, by the two functions that call all of their functions."""

    batch: Script
    batch_when_full: Script
    """The same on a server that has reached its `maxmemory`."""


@dataclass(slots=True)
class BoundLibraries:
    """The libraries of one client."""

    _libraries: dict[str, FunctionLibrary] = field(default_factory=dict)
    _merged: MergedLibrary | None = None

    def bind(self, library: FunctionLibrary) -> None:
        """Add a library. Libraries that are bound before the first call are loaded once, together."""
        if library.prefix not in self._libraries:
            self._libraries[library.prefix] = library
            self._merged = None

    def merged(self) -> MergedLibrary:
        """Return all libraries as one."""
        if self._merged is None:
            # In the order of their names, so that all clients load the same text.
            self._merged = _merge([self._libraries[prefix] for prefix in sorted(self._libraries)])
        return self._merged


def _merge(libraries: Iterable[FunctionLibrary]) -> MergedLibrary:
    """Return these libraries as one: each body in a block of its own, since Lua bounds the locals of a block."""
    blocks = []
    for library in libraries:
        added = [f"functions['{library.prefix}{name}'] = verbs.{name}" for name in library.names]
        blocks.append("\n".join(["do", library.body, *added, "end"]))
    body = "\n".join(["local functions = {}", *blocks, read_lua("radix_cache.redis", "batch")])
    version = f"radixgate_{hashlib.sha256(body.encode()).hexdigest()[:12]}"
    names = f"{version}_batch", f"{version}_batch_when_full"
    registered = [
        f"redis.register_function{{function_name='{name}', callback=batch, flags={{{flags}}}}}"
        for name, flags in zip(names, ("", "'allow-oom'"), strict=True)
    ]
    text = "\n".join([f"#!lua name={version}", body, *registered])
    batch, batch_when_full = (Script(text, name, "FCALL", LOAD) for name in names)
    return MergedLibrary(batch, batch_when_full)
