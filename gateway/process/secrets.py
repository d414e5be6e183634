"""The deployment secret: taken from the settings, else made once and kept in the state directory."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from gateway.settings.tree import Settings
from gateway.settings.types import SettingsProblem

FILE_NAME = "deployment.secret"


def deployment_secret(settings: Settings) -> bytes:
    """Return the secret from which keys, salts and hashes are derived, and make it if there is none.

    Raises SettingsProblem.
    """
    if settings.deployment_secret is not None:
        return settings.deployment_secret.reveal().encode()
    file = _file(settings)
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not file.exists():
            _make(file)
    except OSError as err:
        raise SettingsProblem(f"$.state_directory: {file} cannot be made: {err.strerror}") from err
    try:
        text = file.read_text(encoding="utf-8").strip()
    except OSError as err:
        raise SettingsProblem(f"$.state_directory: {file} cannot be read: {err.strerror}") from err
    if not text:
        raise SettingsProblem(f"$.state_directory: {file} is empty")
    return text.encode()


def secret_file(settings: Settings) -> Path | None:
    """Return the path of the file that holds the secret; None if the settings give it."""
    return _file(settings) if settings.deployment_secret is None else None


def _file(settings: Settings) -> Path:
    return Path(settings.state_directory) / FILE_NAME


def _make(file: Path) -> None:
    """Write a new secret.

    If several processes start together, the secret of one of them is kept; no reader gets half a secret.
    """
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as new:
        new.write(secrets.token_hex(32))
    with suppress(FileExistsError):
        os.link(draft, file)
    draft.unlink()
