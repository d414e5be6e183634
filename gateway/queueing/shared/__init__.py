"""One queue and one account of loads for all gateways.

Read keys, lua/queue.lua, queue_store, membership, shared_queue. The order of waiting tenants is decided in
lua/queue.lua here, and by policies/queueing where one gateway orders alone.
"""
