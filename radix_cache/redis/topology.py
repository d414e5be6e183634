"""The topology of a Redis Cluster: slots of keys, redirects, and ranges of slots. Nothing here does I/O."""

from binascii import crc_hqx
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple

from radix_cache.redis.connection import RedisAddress

SLOTS = 16384
SCHEMES = {"redis+cluster": "redis", "rediss+cluster": "rediss"}


class ServerEndpoint(NamedTuple):
    """The host and port of a server of a cluster."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class SlotRedirect:
    """A server's reply that a slot is on another server."""

    slot: int
    endpoint: ServerEndpoint
    asking: bool
    """True: redirects this one call (ASK). False: redirects all calls of the slot from now on (MOVED)."""


def slot_of(key: str | bytes) -> int:
    """Return the slot of a key: the CRC16 of its hash tag, or of the whole key if it has none."""
    text = key.encode() if isinstance(key, str) else key
    start = text.find(b"{")
    end = text.find(b"}", start + 1)
    if 0 <= start < end - 1:
        text = text[start + 1 : end]
    return crc_hqx(text, 0) % SLOTS


@lru_cache(maxsize=64)
def spread_tags(names: tuple[str, ...], first: int = 0) -> tuple[str, ...]:
    """Return a hash tag for each name, so that the tags divide the cluster's slots evenly.

    All slots are cut into as many equal parts as there are names, and each tag's slot is in a part of its own. A
    name that is in its part already is its own tag. `first` is the part of the first name.
    """
    parts = len(names)
    return tuple(_tag_within(name, (first + at) % parts, parts) for at, name in enumerate(names))


def _tag_within(name: str, part: int, parts: int) -> str:
    slots = range(SLOTS * part // parts, SLOTS * (part + 1) // parts)
    if slot_of(name) in slots:
        return name
    return next(tag for tag in (f"{name}.{number}" for number in count()) if slot_of(tag) in slots)


def is_cluster(url: str) -> bool:
    """Return whether the URL names a cluster."""
    return url.partition("://")[0] in SCHEMES


def server_urls(url: str) -> list[str]:
    """Return a URL for each server of redis+cluster://[user:password@]host:port[,host:port...][?options].

    Raises ValueError if a host is missing.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        raise ValueError(f"{scheme}:// is not the scheme of a cluster")
    ends = [at for at in map(rest.find, "/?") if at >= 0]
    where, tail = (rest[: min(ends)], rest[min(ends) :]) if ends else (rest, "")
    user, at, hosts = where.rpartition("@")
    found = []
    for host in hosts.split(","):
        if not host or host.startswith(":"):
            raise ValueError("a cluster's address names its servers: redis+cluster://host:port,host:port")
        found.append(f"{SCHEMES[scheme]}://{user}{at}{host}{tail}")
    return found


def seed_addresses(url: str) -> list[RedisAddress]:
    """Return the addresses of the servers in a cluster's URL. Raises ValueError."""
    return [RedisAddress(server) for server in server_urls(url)]


def slot_ranges(reply: Any, host: str) -> list[tuple[int, int, ServerEndpoint]]:
    """Return first slot, last slot and primary of every range in a reply to CLUSTER SLOTS.

    `host` is the server that replied, for servers that do not know their own name and leave it out.
    """
    found = []
    for first, last, primary, *_ in reply if isinstance(reply, list) else ():
        name = (primary[0] or b"").decode()
        if name != "?" and primary[1]:
            found.append((first, last, ServerEndpoint(name or host, primary[1])))
    return found


def parse_redirect(error: str, host: str) -> SlotRedirect | None:
    """Parse `MOVED 3999 127.0.0.1:6381` or `ASK ...` of the server `host`; None for any other error."""
    words: Sequence[str] = error.split()
    if len(words) < 3 or words[0] not in ("MOVED", "ASK"):
        return None
    name, _, port = words[2].rpartition(":")
    if not (words[1].isdecimal() and port.isdecimal()) or name == "?":
        return None
    return SlotRedirect(int(words[1]) % SLOTS, ServerEndpoint(name or host, int(port)), words[0] == "ASK")
