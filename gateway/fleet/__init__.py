"""The workers of this gateway.

`fleet` has them all and probes them, `worker_lookup` finds those of a model, `worker` is one of them;
`circuit_breaker` has the states of its health, which take it out of rotation and bring it back.
`loads`, `load_feeds` and `ranks` are how busy it is. Where there are many, policies/load_order keeps them in order.
"""
