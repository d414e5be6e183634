"""Rules that let work in or keep it waiting: windows of workers, bounds of waiting rooms, limits, retry budgets.

Start with dispatch_window.py (how much work may be ahead of an engine?) and waiting_bounds.py (may another request
wait?). window_sizes.py says how wide the windows are, window_room.py whether a request may be
sent to a worker now, hold.py whether it rather waits for a better one, closed_workers.py which workers earlier
requests wait for, search_bounds.py how many requests a search passes over. traffic_in_sight.py is what window_sizes
knows of classes and tenants (recent_work.py: of their work; tenant_demand.py: of what each asks for).
filled_workers.py keeps some workers for urgent classes, or for tenants beside a crowd, and fills the others.
awaited_tokens.py says which request has a worker of its own and counts it there while it waits, passed_over.py when
such a request is looked at again in the queue of all gateways.
ttft_chance.py refuses what would miss its TTFT target; limit_windows.py (quotas) and retry_budget.py stand alone.
"""
