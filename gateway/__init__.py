"""The gateway: HTTP requests of tenants come in, and are answered by workers that the gateway chooses.

To read the code in the order of a request: `web` (HTTP), `pipeline` (the steps of a request), `tenants` and
`quotas` (what the request may do), `queueing`, `routing` and `dispatch` (when it is sent, and to which worker),
`relay` (the answer on its way back). `wiring` and `app` build all of it from `settings`; `runtime` runs it; `cli`
starts it.
"""
