"""Reading the JSON files of a checkpoint directory, with error messages that name the file and the key."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workers.engine.errors import CheckpointInvalid


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`; CheckpointInvalid when the file is missing, unreadable or no object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointInvalid(f"{path} does not exist") from None
    except (OSError, ValueError, RecursionError) as err:
        raise CheckpointInvalid(f"{path} cannot be read: {err}") from err
    if not isinstance(value, dict):
        raise CheckpointInvalid(f"{path} must hold a JSON object")
    return value


def read_json_if_present(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`, or an empty one when there is no such file."""
    return read_json(path) if path.exists() else {}


def integer(values: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return the positive integer under `name`; an absent or null one gives the default, if there is one."""
    value = values.get(name)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointInvalid(f"config.json: {name} must be a positive integer, not {value!r}")
    return value


def number(values: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """Return the positive number under `name`; an absent or null one gives the default, if there is one."""
    value = values.get(name)
    if value is None:
        value = default
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise CheckpointInvalid(f"config.json: {name} must be a positive number, not {value!r}")
    return float(value)


def boolean(values: Mapping[str, Any], name: str) -> bool:
    """Return the truth value under `name`; an absent or null one is False. Text such as "false" is refused."""
    value = values.get(name)
    if value is not None and not isinstance(value, bool):
        raise CheckpointInvalid(f"config.json: {name} must be true or false, not {value!r}")
    return bool(value)


def inner_object(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a copy of the object under `name`; an absent or null one is empty."""
    value = values.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise CheckpointInvalid(f"config.json: {name} must be an object, not {value!r}")
    return dict(value or {})
