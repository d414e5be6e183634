"""Where a launched engine publishes: KV events, their replay and its load, one port for each rank of each.

events   P     ... P + N - 1      replay   P + N ... P + 2N - 1      load   P + 2N ... P + 3N - 1
"""

import ipaddress
import logging
import socket
from dataclasses import dataclass

from gateway.cli.support.free_ports import free_ports
from workers.probing.installed_engine import EngineAbilities

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """As in workers.launching.launch.Launch."""

    events_port: int
    replay_port: int
    events_at: str | None
    loads_port: int | None


def published(
    engine: str, host: str, port: int, *, ranks: int, load_feed: bool | None, can: EngineAbilities
) -> Published:
    """`host`: where the engine serves; `port`: the first one, 0: free ones. None: see below.

    Events hold the tokens of prompts: they go to the address at which the engine serves. A load feed has numbers
    alone, and there is none but on all addresses: it is left out where the engine serves this machine only.
    """
    at = address_of(host)
    chooses = engine == "vllm" and port == 0 and at is not None and can.binds
    first = port or free_ports("", 3 * ranks)
    if at is not None and (not can.binds or (engine == "vllm" and not chooses)):
        log.warning("KV events are published on all addresses, not on %s alone: see --kv-events-port", host)
        at = None
    wanted = load_feed if load_feed is not None else not is_loopback(host)
    return Published(
        events_port=0 if chooses else first,
        replay_port=0 if chooses else first + ranks,
        events_at=at,
        loads_port=first + 2 * ranks if wanted and can.load_feed else None,
    )


def address_of(host: str) -> str | None:
    """The IPv4 address that ZMQ can listen on for what HTTP serves at `host`; None: all."""
    try:
        address = ipaddress.ip_address(_resolved(host))
    except (OSError, ValueError):
        return None
    if address.version == 6:
        # Engines publish on IPv4 alone: whoever reaches this machine at ::1 reaches it there, too.
        return "127.0.0.1" if address.is_loopback else None
    return None if address.is_unspecified else str(address)


def is_loopback(host: str) -> bool:
    """Does who listens there serve this machine alone?"""
    try:
        return ipaddress.ip_address(_resolved(host)).is_loopback
    except (OSError, ValueError):
        return False


def _resolved(host: str) -> str:
    """Raises OSError for a name that nobody knows."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    addresses = [str(address[0]) for *_, address in found]
    return next((one for one in addresses if ":" not in one), addresses[0])
