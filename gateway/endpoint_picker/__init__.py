"""The gateway as endpoint picker of Envoy: the Gateway API Inference Extension's protocol over Envoy's ext_proc.

Envoy transfers the bytes, and calls the gateway about each request over gRPC. A request passes the same pipeline as
any other (gateway/pipeline.py); only its exchange and its transport to the worker are Envoy's. Read
envoy_request.py first (the messages), then picker.py, envoy_exchange.py (the request for the pipeline),
envoy_carrier.py (the way to the worker), buffered_body.py and listener.py (the gRPC server).
"""
