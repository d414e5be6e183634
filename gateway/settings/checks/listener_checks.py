"""Checks of the listeners: their addresses, certificates and tokens."""

from collections.abc import Iterator
from ipaddress import ip_address
from math import log2
from os import fsencode
from pathlib import Path

from gateway.settings.database_address import NONE, sqlite_file
from gateway.settings.listeners import is_loopback
from gateway.settings.tree import Settings

TOKEN_BITS_MIN = 128
"""The least strength of a token that a person chooses, in bits."""
TOKEN_DISTINCT_CHARACTERS_MIN = 8

SOCKET_PATH_BYTES_MAX = 103
"""The length that all operating systems accept: macOS 103, Linux 107."""


def listener_problems(settings: Settings) -> Iterator[str]:
    """Yield the errors in the addresses, certificates and tokens of the listeners."""
    listen, admin = settings.listen, settings.admin
    for name, token in (("token", admin.token), ("metrics_token", admin.metrics_token)):
        if token is not None and (problem := weak_token_problem(token.reveal())) is not None:
            yield f"$.admin.{name}: {problem}"
    picker = listen.endpoint_picker
    picker_tls = picker.tls if picker is not None else None
    for path, tls in (
        ("listen", listen.tls),
        ("admin", admin.tls),
        ("listen.endpoint_picker", picker_tls),
    ):
        for name in ("certificate", "key", "client_ca") if tls is not None else ():
            file = getattr(tls, name)
            if file is not None and not Path(file).is_file():
                yield f"$.{path}.tls.{name}: there is no file {file!r}"
    if listen.processes > 1 and listen.unix_socket is not None:
        yield "$.listen.processes: only one process can serve a unix socket"
    if listen.unix_socket is not None:
        if len(fsencode(listen.unix_socket)) > SOCKET_PATH_BYTES_MAX:
            yield f"$.listen.unix_socket: the path of a socket has at most {SOCKET_PATH_BYTES_MAX} bytes"
        return
    elsewhere = settings.tenant_objects is not None or _database_may_have_tenants(settings)
    if not settings.tenants and not is_loopback(listen.host) and not elsewhere:
        yield (
            "$.tenants: at least one tenant is needed unless listen.host is a loopback address "
            "(`radixgate tenants set NAME` and `radixgate keys create NAME`, with the same --config, make one)"
        )
    if listen.port == admin.port != 0 and _overlap(listen.host, admin.host):
        yield f"$.admin.port: {admin.port} is already the port of listen, at the same address"


def _database_may_have_tenants(settings: Settings) -> bool:
    """Return whether a database may have tenants: a SQLite file that does not exist has none."""
    url = settings.database.url
    if url == NONE:
        return False
    file = sqlite_file(url, Path(settings.state_directory))
    return file is None or file.exists()


def _overlap(one: str, other: str) -> bool:
    """Return whether listeners at these two addresses would conflict on one port."""
    if one == other or "localhost" in (one, other):
        return is_loopback(one) == is_loopback(other) or _is_any_address(one) or _is_any_address(other)
    try:
        first, second = ip_address(one), ip_address(other)
    except ValueError:
        return False
    return first.version == second.version and (
        first.is_unspecified or second.is_unspecified or first == second
    )


def _is_any_address(host: str) -> bool:
    return host in ("0.0.0.0", "::")  # noqa: S104  # nosec B104


def weak_token_problem(token: str) -> str | None:
    """Return why a token can be guessed; None if it is as strong as 128 random bits.

    Characters count as drawn at random from their alphabet, as in the output of `openssl rand -hex 16`.
    """
    bits = len(token) * log2(max(2, _alphabet_size(token)))
    if bits >= TOKEN_BITS_MIN and len(set(token)) >= TOKEN_DISTINCT_CHARACTERS_MIN:
        return None
    return "the token can be guessed: it needs 128 random bits (openssl rand -hex 16)"


def _alphabet_size(token: str) -> int:
    """Return the size of the smallest usual alphabet that has all characters of a token."""
    characters = set(token)
    if characters <= set("0123456789"):
        return 10
    if characters <= set("0123456789abcdef") or characters <= set("0123456789ABCDEF"):
        return 16
    size = 10 if characters & set("0123456789") else 0
    size += 26 if any("a" <= character <= "z" for character in characters) else 0
    size += 26 if any("A" <= character <= "Z" for character in characters) else 0
    return size + (2 if any(not character.isalnum() for character in characters) else 0)
