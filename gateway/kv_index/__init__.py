"""The gateway's part in the prefix index: follows the workers' KV events, and decides how far to trust the index.

shared_index_parts.py assembles the index; index_follows_fleet.py lets workers enter and leave it. KV events come in
through kv_event_feeds.py (all workers), worker_event_feeds.py (one worker) and rank_event_feed.py (one rank, over a
socket of workers/kv_events/subscriber.py). own_feed_leases.py and feed_election.py decide which gateways follow a
worker. Missing events are noticed and requested by `batches` of workers/kv_events/subscriber.py; what is lost for
good, and restarts of the engine, are handled by `_handle` of worker_event_feeds.py. index_reconciler.py brings the
index in line with a worker's events, feed_sources.py finds the endpoints of workers, and namespace_resolver.py
finds the namespace of an event. `_apply_change` of worker_event_feeds.py writes them to the index: stored blocks by
`hold`, evicted ones by `shorten` of radix_cache/shared/shared_index.py. A worker that floods its feed is bounded by
workers/kv_events/subscriber.py (bytes and messages), radix_cache/follower.py (pages that it may hold) and
workers/kv_events/wire.py (fields of an event). The index changes of other gateways come in through
radix_cache/shared/replica_reader.py.

feedback.py learns from the cached tokens in answers, match_confidence.py decides how far to trust the index, and
index_quota.py bounds what a tenant may record in it.
"""
