"""Where requests wait for their turn: `waiting_room` is a queue of one gateway, `shared/` that of all gateways.

waiting_room        one bounded queue, which ends waits that are too long
turn_giving         gives the requests in it their turns while workers have room
waiters             the requests in it, each a queued_request with a ticket
room_occupancy      counts them, and refuses a request (`taken`: TenantQueueFull, Overloaded) by the bounds of
                    policies/admission/waiting_bounds.py, which hold in each gateway by itself; their values are in
                    room_rules. room_counters and received_work count what tenants received
waiting_rooms       the rooms of all models, and of their batch work
dispatch_windows    keeps the dispatch windows that policies/admission/window_sizes.py calculates
queue_peer          this gateway as a member of the shared queue

Whether a request waits or is dispatched now is decided in gateway/dispatch/acquisition: `worker_acquisition` calls
own_turn_placements.py for the turns of one gateway, and shared/lua/best_route.lua for those of all gateways. Which
tenant goes next is decided by policies/queueing (`sfq` by default); in the queue of all gateways by `first_waiting`
of shared/lua/turns.lua, in the order that shared/lua/tenants.lua keeps.
"""
