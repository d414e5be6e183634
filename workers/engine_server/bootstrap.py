"""Reads SGLang's three bootstrap fields, which connect the prefill and the decode of one prompt.

    bootstrap_host, bootstrap_port    the prefill worker's address for handoffs; a port of null is 8998
    bootstrap_room                    an unguessable number, 0 to 2^63 - 1: knowing it is the right to the blocks

The requests to both workers carry the same values. Each field is one value, or a list with one value for each
choice of the request. A gateway sets the fields. It must not pass on what a client sent under these names, because
a decode worker connects to whatever address they name.
"""

from typing import Any

from workers.engine.request import Bootstrap
from workers.engine_server.errors import bad_request
from workers.engine_server.requests import GenerationBody

PORT_DEFAULT = 8998
ROOM_MAX = 2**63 - 1


def bootstraps(body: GenerationBody, choices: int) -> list[Bootstrap | None]:
    """Return the bootstrap of each choice; None for a choice that one worker computes alone."""
    if body.bootstrap_room is None:
        return [None] * choices
    hosts = _per_choice(body.bootstrap_host, choices, "bootstrap_host")
    ports = _per_choice(body.bootstrap_port, choices, "bootstrap_port")
    rooms = _per_choice(body.bootstrap_room, choices, "bootstrap_room")
    if len(set(rooms)) < choices:
        raise bad_request("Every choice needs a bootstrap_room of its own.", param="bootstrap_room")
    return [_bootstrap(host, port, room) for host, port, room in zip(hosts, ports, rooms, strict=True)]


def _per_choice(value: Any, choices: int, name: str) -> list[Any]:
    values = value if isinstance(value, list) else [value] * choices
    if len(values) != choices:
        raise bad_request(f"{name} has {len(values)} values for {choices} choices.", param=name)
    return values


def _bootstrap(host: str | None, port: int | None, room: int | None) -> Bootstrap:
    if not host:
        raise bad_request("A bootstrap_room needs a bootstrap_host.", param="bootstrap_host")
    if port is not None and not 1 <= port <= 65535:
        raise bad_request("bootstrap_port must be between 1 and 65535.", param="bootstrap_port")
    if room is None or not 0 <= room <= ROOM_MAX:
        raise bad_request(f"bootstrap_room must be between 0 and {ROOM_MAX}.", param="bootstrap_room")
    return Bootstrap(host=host, port=PORT_DEFAULT if port is None else port, room=room)
