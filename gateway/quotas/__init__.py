"""Quotas of tenants: reserved before a request, settled after it.

Requests come here by way of gateway/dispatch/reservations.py. Read in this order: limit, quota_store (the
contract), redis_layout, redis_store, counter_recovery, local_store, failover_store, escrow_account,
escrow_accounts, escrow_policy, escrow, leases. While Redis is away (store_availability) each gateway grants its
share (gateway_share) as one of gateway_count. Beside them: prices (money for tokens), events (alerts), headers
(rate limit headers), limit_report (reports what is left), limit_text (limits in error messages).

Whether a request fits its limits, that of requests in flight (concurrency) included, and after how long it would
(Retry-After), is decided by `judge` of lua/decisions.lua; while Redis is away by local_store.py. The header is
written by gateway/domain/errors.py. What is left of each limit is computed by `add_statuses` of lua/decisions.lua,
while Redis is away by `Window.remaining` of policies/admission/limit_windows.py.

The functions of redis_store that run in Redis are in lua/: `calendar` (ends of windows), `windows` (what is used of
a limit, and its correction), `stored_meters` (how that is kept), `lease_records`, `decisions` (whether a cost
fits), and one file for each function: `reserve`, `finish`, `settle_and_reserve`, `renew`, `restore`.

A request passes them from the outside: leases -> escrow -> failover_store -> redis_store or, while Redis is away,
local_store.
"""
