"""TLS certificates of a listener, read again for new connections when their files change.

Established connections keep the old certificate. The files are checked every few seconds, and at a reload. If a new
pair cannot be used (it may be half written), the old pair stays in force.
"""

import asyncio
import logging
import os
import ssl
from collections.abc import Mapping
from typing import Any

from gateway.runtime.certificate_expiry import expires_at
from gateway.settings.listeners import ListenerTlsSettings
from gateway.settings.types import SettingsProblem
from gateway.telemetry.metric_families import GaugeFamily

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0


class ListenerContext(ssl.SSLContext):
    """The TLS context of a listener, which begins each connection in the newest context of the files.

    A context that has loaded a certificate authority for clients cannot unload it, and resumes the sessions that it
    began. So new files get a new context, while a listener keeps the one with which it was opened.
    """

    newest: ssl.SSLContext

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Begin the TLS of one connection; the event loop calls this."""
        return self.newest.wrap_bio(*args, **options)


class ServerTls:
    """The TLS context of one listener, which is the same object for the listener's whole life.

    The constructor raises SettingsProblem that names `path` if the certificate cannot be used.
    """

    def __init__(self, tls: ListenerTlsSettings, path: str) -> None:
        self._tls = tls
        self._seen = self._file_stamps()
        self.context = ListenerContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            self.context.newest = _new_context(tls)
        except (OSError, ValueError) as err:
            raise SettingsProblem(f"{path}: the certificate cannot be used: {_reason(err)}") from err

    def renew(self) -> bool:
        """Load the certificate again if its files have changed, and return whether a new one is in force."""
        stamps = self._file_stamps()
        if stamps == self._seen:
            return False
        self._seen = stamps
        try:
            self.context.newest = _new_context(self._tls)
        except (OSError, ValueError) as err:
            log.warning("the new certificate %s cannot be used: %s", self._tls.certificate, _reason(err))
            return False
        log.info("the certificate %s has changed and is in use", self._tls.certificate)
        return True

    def expires_at(self) -> float | None:
        """Return when the certificate of the file expires, in Unix time; None where it cannot be read."""
        return expires_at(self._tls.certificate)

    async def run(self) -> None:
        """Check the files every LOOK_SECONDS, until this coroutine is cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.renew()

    def _file_stamps(self) -> list[tuple[int, int] | None]:
        files = (self._tls.certificate, self._tls.key, self._tls.client_ca)
        return [_stamp(file) for file in files if file is not None]


def _new_context(tls: ListenerTlsSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    # A key that needs a passphrase is refused; without this OpenSSL would ask for it at the terminal.
    context.load_cert_chain(tls.certificate, tls.key, password=lambda: b"")
    if tls.client_ca is not None:
        context.load_verify_locations(cafile=tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


def _reason(err: Exception) -> str:
    return getattr(err, "reason", None) or getattr(err, "strerror", None) or str(err)


def certificate_family(certificates: Mapping[str, ServerTls]) -> GaugeFamily:
    """Return the metric of when the certificates of these listeners expire."""
    return GaugeFamily(
        name="radixgate_certificate_expiry_timestamp_seconds",
        text="Unix time at which the certificate of a listener expires.",
        labels=("listener",),
        read=lambda: [
            ((listener,), expires)
            for listener, tls in certificates.items()
            if (expires := tls.expires_at()) is not None
        ],
    )
