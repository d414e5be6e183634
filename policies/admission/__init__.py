"""Rules that let work in or keep it waiting: windows of workers, bounds of waiting rooms, limits, retry budgets.

Start with dispatch_window.py (how much work may be ahead of an engine, and may a request be sent to a worker now?)
and waiting_bounds.py (may another request wait, and for how long?). traffic_in_sight.py is what dispatch_window
knows of classes and tenants (recent_work.py: of their work; tenant_demand.py: of what each asks for).
filled_workers.py keeps some workers for urgent classes, or for tenants beside a crowd, and fills the others.
passed_over.py says when a request that waits for its own worker is looked at again,
target_refusal.py refuses what would miss its target; limit_windows.py (quotas) and retry_budget.py stand alone.
"""
