"""The queue of a simulation: requests take turns as in the real gateway, by its queue policies and service classes.

turn_taking lets requests wait: turn_search finds which goes next of a turn_queue, in the windows of traffic_window,
and dispatching sends it. queue_rule makes a turn_queue of waiting_tickets, or of tenants_by_tag if several gateways
share it; queue_view has the loads of workers that their queue counts.
"""
