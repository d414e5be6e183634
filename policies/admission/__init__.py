"""Rules that let work in or keep it waiting: windows of workers, bounds of waiting rooms, limits, retry budgets.

Start with dispatch_window.py (may a request be sent to a worker now?) and waiting_room.py (may another request
wait, and for how long?); limit_windows.py and retry_budget.py stand alone.
"""
