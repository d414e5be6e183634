"""Where requests wait for their turn: `waiting_room` is a queue of one gateway, `shared/` that of all gateways.

The order of waiting tenants is decided by policies/queueing; for the queue of all gateways by shared/lua/queue.lua.
"""
