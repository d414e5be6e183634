r"""Redis function libraries: all libraries of a client are loaded into the server as one.

    quotas: verbs.reserve, ..    queue: verbs.admit, ..    tree: verbs.hold, ..
          \__________________________|__________________________/
                        one library with one function, batch, that calls all of them

So calls to several libraries can be sent as one call. A library's name contains the digest of its text, so that
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
    """The prefix of their names in the merged library; derived from the body."""


@dataclass(frozen=True, slots=True, eq=False)
class LibraryFunction:
    """One function of a library."""

    library: FunctionLibrary
    name: str
    """Its name in the merged library."""
    when_full: bool
    """Whether it also runs on a server that has reached its `maxmemory`, because it frees memory."""


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
    """Several libraries as one, called by its two batch functions."""

    batch: Script
    batch_when_full: Script
    """The batch function for a server that has reached its `maxmemory`."""


@dataclass(slots=True)
class BoundLibraries:
    """The libraries of one client."""

    _libraries: dict[str, FunctionLibrary] = field(default_factory=dict)
    _merged: MergedLibrary | None = None

    def bind(self, library: FunctionLibrary) -> None:
        """Add a library. All libraries that are bound before the first call are loaded together."""
        if library.prefix not in self._libraries:
            self._libraries[library.prefix] = library
            self._merged = None

    def merged(self) -> MergedLibrary:
        """Return all libraries as one."""
        if self._merged is None:
            # Sorted by name, so that all clients load the same text.
            self._merged = _merge([self._libraries[prefix] for prefix in sorted(self._libraries)])
        return self._merged


def _merge(libraries: Iterable[FunctionLibrary]) -> MergedLibrary:
    """Merge these libraries, each body in a block of its own, since Lua limits the locals of a block."""
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
