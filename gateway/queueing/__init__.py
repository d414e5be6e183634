"""Where requests wait for their turn: `waiting_room` is a queue of one gateway, `shared/` that of all gateways.

In both, `waiting_room` also bounds how many requests wait, and ends the wait of those that have waited too long.

Whether a request waits or is dispatched now is decided in gateway/dispatch/acquisition: `worker_acquisition` asks
own_turn_placements.py for the turns of one gateway, and shared/lua/queue.lua for those of all gateways.
dispatch_windows.py keeps the dispatch windows that policies/admission/dispatch_window.py calculates. The order of
waiting tenants is decided by policies/queueing; for the queue of all gateways by shared/lua/queue.lua.
"""
