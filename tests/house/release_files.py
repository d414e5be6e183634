"""Writes the files of a release that other programs read: `python -m tests.house.release_files DIRECTORY`."""

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from gateway.adminapi.openapi import admin_api_document
from gateway.adminapi.routes import all_operations
from gateway.settings.json_schema import FILE_NAME, settings_schema
from gateway.web.openapi.document import tenant_api_document


def release_files() -> dict[str, Any]:
    """Return the content of each file."""
    this_version = version("radixgate")
    described: Any = MagicMock()  # operations are described here, never called
    return {
        "openapi-client.json": tenant_api_document(this_version),
        "openapi-admin.json": admin_api_document(all_operations(described), this_version),
        FILE_NAME: settings_schema(),
    }


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in release_files().items():
        (directory / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        print(directory / name)
