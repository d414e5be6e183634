"""What the scripts of all Python clients share: their settings and their results."""

import json
import os
from collections.abc import Callable
from typing import Any

BASE_URL = os.environ["RADIXGATE_URL"] + "/v1"
API_KEY = os.environ["RADIXGATE_API_KEY"]
SPENT_KEY = os.environ["RADIXGATE_SPENT_KEY"]
MODEL = "m"
USE_ADD = 'use add {"a": 2, "b": 3}'
TOO_LONG = "word " * 40_000
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
results: dict[str, Any] = {}


def status_of(call: Callable[[], object]) -> int | None:
    """Return the HTTP status of the error that a call raises; None if it raises none, or one without a status."""
    try:
        call()
    except Exception as err:
        return status_in(err)
    return None


def status_in(err: BaseException | None) -> int | None:
    """Return the HTTP status of an error, or of the error that caused it."""
    while err is not None:
        status = getattr(err, "status_code", None)
        if isinstance(status, int):
            return status
        err = err.__cause__ or err.__context__
    return None


def text_of(call: Callable[[], object]) -> str:
    """Return the text of the error that a call raises, with its causes."""
    try:
        call()
    except Exception as err:
        return f"{err} {err.__cause__ or err.__context__ or ''}"
    return ""


def print_results() -> None:
    """Print the results as JSON on the last line."""
    print(json.dumps(results))
