"""TLS in front of a server that speaks none: a proxy that terminates TLS with a self-signed certificate."""

import asyncio
import ssl
import subprocess
from pathlib import Path


def certificate(directory: Path) -> tuple[Path, Path]:
    """Make a self-signed certificate for 127.0.0.1 with openssl; return the files of certificate and key."""
    cert, key = directory / "cert.pem", directory / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += ["-days", "2", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


class TlsTerminator:
    """A proxy that terminates TLS: a TLS connection to its `port` reaches the server on 127.0.0.1 behind it.

    Use as `async with TlsTerminator(server_port, cert, key) as tls`.
    """

    def __init__(self, behind: int, cert: Path, key: Path) -> None:
        self.port = 0
        self.taken = 0  # connections accepted
        self._behind = behind
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(cert, key)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "TlsTerminator":
        self._server = await asyncio.start_server(self._through, "127.0.0.1", 0, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _through(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        self.taken += 1
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._behind)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, inner_writer))
                both.create_task(_pump(inner_reader, writer))
        except* (OSError, ssl.SSLError):
            pass
        finally:
            self._open.discard(task)
            writer.transport.abort()
            inner_writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    raise ConnectionResetError
