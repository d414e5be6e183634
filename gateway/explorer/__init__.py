"""Finished requests in detail: how long each step took, and why.

`request_store` keeps requests within bounds, as `request_details` describes them; `request_query` filters them, and
`request_explorer` finds them at all gateways. `activity` sums up the requests of all gateways, `activity_history`
those of the last hour.
"""
