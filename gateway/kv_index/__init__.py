"""The gateway's part in the prefix index: follow the workers' KV events, and decide how far to trust the index.

shared_index_parts.py puts the index together. index_follows_fleet.py lets workers enter the index and leave it. KV
events of workers come in here: kv_event_feeds.py follows those of all workers, worker_event_feeds.py those of one
worker, rank_event_feed.py those of one rank, by a socket of workers/kv_events/subscriber.py. own_feed_leases.py and
feed_election.py decide which gateways follow a worker, index_reconciler.py brings the index in line with a worker's
events, feed_sources.py finds the endpoints of workers, and namespace_resolver.py the namespace of an event. A
worker that floods its feed is bounded by workers/kv_events/subscriber.py (bytes and messages),
radix_cache/follower.py (pages that it may hold) and workers/kv_events/wire.py (fields of an event). What other
gateways change in the index comes in through radix_cache/shared/replica_reader.py.

feedback.py learns from the cached tokens in answers, match_confidence.py says how far to trust the index, and
index_quota.py what a tenant may record in it.
"""
