"""One queue and one account of loads for all gateways.

lua/                   decides in Redis which request has its turn: `call` (keys, arguments), `records`, `loads`,
                       `routes`, `dispatch_windows`, `best_route`, `tenants` (fair order), `passed_over_requests`,
                       `turns`, `removal`, then the functions to call: `progress`, `admit`, `claim`, `own_places`,
                       `gateways` (`reap` frees what a dead one held), `cells`
queue_store            calls them, with the values of queue_messages; keys names every key
shared_queue           the queue as this gateway uses it; shared_turns is its interface
turn_requests          the requests of this gateway that wait for their turns, and claim them
own_places             gives places without a call to Redis while no request waits, and reports them together
turn_stream            receives the turns that were granted
membership             joins the other gateways, notices which have died, and reports this one's loads to Redis;
                       local_placements sums these up (placement_sums: those of own_places), queue_members is the
                       interface of a member
queue_shards           the same in a Redis Cluster; shard_layout finds the shard that decides, shards_in_step
                       exchanges loads and turns between the shards of one model's tenants
preemption_requests    requests to other gateways to preempt batch work; provider_backoff notifies them of busy
                       providers
gateway_reports        reports of all gateways, gathered by one of them

Two gateways do not take the same room in Redis: `has_room` (lua/dispatch_windows.lua) and `add_load`
(lua/loads.lua) run in one script, whichever verb of lua/ places a request. own_places bounds how far the places
that gateways give without a call may exceed a window.
"""
