"""Builds the parts of a gateway from their branches of the settings; `gateway/app.py` has the order.

app.py joins three groups of parts:

stores               `quotas`, `records` (tenants, usage, responses, files, batches), `cells`
fleet_parts          `fleet` (workers), `acquisition_parts` (router with its policy, waiting rooms), `dispatch`
                     (attempts beside them), `dispatch_rules` (what a reload may change of these), `shared_queue`
request_observers    `telemetry` (metrics, traces, access log), `counters_follow_fleet`

`identity` makes the verifiers of tokens. `gauges` lists the metrics of the present state, from one module for each
subject: `worker_gauges`, `dispatch_gauges`, `index_gauges`, `quota_gauges`, `record_gauges`, `cell_gauges`;
`gauge_kinds` has the usual kinds. Autoscaling follows radixgate_model_requests of `dispatch_gauges`, by
helm/radixgate/templates/pool/autoscaling.yaml.
"""
