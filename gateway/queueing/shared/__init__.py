"""One queue and one account of loads for all gateways.

Read keys, lua/queue.lua (which request has its turn), queue_store, membership, shared_queue.
"""
