"""Passes a worker's answer on to the client: `relay` begins; `sse` reads streams, `stream_aggregator` joins them."""
