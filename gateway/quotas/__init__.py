"""What a tenant may use: reserved before a request, settled after it.

Requests come here by way of gateway/dispatch/reservations.py. Read in this order: limit, quota_store (the
contract), redis_layout, redis_store (its functions are in lua/), counter_recovery, local_store, failover_store,
escrow_account, escrow, leases.

A request passes them from the outside: leases -> escrow -> failover_store -> redis_store or, while Redis is away,
local_store.
"""
