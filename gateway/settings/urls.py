"""Checks of HTTP addresses before a connection is made."""

import re
from ipaddress import ip_address
from urllib.parse import urlsplit

HOST_NAME = re.compile(r"(?=.{1,253}\.?$)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")


def url_problem(url: str) -> str | None:
    """Return why no connection to this HttpUrl is possible; None if the address is valid."""
    if not (url.isascii() and url.isprintable()):
        return "expected printable ASCII characters (write a host as xn--..., a path as %..)"
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        if "[" in parts.netloc:
            ip_address(host)
    except ValueError:
        return "expected an IPv6 address in brackets, as in http://[::1]:8000"
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        return "the port must be a number from 1 to 65535"
    if "[" not in parts.netloc and not HOST_NAME.fullmatch(host):
        return f"{host!r} is not a host name"
    return None


def credentials_problem(url: str) -> str | None:
    """Return why an address must not contain a user or a password; None if it contains neither.

    Addresses of workers are shown in logs, reports and on the dashboard.
    """
    if "@" not in urlsplit(url).netloc:
        return None
    return "an address has no user and no password; use `api_key` or `headers`"
