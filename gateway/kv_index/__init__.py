"""The gateway's part in the prefix index: follow the workers' KV events, and decide how far to trust the index.

shared_index_parts.py puts the index together. index_follows_fleet.py lets workers enter the index and leave it.
feeds.py follows the KV events of all workers, worker_feeds.py those of one worker and rank_feed.py those of one
rank; feed_leases.py and feed_election.py decide which gateways follow a worker, index_reconciler.py brings the
index in line with a worker's events, event_sources.py finds the endpoints of workers, and namespace_resolver.py the
namespace of an event. A worker that floods its feed is bounded by workers/kv_events/subscriber.py (bytes and
messages), radix_cache/follower.py (pages that it may hold) and workers/kv_events/wire.py (fields of an event).
feedback.py learns from the cached tokens in answers, match_confidence.py says how far to
trust the index, and index_quota.py what a tenant may record in it.
"""
