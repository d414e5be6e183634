"""References inside text: `${env:NAME}` and `${file:PATH}`; `$${` stands for `${` itself."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.settings.types import SettingsProblem
from gateway.settings.yaml import Location, path

_REFERENCE = re.compile(r"\$\$\{|\$\{env:(?P<env>\w+)\}|\$\{file:(?P<file>[^{}]+)\}|\$\{")


class References:
    """`base`: where relative paths start. `used`: the names of the environment that were referred to."""

    def __init__(self, base: Path, environment: Mapping[str, str]) -> None:
        self.used: set[str] = set()
        self._base = base
        self._environment = environment

    def within(self, value: Any, location: Location) -> Any:
        """A tree with all references in it replaced. Raises SettingsProblem."""
        if isinstance(value, dict):
            return {name: self.within(inner, (*location, name)) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.within(inner, (*location, at)) for at, inner in enumerate(value)]
        return self.replaced(value, path(location)) if isinstance(value, str) else value

    def replaced(self, text: str, path: str) -> str:
        """The text with what it refers to. Raises SettingsProblem, naming `path`."""
        return _REFERENCE.sub(lambda found: self._meant(found, path), text)

    def _meant(self, found: re.Match[str], path: str) -> str:
        if found["env"] is not None:
            return self._variable(found["env"], path)
        if found["file"] is not None:
            return self._content(found["file"], path)
        if found[0] == "$${":
            return "${"
        raise SettingsProblem(
            f"{path}: `${{` begins a reference, ${{env:NAME}} or ${{file:PATH}}; write $${{ for the text"
        )

    def _variable(self, name: str, path: str) -> str:
        self.used.add(name)
        if name not in self._environment:
            raise SettingsProblem(f"{path}: the environment variable {name} is not set")
        return self._environment[name]

    def _content(self, name: str, path: str) -> str:
        try:
            return (self._base / name).read_text(encoding="utf-8").strip()
        except OSError as err:
            raise SettingsProblem(f"{path}: the file {name} cannot be read: {err.strerror}") from err
        except ValueError as err:
            raise SettingsProblem(f"{path}: the file {name} cannot be read: {err}") from err
