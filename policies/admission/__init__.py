"""Rules that let work in or keep it waiting: windows of workers, bounds of waiting rooms, limits, retry budgets.

Start with dispatch_window.py (how much work may be ahead of an engine?) and waiting_bounds.py (may another request
wait?). window_sizes.py computes how wide the windows are, window_room.py whether a request may be sent to a worker
now, hold.py whether it rather waits for a better one, closed_workers.py which workers earlier requests wait for,
search_bounds.py how many requests a search passes over. traffic_in_sight.py gives window_sizes the recent traffic
of classes and tenants (recent_work.py: their work; tenant_demand.py: the demand of each tenant). filled_workers.py
keeps some workers for urgent classes, or for tenants beside a crowd, and fills the others. awaited_tokens.py
decides which request has a worker of its own and counts it there while it waits, passed_over.py when such a request
is tried again in the queue of all gateways. ttft_chance.py refuses a request that would miss its TTFT target;
limit_windows.py (quotas) and retry_budget.py depend on none of these.
"""
