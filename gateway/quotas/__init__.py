"""What a tenant may use: reserved before, settled after.

Read in this order: limit, quota (the promise), redis_store, restoring, local_store, guarded_store.
"""
