"""Replaces references inside text: `${env:NAME}` and `${file:PATH}`; `$${` is an escaped `${`."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.settings.types import SettingsProblem
from gateway.settings.yaml import Location, path

_REFERENCE = re.compile(r"\$\$\{|\$\{env:(?P<env>\w+)\}|\$\{file:(?P<file>[^{}]+)\}|\$\{")


class References:
    """Replaces references to environment variables and files.

    Args:
        base: directory to which relative paths of files are relative.
        environment: the environment variables.
    """

    def __init__(self, base: Path, environment: Mapping[str, str]) -> None:
        self.used: set[str] = set()
        """Names of the environment variables that were referred to."""

        self._base = base
        self._environment = environment

    def replace_in_tree(self, value: Any, location: Location) -> Any:
        """Return the tree with all references replaced. Raises SettingsProblem if a reference has no value."""
        if isinstance(value, dict):
            return {name: self.replace_in_tree(inner, (*location, name)) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.replace_in_tree(inner, (*location, at)) for at, inner in enumerate(value)]
        return self.replace_in_text(value, path(location)) if isinstance(value, str) else value

    def replace_in_text(self, text: str, path: str) -> str:
        """Return the text with all references replaced. Raises SettingsProblem, which names `path`."""
        return _REFERENCE.sub(lambda found: self._value_of(found, path), text)

    def _value_of(self, found: re.Match[str], path: str) -> str:
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
