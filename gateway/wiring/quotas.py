"""What counts quotas: the shared account, the one that stands in for it, and what is reserved of both."""

import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

from gateway.quotas.counter_recovery import Restorer, SpentReader
from gateway.quotas.escrow import Escrow
from gateway.quotas.events import Events
from gateway.quotas.failover_store import GuardedQuotaStore
from gateway.quotas.gateway_count import Gateways
from gateway.quotas.leases import Leases
from gateway.quotas.local_store import LocalQuotaStore
from gateway.quotas.redis_store import RedisQuotaStore
from gateway.settings.stores import RedisSettings
from radix_cache.redis.scripts import ScriptCaller


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """`store.run`, `escrow.run`, `leases.run` and `gateways.run` are its loops."""

    store: GuardedQuotaStore
    escrow: Escrow
    leases: Leases
    gateways: Gateways
    events: Events

    @classmethod
    def opened(
        cls,
        redis: RedisSettings,
        scripts: ScriptCaller,
        stack: AsyncExitStack,
        spent: SpentReader | None = None,
    ) -> "Quotas":
        """Nothing is asked yet. The stack gives back what is reserved. `spent`: what is known of long windows."""
        events, gateways = Events(), Gateways(scripts, redis.prefix)
        shared = RedisQuotaStore(
            scripts,
            redis.timeout_ms / 1000,
            prefix=redis.prefix,
            events=events,
            restorer=Restorer(spent) if spent is not None else None,
        )
        store = GuardedQuotaStore(
            shared,
            LocalQuotaStore(time.monotonic, time.time, events),
            shared.check,
            time.monotonic,
            gateways=lambda: gateways.count,
            events=events,
        )
        escrow = Escrow(store, lambda: store.away or not redis.escrow)
        leases = Leases(escrow, events)
        stack.push_async_callback(leases.close)
        stack.push_async_callback(escrow.close)
        return cls(store=store, escrow=escrow, leases=leases, gateways=gateways, events=events)
