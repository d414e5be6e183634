"""Builds the parts of a gateway from their branches of the settings; `gateway/app.py` has the order.

`stores`, `fleet_parts` and `telemetry_parts` build the three groups that app.py joins, with the help of the other
modules. `gauges` lists the metrics of the present state, from one module for each subject.
"""
