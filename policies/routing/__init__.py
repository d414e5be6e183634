"""Routing policies: each ranks the workers that may serve one request, best first.

Read protocol.py first (what a policy is given and returns), then estimate.py (terms that several policies share)
and cost.py (the default policy: its formula, and one method for each group of terms). Its options are in
cost_options.py, its routes in cost_route.py; compute_price.py computes what a prefill costs other requests,
memory_price.py what its KV memory costs them, wanted_copies.py and copy_regrets.py when it makes one more copy of a
prefix; the requests in flight that share one are counted by radix_cache/in_flight_tree.py, and passed to the policy
by gateway/routing/router.py.

Other policies: chwbl, least_work, lmetric, p2c, round_robin, session. For all of them: disaggregation ranks pairs
of workers, data_parallel_rank chooses the rank, checked_policy checks rankings of other packages' policies,
stable_random has numbers that are equal in every process.
"""
