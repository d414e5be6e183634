"""Chooses the ports on which a launched engine publishes: KV events, their replay and the load feed.

Each has one port for each data-parallel rank. With N ranks and the first port P:

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
class PublishedPorts:
    """The chosen ports, each that of rank 0; the fields mean the same as those of the launch."""

    events_port: int
    """0: the engine chooses."""

    replay_port: int
    """0: the engine chooses."""

    events_at: str | None
    """Address to publish KV events on; None: all addresses."""

    loads_port: int | None
    """None: no load feed."""


def choose_ports(
    engine: str, host: str, port: int, *, ranks: int, load_feed: bool | None, can: EngineAbilities
) -> PublishedPorts:
    """Choose the ports and the address for KV events, their replay and the load feed.

    KV events contain the tokens of prompts, so they are published only on the address at which the engine serves.
    A load feed contains numbers only, and an engine can publish it only on all addresses: by default there is none
    where the engine serves this machine only.

    Args:
        engine: `sglang` or `vllm`.
        host: address at which the engine serves HTTP.
        port: first port; 0 takes free ports.
        ranks: number of data-parallel ranks.
        load_feed: whether to publish a load feed; None: unless `host` is a loopback address.
        can: what the installed version of the engine can do.
    """
    address = publishing_address(host)
    engine_chooses = engine == "vllm" and port == 0 and address is not None and can.binds
    first = port or free_ports("", 3 * ranks)
    if address is not None and (not can.binds or (engine == "vllm" and not engine_chooses)):
        log.warning(
            "the engine publishes KV events on all addresses, not on %s alone: see --kv-events-port", host
        )
        address = None
    feed_wanted = load_feed if load_feed is not None else not is_loopback(host)
    return PublishedPorts(
        events_port=0 if engine_chooses else first,
        replay_port=0 if engine_chooses else first + ranks,
        events_at=address,
        loads_port=first + 2 * ranks if feed_wanted and can.load_feed else None,
    )


def publishing_address(host: str) -> str | None:
    """Return the IPv4 address that ZMQ can listen on where HTTP is served at `host`; None for all addresses."""
    try:
        address = ipaddress.ip_address(_resolved(host))
    except (OSError, ValueError):
        return None
    if address.version == 6:
        # Engines publish on IPv4 only, and a client that reaches this machine at ::1 also reaches 127.0.0.1.
        return "127.0.0.1" if address.is_loopback else None
    return None if address.is_unspecified else str(address)


def is_loopback(host: str) -> bool:
    """Return whether a server that listens at this host can be reached from this machine only."""
    try:
        return ipaddress.ip_address(_resolved(host)).is_loopback
    except (OSError, ValueError):
        return False


def _resolved(host: str) -> str:
    """Return an address of the host, IPv4 if there is one. Raises OSError for an unknown name."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    addresses = [str(address[0]) for *_, address in found]
    return next((one for one in addresses if ":" not in one), addresses[0])
