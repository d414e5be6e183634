"""Passes a worker's answer on to the client.

What happens to an answer that breaks off or is an error (another worker may try, or the client gets the error) is
decided by `stream_relay` for streams, by `relay` for whole answers. `relay` calls `stream_relay` for streams,
which sends most pieces where they arrive, as they pass `frame_filter`, which reads the usage of the last one; and
`whole_answer` where the client wants no stream: it reads a body, or joins a stream by `stream_aggregator`
(`sse_payloads` reads its events, `chunk_template` equal chunks faster, `faithful_streams` decides for which
requests a stream has all that a whole answer would). `answer_memory` bounds the memory of whole answers,
`long_answer` scans long ones in slices, and `long_texts` writes the long texts of joined ones so. `answer_failure`
has the exceptions for refusals and errors, `worker_errors` reads those that workers report, and `context_refusal`
recognises among them a request that is too long for the engine's context. `redaction` removes what clients must
not get: addresses, files, counts of tokens that other tenants cached.
"""
