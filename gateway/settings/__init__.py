"""All settings of the gateway: `tree.py` defines the tree, `sources.py` reads it, `checks` checks it.

The branches of the tree: listeners, workers, models, routing, queueing, service_classes, requests, tenants,
token_issuers, prices, usage, files, stores, telemetry; types has the kinds of values. For sources: environment,
yaml, references (`${env:NAME}`), error_messages, json_schema. For checks: urls, redis_address, database_address.
"""
