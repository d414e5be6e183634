"""Fills the settings tree: defaults < YAML file < environment < --set.

    RADIXGATE__LISTEN__PORT=9000        --set listen.port=9000        --set workers.0.url=http://...

Text from environment and --set stays text unless it begins with `[` or `{`; the field's type converts it.
`${env:NAME}` and `${file:PATH}` inside any text are replaced (PATH is relative to the YAML file). Every problem is
a SettingsProblem with one line that begins with the path of the setting: `$.workers[0].kind: ...`.
"""

import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_origin

import msgspec
import yaml

from gateway.settings import UNBUILT, Secret, Settings, SettingsProblem, first_problem

ENVIRONMENT_PREFIX = "RADIXGATE__"

Location = tuple[str | int, ...]

_REFERENCE = re.compile(r"\$\{(env|file):([^}]*)\}")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<key>[^`]*)`")
_CREDENTIALS = re.compile(r"://[^/@\s]+@")
_AT = re.compile(r" - at `(?P<path>[^`]*)`$")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSettings:
    """The tree, and for every value that is not a default where it came from."""

    settings: Settings
    sources: Mapping[Location, str]

    def leaves(self) -> Iterator[tuple[str, str, str]]:
        """Every leaf as (path, value, source); secrets are masked."""
        for location, value in _leaves(self.settings, ()):
            yield _path(location), _shown(value), self._source(location)

    def _source(self, location: Location) -> str:
        while location:
            if location in self.sources:
                return self.sources[location]
            location = location[:-1]
        return "default"


def load(
    file: Path | None,
    environment: Mapping[str, str] | None = None,
    assignments: Sequence[str] = (),
    *,
    complete: bool = True,
) -> LoadedSettings:
    """Reads all sources and checks the result. Raises SettingsProblem.

    `complete`: also what settings demand of each other. A command that needs a single value does not.
    """
    sources: dict[Location, str] = {}
    tree: dict[str, Any] = {}
    base = Path()
    if file is not None:
        base = file.parent
        tree = _read_yaml(file)
        for location, _ in _leaves(tree, ()):
            sources[location] = str(file)
    environment = os.environ if environment is None else environment
    for name in sorted(environment):
        if name.startswith(ENVIRONMENT_PREFIX):
            location = _location(name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__"))
            _assign(tree, location, _value(environment[name]), name)
            sources[location] = f"environment {name}"
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name:
            raise SettingsProblem(f"--set {assignment}: expected PATH=VALUE, as in listen.port=9000")
        location = _location(re.sub(r"\[(\d+)\]", r".\1", name).split("."))
        _assign(tree, location, _value(text), f"--set {name}")
        sources[location] = "--set"
    resolved = _resolve(tree, (), base, environment)
    settings = _convert(resolved)
    problem = first_problem(settings) if complete else None
    if problem is not None:
        raise SettingsProblem(problem)
    return LoadedSettings(settings=settings, sources=sources)


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsProblem(f"{file}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as err:
        raise SettingsProblem(f"{file}: cannot be read: {err}") from err
    except yaml.YAMLError as err:
        mark = getattr(err, "problem_mark", None)
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""
        raise SettingsProblem(f"{file}: not valid YAML: {getattr(err, 'problem', err)}{where}") from err
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise SettingsProblem(f"{file}: $: expected a mapping of settings, got {type(tree).__name__}")
    return tree


def _location(names: Sequence[str]) -> Location:
    return tuple(int(name) if name.isdigit() else name for name in names)


def _value(text: str) -> Any:
    if text[:1] not in ("[", "{"):
        return text
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _assign(tree: Any, location: Location, value: Any, source: str) -> None:
    """Sets one place of the tree, making the branches on the way."""
    for depth, name in enumerate(location):
        here, last = location[: depth + 1], depth == len(location) - 1
        if isinstance(tree, list):
            if not isinstance(name, int) or name >= len(tree):
                raise SettingsProblem(f"{_path(here)}: there is no such element ({source})")
        elif isinstance(tree, dict):
            if not last and tree.get(name) is None:
                tree[name] = {}
        else:
            raise SettingsProblem(f"{_path(location[:depth])}: is a value and has nothing inside ({source})")
        if last:
            tree[name] = value
        else:
            tree = tree[name]


def _resolve(value: Any, location: Location, base: Path, environment: Mapping[str, str]) -> Any:
    """Replaces ${env:NAME} and ${file:PATH} everywhere."""
    if isinstance(value, dict):
        return {k: _resolve(v, (*location, k), base, environment) for k, v in value.items()}
    if isinstance(value, list):
        return [_resolve(v, (*location, at), base, environment) for at, v in enumerate(value)]
    if not isinstance(value, str):
        # YAML makes dates of what looks like one; settings have text there.
        return value.isoformat() if hasattr(value, "isoformat") else value

    def replacement(found: re.Match[str]) -> str:
        kind, name = found.groups()
        if kind == "env":
            if name not in environment:
                raise SettingsProblem(f"{_path(location)}: the environment variable {name} is not set")
            return environment[name]
        try:
            return (base / name).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as err:
            raise SettingsProblem(f"{_path(location)}: the file {name} cannot be read: {err}") from err

    return _REFERENCE.sub(replacement, value)


def _convert(tree: dict[str, Any]) -> Settings:
    def decode(kind: type, value: Any) -> Any:
        if kind is Secret and isinstance(value, str) and value and value.isascii() and value.isprintable():
            return Secret(value)
        raise ValueError("expected printable ASCII characters, at least one")

    try:
        return msgspec.convert(tree, Settings, strict=False, dec_hook=decode)
    except msgspec.ValidationError as err:
        raise SettingsProblem(_explained(str(err))) from err


def _explained(message: str) -> str:
    """msgspec's message with the path in front, and unknown keys named."""
    at = _AT.search(message)
    path = at["path"] if at else "$"
    text = _AT.sub("", message)
    unknown = _UNKNOWN.match(text)
    plain = re.sub(r"\[[^\]]*\]", "", path.removeprefix("$").lstrip("."))
    if unknown is None:
        choices = (
            f"; choose one of {', '.join(_choices_at(plain))}" if text.startswith("Invalid enum") else ""
        )
        return f"{path}: {text[:1].lower()}{text[1:]}{choices}"
    key = unknown["key"]
    full = f"{plain}.{key}" if plain else key
    if full in UNBUILT:
        return f"{path}.{key}: {UNBUILT[full]}: not built yet"
    near = difflib.get_close_matches(key, _names_at(plain), n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"{path}.{key}: unknown setting{hint}"


def _names_at(plain: str) -> list[str]:
    """Names that the tree has at this place."""
    kind = _type_at(plain)
    return [f.encode_name for f in msgspec.structs.fields(kind)] if issubclass(kind, msgspec.Struct) else []


def _choices_at(plain: str) -> list[str]:
    """Values that the setting at this place may have."""
    return [str(value) for value in getattr(_type_at(plain), "__args__", ())]


def _type_at(plain: str) -> Any:
    """The struct, choice or plain type of the setting at this place."""
    kind: Any = Settings
    for name in filter(None, plain.split(".")):
        kind = _bare({f.encode_name: f.type for f in msgspec.structs.fields(kind)}[name])
    return kind


def _bare(annotation: Any) -> Any:
    """X of X | None, tuple[X, ...] and Annotated[X, ...]; a choice stays one."""
    inner = getattr(annotation, "__args__", ())
    return annotation if not inner or get_origin(annotation) is Literal else _bare(inner[0])


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


def _path(location: Location) -> str:
    return "$" + "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in location)


def _shown(value: Any) -> str:
    if isinstance(value, Secret):
        return repr(value)
    if isinstance(value, str):
        value = _CREDENTIALS.sub("://****@", value)
    return msgspec.json.encode(value).decode()
