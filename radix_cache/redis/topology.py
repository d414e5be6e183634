"""Which server of a cluster has a key, and what the servers say when it is another one. Nothing here does I/O."""

from binascii import crc_hqx
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from radix_cache.redis.connection import RedisAddress

SLOTS = 16384
SCHEMES = {"redis+cluster": "redis", "rediss+cluster": "rediss"}


class ServerEndpoint(NamedTuple):
    """Where a server listens."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class SlotRedirect:
    """Another server has the slot: from now on, or (`asking`) for this one call."""

    slot: int
    place: ServerEndpoint
    asking: bool


def slot_of(key: str | bytes) -> int:
    """CRC16 of the hash tag, or of the whole key if it has none."""
    text = key.encode() if isinstance(key, str) else key
    start = text.find(b"{")
    end = text.find(b"}", start + 1)
    if 0 <= start < end - 1:
        text = text[start + 1 : end]
    return crc_hqx(text, 0) % SLOTS


def is_cluster(url: str) -> bool:
    return url.partition("://")[0] in SCHEMES


def server_urls(url: str) -> list[str]:
    """One address for each server in redis+cluster://[user:password@]host:port[,host:port...][?options].

    Raises ValueError where one is missing.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        raise ValueError(f"{scheme}:// is no address of a cluster")
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
    """The servers to ask first. Raises ValueError."""
    return [RedisAddress(server) for server in server_urls(url)]


def slot_ranges(reply: Any, host: str) -> list[tuple[int, int, ServerEndpoint]]:
    """First slot, last slot and primary of every range in a reply to CLUSTER SLOTS.

    `host`: who was asked; a server that does not know its own name leaves it out.
    """
    found = []
    for first, last, primary, *_ in reply if isinstance(reply, list) else ():
        name = (primary[0] or b"").decode()
        if name != "?" and primary[1]:
            found.append((first, last, ServerEndpoint(name or host, primary[1])))
    return found


def parse_redirect(error: str, host: str) -> SlotRedirect | None:
    """From `MOVED 3999 127.0.0.1:6381` or `ASK ...`; None for any other error. `host`: who said it."""
    words: Sequence[str] = error.split()
    if len(words) < 3 or words[0] not in ("MOVED", "ASK"):
        return None
    name, _, port = words[2].rpartition(":")
    if not (words[1].isdecimal() and port.isdecimal()) or name == "?":
        return None
    return SlotRedirect(int(words[1]) % SLOTS, ServerEndpoint(name or host, int(port)), words[0] == "ASK")
