"""The workers of this gateway.

`fleet` has them all and probes them, `worker_lookup` finds those of a model, `worker` is one of them;
`circuit_breaker` is the health of a worker, and `loads`, `load_feeds`, `ranks` are how busy it is. Where there
are many, policies/load_order keeps them in order.
"""
