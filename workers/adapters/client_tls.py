"""TLS to a worker: the authorities that verify its certificate, and the gateway's own certificate.

Changed files are read again.
"""

import logging
import os
import ssl

from workers.adapter import TlsFiles

log = logging.getLogger(__name__)


class ClientTls:
    """The TLS context for connections to a worker.

    Only the constructor raises OSError (including ssl.SSLError), for unusable files.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._seen = self._state()
        self._context = _made(files)

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection; the old one stays in force if changed files cannot be read."""
        state = self._state()
        if state != self._seen:
            self._seen = state
            try:
                self._context = _made(self._files)
            except OSError as err:
                log.warning(
                    "the changed TLS files for a worker cannot be read, so the old ones stay in use: %s",
                    err,
                )
        return self._context

    def _state(self) -> list[tuple[int, int] | None]:
        return [_stamp(path) for path in (self._files.ca, self._files.certificate, self._files.key) if path]


def _made(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files.ca)
    if files.certificate is not None:
        # Refuses a key with a passphrase, for which OpenSSL would otherwise prompt at the terminal.
        context.load_cert_chain(files.certificate, files.key, password=lambda: b"")
    return context


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        state = os.stat(path)
    except OSError:
        return None
    return state.st_mtime_ns, state.st_ino
