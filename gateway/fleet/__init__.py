"""The workers of this gateway.

`fleet` has them all and probes them, `worker_lookup` finds those of a model, `worker` is one of them;
`circuit_breaker` has the states of its health, which take it out of rotation and bring it back.

`loads` and `ranks` are how busy a worker is. `load_feeds` hears what engines report, of which `external_load` keeps
what no gateway sent; of other gateways the sums
come with the shared queue (gateway/queueing/shared/membership.py), single requests through `announced_dispatches`,
and the loads of other cells through gateway/cells/cell_loads.py. Of many workers policies/load_order keeps the
order.
"""
