"""Types of setting values, with their bounds and the descriptions that error messages use."""

import re
from datetime import UTC, date, datetime, timedelta
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Annotated

import msgspec
from msgspec import Meta


def form(description: str) -> dict[str, str]:
    """Return the `extra` of a Meta that describes accepted values in error messages; see error_messages.py."""
    return {"form": description}


# Patterns end with \Z: `$` accepts a final newline, and `acme` and `acme\n` would be two tenants that look alike.
Host = Annotated[str, Meta(min_length=1)]
Name = Annotated[
    str,
    Meta(
        pattern=r"^[^\x00-\x1f\x7f]{1,200}\Z",
        extra=form("text of 1 to 200 characters, none of which is a control character"),
    ),
]
IDENTIFIER = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
Identifier = Annotated[
    str,
    Meta(
        pattern=IDENTIFIER.pattern,
        extra=form("1 to 64 letters, digits, `.`, `_` and `-`, beginning with a letter or digit"),
    ),
]
HttpUrl = Annotated[
    str,
    Meta(
        pattern=r"^https?://[^/?#\s]+(/[^?#\s]*)?\Z",
        extra=form("an http:// or https:// address without query, such as http://host:8000"),
    ),
]
Origin = Annotated[
    str,
    Meta(
        pattern=r"^(\*|[a-z][a-z0-9+.-]*://[^/?#\sA-Z]+)\Z",
        extra=form(
            "`*`, or the origin of a page in lower case and without a path, such as https://chat.example.com"
        ),
    ),
]
ZmqUrl = Annotated[
    str,
    Meta(
        pattern=r"^(tcp://[^/\s]+:[0-9]{1,5}|ipc://\S+)\Z",
        extra=form("a ZMQ address, such as tcp://host:5557 or ipc:///path"),
    ),
]
FilePath = Annotated[str, Meta(pattern=r"^[^\x00\r\n]+\Z", extra=form("a path"))]
KeyHash = Annotated[
    str,
    Meta(
        pattern=r"^(hmac-sha256|sha256):[0-9a-f]{64}\Z",
        extra=form(
            "`hmac-sha256:` and 64 hex digits, as `radixgate keys new` and `keys hash` print it, or `sha256:` and "
            "the SHA-256 of a key from elsewhere"
        ),
    ),
]
RedisUrl = Annotated[
    str,
    Meta(
        pattern=r"^(embedded\Z|rediss?(\+cluster|\+sentinel)?://|unix://)",
        extra=form(
            "`embedded`, or an address redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://"
        ),
    ),
]
DatabaseUrl = Annotated[
    str,
    Meta(
        pattern=r"^(none\Z|sqlite:///|postgres(ql)?://)",
        extra=form("`none`, or an address sqlite:///FILE or postgresql://user:password@host:5432/name"),
    ),
]
Port = Annotated[int, Meta(ge=0, le=65535, extra=form("a port, 0 to 65535"))]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
"""A positive whole number, up to the largest that Redis and JavaScript represent exactly."""

NotNegativeCount = Annotated[int, Meta(ge=0, le=2**53)]
Seconds = Annotated[float, Meta(gt=0, le=1e9)]
NotNegativeSeconds = Annotated[float, Meta(ge=0, le=1e9)]
Ratio = Annotated[float, Meta(ge=0, le=1)]
NotNegative = Annotated[float, Meta(ge=0, le=1e9)]
Weight = Annotated[float, Meta(ge=1e-6, le=1e6)]
Money = Annotated[float, Meta(ge=0, le=1e9)]
"""An amount of money in any one currency; counted in millionths."""


class SettingsProblem(ValueError):
    """An error in the settings, in one line: the path of the setting (`$.workers[0].kind`) and what is wrong."""


class Secret:
    """A secret text that is masked in repr, logs and `explain-config`."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the secret text."""
        return self._text

    def __repr__(self) -> str:
        return "****"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


class Branch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base class of all structs of the settings tree, which refuses unknown names."""


class Moment:
    """An end in time: a moment, or a day, which ends at midnight UTC.

    Attributes:
        seconds: Unix time of the end.
        text: the moment or the day, as it was written.

    Raises:
        ValueError: the text is neither a moment nor a day.
    """

    __slots__ = ("seconds", "text")

    _FORM = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d))?")

    def __init__(self, text: object) -> None:
        try:
            if not isinstance(text, str) or not self._FORM.fullmatch(text):
                raise ValueError
            if len(text) == len("2027-01-31"):
                end = datetime.combine(date.fromisoformat(text) + timedelta(days=1), datetime.min.time(), UTC)
            else:
                end = datetime.fromisoformat(text)
            self.seconds = end.timestamp()
        except (ValueError, OverflowError):
            raise ValueError("expected a day or a time, such as 2027-01-31 or 2027-01-31T18:00:00Z") from None
        self.text = text

    @classmethod
    def at(cls, seconds: float) -> "Moment":
        """Return the moment at a Unix time in seconds, rounded to milliseconds."""
        return cls(datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds"))

    def __repr__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Moment) and other.seconds == self.seconds

    def __hash__(self) -> int:
        return hash(self.seconds)


Address = IPv4Address | IPv6Address


class Network:
    """A range of IP addresses, such as 10.0.0.0/8 or 2001:db8::/32, or a single address.

    Raises:
        ValueError: the text is not a range of addresses.
    """

    __slots__ = ("range", "text")

    def __init__(self, text: object) -> None:
        try:
            if not isinstance(text, str):
                raise ValueError
            self.range: IPv4Network | IPv6Network = ip_network(text, strict=False)
        except ValueError:
            raise ValueError("expected a range of addresses, such as 10.0.0.0/8 or 2001:db8::/32") from None
        self.text = text

    def __contains__(self, address: Address) -> bool:
        return address in self.range

    def __repr__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Network) and other.range == self.range

    def __hash__(self) -> int:
        return hash(self.range)


def address_of(text: str) -> Address | None:
    """Parse an address of a socket or a proxy; None for other text. IPv4 mapped into IPv6 becomes IPv4."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


class MediaHost:
    """A host from which media may be fetched, such as `cdn.example.com`, `*.example.com` or `10.0.0.7:9000`.

    Without a port, the default ports of http and https are allowed.

    Raises:
        ValueError: the text is not a host.
    """

    __slots__ = ("host", "port", "text")

    _FORM = re.compile(r"((\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
    _DEFAULT_PORTS = (80, 443)

    def __init__(self, text: object) -> None:
        if not isinstance(text, str) or not self._FORM.fullmatch(text):
            raise ValueError("expected a host, such as cdn.example.com, *.example.com or 10.0.0.7:9000")
        host, colon, port = text.rpartition(":") if text.rpartition(":")[2].isdigit() else (text, "", "")
        self.host = host.strip("[]").lower()
        self.port = int(port) if colon else None
        self.text = text

    def covers(self, host: str, port: int) -> bool:
        """Return whether media may be fetched from this host and port."""
        if port not in (self._DEFAULT_PORTS if self.port is None else (self.port,)):
            return False
        name = host.lower().rstrip(".")
        return name.endswith(self.host[1:]) if self.host.startswith("*.") else name == self.host

    def __repr__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MediaHost) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)
