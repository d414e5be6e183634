"""The HTTP API of a Kubernetes cluster, as far as a gateway inside the cluster uses it.

Read api.py first (requests and bounds), then objects.py (what is read of objects), then watched_objects.py (objects
that are listed once and then watched).
"""
