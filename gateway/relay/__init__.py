"""Passes a worker's answer on to the client.

`relay` decides what becomes of an answer that breaks off or is an error: another worker may try, or the client gets
the error. It calls `sse` for streams, which passes the frames and reads the usage of the last one, and
`stream_aggregator` to join a stream to a whole answer. `context_refusal` recognises a request that is too long for
the engine's context, and `error_redaction` removes addresses and files from errors.
"""
