"""Reads the settings tree from defaults, YAML file, environment and --set; a later source overrides an earlier one.

    RADIXGATE__LISTEN__PORT=9000        --set listen.port=9000        --set workers.0.url=http://...

Values from environment and --set are text unless they begin with `[` or `{`; text is converted to the type of the
setting. `${env:NAME}` and `${file:PATH}` are replaced inside any text. Paths in the file are relative to the file,
and so is the default state directory if there is a file. Every error is a SettingsProblem with one line that begins
with the path of the setting: `$.workers[0].kind: ...`.
"""

import math
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gateway.settings.checks.settings_warnings import expired_keys, misspelt_variables
from gateway.settings.checks.tree_checks import first_problem
from gateway.settings.environment import ENVIRONMENT_PREFIX
from gateway.settings.error_messages import explain_error, explain_not_text, type_at
from gateway.settings.models import TOKENIZER_KEYWORDS
from gateway.settings.references import References
from gateway.settings.tree import UNBUILT, Settings
from gateway.settings.types import MediaHost, Moment, Network, Secret, SettingsProblem
from gateway.settings.workers import expand_workers
from gateway.settings.yaml import Location, parse_yaml, path

DEFAULT = "default"
"""The source name of default values."""

ENVIRONMENT_SOURCE = "environment "
"""The source name of environment variables, followed by the name of the variable."""

_CREDENTIALS = re.compile(r"://[^/@\s]+@")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSettings:
    """Settings with the sources of their values."""

    settings: Settings
    sources: Mapping[Location, str]
    """The source of every value that is not a default."""

    warnings: tuple[str, ...] = ()
    """Probable mistakes, one line each."""

    def leaves(self) -> Iterator[tuple[str, str, str]]:
        """Yield every setting as (path, value, source); secrets are masked."""
        for location, value in _leaves(self.settings, ()):
            yield path(location), _shown(value), _source(self.sources, location)


def load_settings(
    file: Path | None,
    environment: Mapping[str, str] | None = None,
    assignments: Sequence[str] = (),
    *,
    complete: bool = True,
) -> LoadedSettings:
    """Read all sources and check the result.

    Args:
        file: the YAML file, if there is one.
        environment: environment variables; by default those of this process.
        assignments: values of --set, such as `listen.port=9000`.
        complete: whether to check dependencies between settings; commands that use only a few values do not.

    Raises:
        SettingsProblem: a source cannot be read, or a setting is wrong.
    """
    environment = os.environ if environment is None else environment
    base = file.parent.absolute() if file is not None else Path()
    tree = _read(file) if file is not None else {}
    sources: dict[Location, str] = {location: str(file) for location, _ in _leaves(tree, ())}
    for location, text, source in (*_variables(environment), *_assigned(assignments)):
        _assign(tree, location, _value(text, location, source), source)
        for inner in [known for known in sources if known[: len(location)] == location]:
            del sources[inner]
        sources[location] = source
    referred = References(base, environment)
    tree = referred.replace_in_tree(tree, ())
    if "workers" in tree:
        tree["workers"] = expand_workers(tree["workers"])
    if file is not None:
        tree = with_absolute_files(
            tree, (), lambda at, name: str(base / name) if sources.get(at) == str(file) else name
        )
    settings = convert_settings(tree)
    if file is not None:
        from_file = (str(file), DEFAULT)
        settings = _resolve_paths(settings, base, lambda at: _source(sources, at) in from_file)
    problem = first_problem(settings) if complete else None
    if problem is not None:
        raise SettingsProblem(problem)
    warnings = (*misspelt_variables(environment, referred.used), *expired_keys(settings, time.time()))
    return LoadedSettings(settings=settings, sources=sources, warnings=warnings)


def process_references(base: Path) -> References:
    """Return the replacer of references in files that are read while the gateway runs."""
    return References(base, os.environ)


def _read(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise SettingsProblem(f"{file}: there is no such file") from None
    except OSError as err:
        raise SettingsProblem(f"{file}: cannot be read: {err.strerror}") from err
    except ValueError as err:
        raise SettingsProblem(f"{file}: cannot be read: {err}") from err
    tree = parse_yaml(text, str(file))
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise SettingsProblem(f"{file}: $: expected a mapping of settings, got {type(tree).__name__}")
    # YAML anchors share objects; in a copy each place can be set separately.
    copied: dict[str, Any] = msgspec.to_builtins(tree)
    return copied


def _variables(environment: Mapping[str, str]) -> Iterator[tuple[Location, str, str]]:
    """Yield the settings of the environment as (location, text, source)."""
    for name in sorted(environment):
        if name.startswith(ENVIRONMENT_PREFIX):
            location = _location(name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__"))
            yield location, environment[name], f"{ENVIRONMENT_SOURCE}{name}"


def _assigned(assignments: Sequence[str]) -> Iterator[tuple[Location, str, str]]:
    """Yield the settings of the command line as (location, text, source)."""
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name:
            raise SettingsProblem(f"--set {assignment}: expected PATH=VALUE, as in listen.port=9000")
        names = re.sub(r"\[(\d+)\]", r".\1", name.removeprefix("$.")).split(".")
        yield _location(names), text, f"--set {name}"


def _location(names: Sequence[str]) -> Location:
    return tuple(int(name) if name.isdecimal() else name for name in names)


def _source(sources: Mapping[Location, str], location: Location) -> str:
    while location:
        if location in sources:
            return sources[location]
        location = location[:-1]
    return DEFAULT


def _value(text: str, location: Location, source: str) -> Any:
    """Parse a list or mapping in YAML's flow style, unless the setting is text; return other text unchanged."""
    if text[:1] not in ("[", "{") or type_at(Settings, location) in (str, Secret):
        return text
    return parse_yaml(text, source, location)


def _assign(tree: Any, location: Location, value: Any, source: str) -> None:
    """Set one value of the tree, and create the mappings on the way to it."""
    for depth, name in enumerate(location):
        here, last = location[: depth + 1], depth == len(location) - 1
        if isinstance(tree, list):
            if not isinstance(name, int) or name >= len(tree):
                raise SettingsProblem(f"{path(here)}: there is no such list element ({source})")
        elif isinstance(tree, dict):
            if isinstance(name, int):
                raise SettingsProblem(f"{path(here)}: there is no such list element ({source})")
            if not last and tree.get(name) is None:
                tree[name] = {}
        else:
            raise SettingsProblem(
                f"{path(location[:depth])}: is a single value and has no settings inside ({source})"
            )
        if last:
            tree[name] = value
        else:
            tree = tree[name]


def with_absolute_files(value: Any, location: Location, absolute: Callable[[Location, str], str]) -> Any:
    """Return the tree with absolute paths of certificates and of discovery files."""
    if isinstance(value, list):
        return [with_absolute_files(inner, (*location, at), absolute) for at, inner in enumerate(value)]
    if not isinstance(value, dict):
        return value
    path_names: Collection[str] = ()
    if location[-1:] == ("tls",):
        path_names = ("ca", "certificate", "key", "client_ca")
    elif location[:1] == ("discovery",) and value.get("kind") == "file":
        path_names = ("name",)
    return {
        name: absolute((*location, name), inner)
        if name in path_names and isinstance(inner, str)
        else with_absolute_files(inner, (*location, name), absolute)
        for name, inner in value.items()
    }


def _resolve_paths(settings: Settings, base: Path, here: Callable[[Location], bool]) -> Settings:
    """Make absolute the relative paths that the file sets, and the state directory if no source sets it."""

    def absolute(value: str, *location: str | int) -> str:
        return str(base / value) if here(location) else value

    listen, models = settings.listen, list(settings.models)
    if listen.unix_socket is not None:
        unix_socket = absolute(listen.unix_socket, "listen", "unix_socket")
        listen = msgspec.structs.replace(listen, unix_socket=unix_socket)
    for at, model in enumerate(models):
        if model.tokenizer not in TOKENIZER_KEYWORDS:
            tokenizer = absolute(model.tokenizer, "models", at, "tokenizer")
            models[at] = msgspec.structs.replace(model, tokenizer=tokenizer)
    telemetry = settings.telemetry
    if telemetry.access_log not in (None, "-"):
        access_log = absolute(telemetry.access_log, "telemetry", "access_log")
        telemetry = msgspec.structs.replace(telemetry, access_log=access_log)
    return msgspec.structs.replace(
        settings,
        telemetry=telemetry,
        state_directory=absolute(settings.state_directory, "state_directory"),
        listen=listen,
        models=tuple(models),
    )


def convert_settings(tree: Mapping[str, Any]) -> Settings:
    """Return a tree of texts, numbers and lists as settings. Raises SettingsProblem."""

    def decode(kind: type, value: Any) -> Any:
        if kind in (MediaHost, Moment, Network):
            return kind(value)
        if kind is not Secret or not isinstance(value, str):
            raise ValueError(explain_not_text(value))
        if not value or not value.isascii() or not value.isprintable():
            raise ValueError("expected printable ASCII characters, at least one")
        return Secret(value)

    try:
        settings = msgspec.convert(tree, Settings, strict=False, dec_hook=decode)
    except msgspec.ValidationError as err:
        raise SettingsProblem(explain_error(str(err), Settings, UNBUILT)) from err
    for location, value in _leaves(settings, ()):
        if isinstance(value, float) and not math.isfinite(value):
            raise SettingsProblem(f"{path(location)}: expected a finite number, got {value}")
    return settings


def _leaves(value: Any, location: Location) -> Iterator[tuple[Location, Any]]:
    if isinstance(value, msgspec.Struct):
        value = {f.encode_name: getattr(value, f.name) for f in msgspec.structs.fields(value)}
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _leaves(inner, (*location, name))
    elif isinstance(value, list | tuple) and value:
        for at, inner in enumerate(value):
            yield from _leaves(inner, (*location, at))
    else:
        yield location, value


def without_credentials(url: str) -> str:
    """Return an address without the user and the password in it."""
    return _CREDENTIALS.sub("://****@", url)


def _shown(value: Any) -> str:
    if isinstance(value, Secret):
        return repr(value)
    if isinstance(value, MediaHost | Moment | Network):
        value = value.text
    if isinstance(value, str):
        value = without_credentials(value)
    return msgspec.json.encode(value).decode()
