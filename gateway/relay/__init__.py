"""Passes a worker's answer on to the client: `relay` calls `sse` for streams, `stream_aggregator` to join them."""
