"""The settings file that `radixgate init` and `radixgate serve --worker` write."""

import os
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gateway.settings.json_schema import FILE_NAME as SCHEMA_FILE
from gateway.settings.json_schema import settings_schema

STATE_DIRECTORY = ".radixgate"


def write_settings(file: Path, settings: dict[str, Any], mode: str) -> None:
    """Write a settings file whose first line names its JSON schema, which is written into the state directory.

    Raises FileExistsError if the mode is `x` and the file exists, and OSError.
    """
    state = file.absolute().parent / STATE_DIRECTORY
    with open(file, mode, encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as opened:
        opened.write(f"# yaml-language-server: $schema={STATE_DIRECTORY}/{SCHEMA_FILE}\n{as_yaml(settings)}")
    state.mkdir(mode=0o700, exist_ok=True)
    (state / SCHEMA_FILE).write_bytes(msgspec.json.encode(settings_schema()))


def as_yaml(settings: dict[str, Any]) -> str:
    """Return the settings as the text of a file."""
    return "".join(
        yaml.safe_dump(
            {name: value}, sort_keys=False, default_flow_style=None, width=1000, allow_unicode=True
        )
        for name, value in settings.items()
    )
