"""KV blocks: `pool` counts them, `prefix` shares them, `table` lends them, `store` holds the numbers.

`sizing` says how many there are when nobody else did.
"""
