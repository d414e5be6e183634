"""An encrypted file with the tenants and keys last read from the database, for a start while the database is away.

    nonce (12) | contents, encrypted and authenticated with AES-256-GCM (NIST SP 800-38D)

The key is derived from the deployment secret. The file contains hashes of API keys, never an API key. It is
encrypted because it names tenants and their limits, and authenticated so that these cannot be changed. It contains
the time at which the database was last read, so that an old copy cannot pass for a new one.
"""

import hmac
import os
import secrets
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gateway.settings.tenants import ApiKeySettings, OrganisationSettings, PlanSettings, TenantSettings
from gateway.settings.types import Moment, Network

NONCE_BYTES = 12
KEYS_MAX = 100_000
"""The most keys that are kept; rewriting more each time would cost more than it is worth."""


class KnownKey(msgspec.Struct, frozen=True):
    """A key, and the tenant that it belongs to."""

    tenant: str
    key: ApiKeySettings


class KnownTenants(msgspec.Struct, frozen=True, kw_only=True):
    """The tenants and keys read from the database."""

    read_at: float
    """When they were read, in Unix time."""
    organisations: tuple[OrganisationSettings, ...] = ()
    plans: tuple[PlanSettings, ...] = ()
    tenants: tuple[TenantSettings, ...] = ()
    keys: tuple[KnownKey, ...] = ()


class SealedTenantStore:
    """The file with the last known tenants."""

    def __init__(self, file: Path, secret: bytes) -> None:
        """Derive the file's key from `secret`, the deployment secret."""
        self._file = file
        self._cipher = AESGCM(hmac.digest(secret, b"radixgate sealed tenants", "sha256"))

    def write(self, known: KnownTenants) -> None:
        """Replace the file's contents. Raises OSError."""
        nonce, text = secrets.token_bytes(NONCE_BYTES), msgspec.json.encode(known, enc_hook=_text)
        sealed = self._cipher.encrypt(nonce, text, None)
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._file.with_name(f"{self._file.name}.{os.getpid()}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as new:
            new.write(nonce + sealed)
        draft.rename(self._file)

    def read(self) -> KnownTenants | None:
        """Return the contents; None if the file does not exist or does not belong to this deployment."""
        try:
            found = self._file.read_bytes()
        except OSError:
            return None
        try:
            text = self._cipher.decrypt(found[:NONCE_BYTES], found[NONCE_BYTES:], None)
            return msgspec.json.decode(text, type=KnownTenants, dec_hook=lambda kind, given: kind(given))
        except (InvalidTag, ValueError):
            return None  # The file was changed, or another deployment or version wrote it.


def _text(value: object) -> str:
    if isinstance(value, Moment | Network):
        return value.text
    raise NotImplementedError(f"{type(value).__name__} is no setting of a tenant")
