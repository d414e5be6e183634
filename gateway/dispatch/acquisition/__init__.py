"""Worker acquisition: how a request gets its placement on a worker.

worker_acquisition.py is the way of a request. It ranks the workers (request_ranking.py), then takes a turn: one
that this gateway gives by itself (own_turn_placements.py), or one that all gateways give together
(shared_turn_placements.py); where workers are filled, filled_routes.py has those that it may wait for. A second
attempt, after a worker failed, does not wait again: own_turn_placements.py places it at once, also where turns are
shared. wait_rules.py decides how long it may wait, ttft_target.py when it is too late. urgent_preemption.py makes
batch requests give up their room, first_worker.py waits for a model's first worker, provider_overflow.py chooses an
outside provider, provider_placements.py places a request there, and queue_wait.py explains why a request waits.
"""
