"""Certificates of a listener: read again when their files change, for new connections; those that stand stay.

The files are looked at every few seconds, and at a reload. A pair that cannot be used, as one that is half written,
is tried on a context of its own first: the old one stays in force.
"""

import asyncio
import logging
import os
import ssl

from gateway.settings.listeners import ListenerTlsSettings
from gateway.settings.types import SettingsProblem

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0


class ServerTls:
    """`context` is the listener's for all its life. Raises SettingsProblem that names `path`."""

    def __init__(self, tls: ListenerTlsSettings, path: str) -> None:
        self._tls = tls
        self._seen = self._state()
        try:
            self.context = _made(tls)
        except (OSError, ValueError) as err:
            raise SettingsProblem(f"{path}: the certificate cannot be used: {_reason(err)}") from err

    def renew(self) -> bool:
        """Takes what has changed. Was there anything?"""
        state = self._state()
        if state == self._seen:
            return False
        self._seen = state
        try:
            _made(self._tls)
            _load(self.context, self._tls)
        except (OSError, ValueError) as err:
            log.warning("the certificate %s cannot be read again: %s", self._tls.certificate, _reason(err))
            return False
        log.info("the certificate %s has been read again", self._tls.certificate)
        return True

    async def run(self) -> None:
        """Looks again and again."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.renew()

    def _state(self) -> list[tuple[int, int] | None]:
        files = (self._tls.certificate, self._tls.key, self._tls.client_ca)
        return [_stamp(file) for file in files if file is not None]


def _made(tls: ListenerTlsSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _load(context, tls)
    return context


def _load(context: ssl.SSLContext, tls: ListenerTlsSettings) -> None:
    # A key that needs a passphrase is refused; without this OpenSSL would ask for it at the terminal.
    context.load_cert_chain(tls.certificate, tls.key, password=lambda: b"")
    if tls.client_ca is not None:
        context.load_verify_locations(cafile=tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        state = os.stat(path)
    except OSError:
        return None
    return state.st_mtime_ns, state.st_ino


def _reason(err: Exception) -> str:
    return getattr(err, "reason", None) or getattr(err, "strerror", None) or str(err)
