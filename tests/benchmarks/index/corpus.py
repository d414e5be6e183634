"""Prompts like those of agents and chats: system prompts that many share, sessions that grow turn by turn.

    system prompt --+-- turn -- turn -- turn -- turn -- turn       a session, on one worker
                    |                     |
                    |                     +------ turn -- turn     a session resumed from an earlier turn
                    +-- turn -- turn ...

Hashes are drawn, not computed: chained hashes are as good as random. They are the same in every run and process.
This module needs nothing but Python, since environments of other projects import it too.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radix_cache.blocks import Hashes

SEED = 7
TURNS = 5
FORKED = 4
"""One of so many sessions resumes another session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The shape of a corpus, in blocks: of a whole session, and of the shortest and longest system prompt."""

    name: str
    blocks: int
    workers: int = 16
    spaces: int = 8
    session: int = 456
    system: tuple[int, int] = (32, 192)
    sessions_per_system: int = 60


@dataclass(frozen=True, slots=True)
class Session:
    """A session on one worker: after how many blocks each turn ended, and the number of its namespace."""

    hashes: "Hashes"
    turns: tuple[int, ...]
    worker: int
    space: int


def drawn(chance: Random, blocks: int) -> "Hashes":
    return array("Q", chance.randbytes(8 * blocks))


def corpus(shape: Shape) -> list[Session]:
    """Return sessions with about as many blocks as the shape has."""
    chance = Random(SEED)
    found: list[Session] = []
    blocks = number = 0
    while blocks < shape.blocks:
        system = drawn(chance, chance.randint(*shape.system))
        space, number = number % shape.spaces, number + 1
        blocks += len(system)
        first = len(found)
        while len(found) < first + shape.sessions_per_system and blocks < shape.blocks:
            above, at = system, len(system)
            if len(found) > first and len(found) % FORKED == 0:
                before = found[chance.randrange(first, len(found))]
                at = before.turns[chance.randrange(TURNS - 1)]
                above = before.hashes[:at]
            new = max(shape.session - at, TURNS)
            hashes = above + drawn(chance, new)
            turns = tuple(at + new * turn // TURNS for turn in range(1, TURNS + 1))
            found.append(Session(hashes, turns, chance.randrange(shape.workers), space))
            blocks += new
    return found


def prompts(sessions: list[Session], blocks: int, count: int) -> "list[Hashes]":
    """Return new prompts: three quarters continue a session, a quarter begins one below a known system prompt."""
    chance = Random(SEED + blocks)
    found = []
    for number in range(count):
        session = chance.choice(sessions)
        known = session.hashes[:blocks] if number % 4 else session.hashes[:32]
        found.append(known + drawn(chance, blocks - len(known)))
    return found


def holds(sessions: list[Session]) -> "Iterator[tuple[Session, Hashes]]":
    """Yield every turn in the order of arrival, with all that its worker holds then."""
    for session in sessions:
        for end in session.turns:
            yield session, session.hashes[:end]
