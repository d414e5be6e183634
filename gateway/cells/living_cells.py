"""The cells that are alive: each gateway has a lease in the Redis that all cells share, and reads all leases there.

    gateway --once a second: its cell, its URL, a lease--> Redis --the gateways of all living cells--> gateway

No request waits for Redis to read this list. A cell is alive while one of its gateways has a lease; a gateway that
drains gives its lease back. While that Redis is away, the last list holds; once it is back, the cells of that list
have time to renew their leases.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec

from policies.cell_ownership import owner_of
from radix_cache.redis.call import CommandArgument, RedisDown, Script
from radix_cache.redis.scripts import ScriptCaller

log = logging.getLogger(__name__)

RENEW_SECONDS_MAX = 1.0
GATEWAYS_MAX = 4096
ANSWER_MS = 250
"""How long gateways get the same list of the living: a renewal does not read the leases of all the others."""

OWNERS_MAX = 10_000
"""The most organisations in the cache of owners."""

_RENEW = Script.from_text(
    """#!lua
-- KEYS: hash: gateway -> its cell, its URL, the end of its lease in ms; the last answer.
-- ARGV: gateway, cell, URL, lease in ms (0: the gateway leaves), the most gateways there may be, how long an answer
--       holds in ms, unless a gateway joins or leaves.
-- Returns the cells and URLs of all gateways that are alive, each pair once, as MessagePack.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local changes = 0
if ARGV[4] == '0' then
  changes = redis.call('HDEL', KEYS[1], ARGV[1])
elseif redis.call('HLEN', KEYS[1]) < tonumber(ARGV[5]) or redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
  changes = redis.call('HSET', KEYS[1], ARGV[1], cmsgpack.pack({ARGV[2], ARGV[3], now + ARGV[4]}))
end
local answer = changes == 0 and redis.call('GET', KEYS[2])
if answer then
  return answer
end
local alive, seen, all = {}, {}, redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local cell, url, deadline = unpack(cmsgpack.unpack(all[i + 1]))
  if deadline < now then
    redis.call('HDEL', KEYS[1], all[i])
  elseif not seen[cell .. ' ' .. url] then
    seen[cell .. ' ' .. url] = true
    alive[#alive + 1] = {cell, url}
  end
end
answer = cmsgpack.pack(alive)
redis.call('SET', KEYS[2], answer, 'PX', ARGV[6])
return answer
"""
)

_decoder = msgspec.msgpack.Decoder(list[tuple[str, str]])


class LivingCells:
    """This gateway's lease among the gateways of all cells, and the cells that are alive."""

    def __init__(
        self,
        scripts: ScriptCaller,
        *,
        prefix: str,
        cell: str,
        url: str,
        lease_seconds: float,
        serves: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the lease of a gateway that has not joined.

        Args:
            scripts: The Redis that all cells share.
            prefix: Beginning of all keys there.
            cell: Name of this gateway's cell.
            url: Where other cells reach this gateway.
            lease_seconds: How long this gateway counts as alive after its last renewal.
            serves: Whether this gateway takes requests of other cells; False while it drains.
            clock: Returns seconds and never goes backwards.
        """
        self.cell = cell
        self.cells: Mapping[str, Sequence[str]] = {}
        """The URLs of the gateways that are alive, by cell."""
        self.up = False
        """Whether Redis answered last."""
        self._scripts = scripts
        self._keys = [f"{prefix}:{{cells}}:gateways", f"{prefix}:{{cells}}:alive"]
        self._url = url.rstrip("/")
        self._lease_seconds = lease_seconds
        self._serves = serves
        self._gateway = secrets.token_hex(8)
        self._clock = clock
        self._owners: dict[str, str] = {}
        self._kept: Mapping[str, Sequence[str]] = {}
        """The cells that were alive when Redis went away."""
        self._kept_until = float("-inf")

    def owner_of(self, organisation: str) -> str:
        """Return the cell that an organisation belongs to, of those that are alive and this gateway's own."""
        owner = self._owners.get(organisation)
        if owner is None:
            if len(self._owners) >= OWNERS_MAX:
                self._owners.clear()
            owner = owner_of(organisation, {*self.cells, self.cell})
            assert owner is not None
            self._owners[organisation] = owner
        return owner

    async def run(self) -> None:
        """Renew the lease and read all leases, once a period, until cancelled."""
        pause = min(RENEW_SECONDS_MAX, self._lease_seconds / 3)
        while True:
            await self.renew()
            await asyncio.sleep(pause)

    async def renew(self) -> None:
        """Renew the lease, or give it back if this gateway does not serve, and read all leases."""
        try:
            answer = await self._call(round(1000 * self._lease_seconds) if self._serves() else 0)
        except RedisDown as err:
            if self.up:
                log.warning("the list of cells cannot be read, the last one holds: %s", err)
            self.up = False
            return
        if not self.up and self.cells:
            self._kept = self.cells
            self._kept_until = self._clock() + self._lease_seconds
        self.up = True
        self._update(answer)

    async def read(self) -> None:
        """Read all leases without joining. Raises RedisDown."""
        self._update(await self._call(0))
        self.up = True

    async def try_to_read(self) -> None:
        """Read all leases without joining; where Redis does not answer, no cell is known."""
        with suppress(RedisDown):
            await self.read()

    async def close(self) -> None:
        """Give the lease back: other cells send nothing here any more."""
        with suppress(RedisDown, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._call(0)

    async def _call(self, lease_ms: int) -> Sequence[tuple[str, str]]:
        arguments: list[CommandArgument] = [self._gateway, self.cell, self._url, lease_ms, GATEWAYS_MAX]
        answer = await self._scripts.call(_RENEW, self._keys, [*arguments, ANSWER_MS])
        return _decoder.decode(answer) if isinstance(answer, bytes) else ()

    def _update(self, alive: Iterable[tuple[str, str]]) -> None:
        cells: dict[str, list[str]] = {}
        for cell, url in alive:
            cells.setdefault(cell, []).append(url)
        found: Mapping[str, Sequence[str]] = {cell: sorted(urls) for cell, urls in cells.items()}
        if self._clock() < self._kept_until:
            found = {**self._kept, **found}
        if found.keys() != self.cells.keys():
            _log_changes(self.cells, found)
            self._owners.clear()
        self.cells = found


def _log_changes(before: Collection[str], now: Collection[str]) -> None:
    for cell in sorted(set(now) - set(before)):
        log.info("cell %s is alive", cell)
    for cell in sorted(set(before) - set(now)):
        log.warning("cell %s is gone: its tenants belong to other cells", cell)
