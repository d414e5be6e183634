"""A gateway that serves: its listeners, its certificates, and its settings when they are read again.

`server` opens the listeners and serves until a signal stops it; a `serving_gateway` is what it has opened, and a
`listener_runner` serves and ends the connections of one listener. `tenant_app_setup` makes the application for
tenants from a gateway's parts, `picker_listener` opens the listener for Envoy, `cell_setup` joins the other cells,
and `listen_error` is the error of an address that is taken. `drain` ends the serving without losing a stream: it
waits for running requests (`_close_and_wait`, `wait_for_requests` of gateway/process/drain_state.py). `reload`
swaps settings while the gateway serves. `certificates` renews the TLS certificates of the listeners when their
files change; `certificate_expiry` reads when they expire.
"""
