"""One queue and one account of loads for all gateways.

lua/queue.lua decides in Redis which request has its turn; queue_store calls it. shared_queue gives this gateway's
requests their turns by it, hearing of them by turn_stream; queue_shards does so in a Redis Cluster. membership
joins the other gateways and tells them this one's loads, which local_placements sums up. preemption_requests and
provider_backoff are what gateways ask and tell one another besides. keys names every key.
"""
