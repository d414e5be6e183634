"""What a tenant may use: reserved before a request, settled after it.

Read in this order: limit, quota_store (the contract), redis_layout, redis_store, counter_recovery, local_store,
failover_store, escrow, leases.
"""
