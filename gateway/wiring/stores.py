"""The stores outside of a gateway's process: Redis, the database, the quotas of tenants, the cell."""

from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from gateway.process.drain_state import DrainState
from gateway.process.embedded_valkey import EmbeddedValkey
from gateway.settings.tree import Settings
from gateway.wiring.cells import CellParts
from gateway.wiring.quotas import QuotaParts
from gateway.wiring.records import Records
from radix_cache.redis.scripts import ScriptCaller


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """The stores of a gateway, open."""

    valkey: EmbeddedValkey | None
    """The private Valkey; None if the settings name another server."""
    redis_url: str
    scripts: ScriptCaller
    """Calls scripts in the Redis of this gateway, or of its cell."""
    records: Records
    cells: CellParts | None
    """What all cells share; None where there are none."""
    quotas: QuotaParts

    @classmethod
    async def open(
        cls, settings: Settings, secret: bytes, drain_state: DrainState, stack: AsyncExitStack
    ) -> "Stores":
        """Start the private Valkey if the settings name no Redis, and return the stores, which the stack closes.

        Raises SettingsProblem, ValkeyFailed.
        """
        valkey = await _embedded_valkey(settings, stack)
        redis_url = valkey.url if valkey is not None else settings.redis.url
        scripts = ScriptCaller(redis_url)
        stack.push_async_callback(scripts.close)
        records = Records.create(settings, secret, stack)
        ledger = records.ledger
        cells = CellParts.create(settings, drain_state, stack)
        quotas = QuotaParts.create(
            cells.redis if cells is not None else settings.redis,
            cells.scripts if cells is not None else scripts,
            stack,
            ledger.account_usage if ledger is not None else None,
        )
        if ledger is not None:
            quotas.events.on_alert.append(ledger.alert)
        return cls(
            valkey=valkey, redis_url=redis_url, scripts=scripts, records=records, cells=cells, quotas=quotas
        )


async def _embedded_valkey(settings: Settings, stack: AsyncExitStack) -> EmbeddedValkey | None:
    """Start the embedded Valkey, if the settings name no Redis; the stack ends it."""
    if settings.redis.url != "embedded":
        return None
    valkey = EmbeddedValkey(Path(settings.state_directory))
    stack.push_async_callback(valkey.close)
    await valkey.start()
    return valkey
