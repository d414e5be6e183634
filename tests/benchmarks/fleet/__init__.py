"""The costs of requests for Redis and gateways, counted with up to 8 real gateways, beside `plan-fleet`."""
