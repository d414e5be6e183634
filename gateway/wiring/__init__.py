"""Builds the parts of a gateway from their branches of the settings; `gateway/app.py` has the order.

`gauges` lists the metrics of the present state, from one module for each subject.
"""
