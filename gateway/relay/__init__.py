"""Passes a worker's answer on to the client.

`relay` decides what becomes of an answer that breaks off or is an error: another worker may try, or the client gets
the error. It calls `frame_filter` for streams, which passes the frames and reads the usage of the last one, and
`stream_aggregator` to join a stream to a whole answer. `worker_errors` reads the errors that workers report;
`context_refusal` recognises among them a request that is too long for the engine's context. `redaction` removes
what clients must not see: addresses, files, counts of tokens that other tenants cached.
"""
