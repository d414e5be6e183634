"""The gateway: HTTP requests of tenants come in, and are answered by workers that the gateway chooses.

To read the code in the order of a request: `web` (HTTP), `pipeline` (`serve` and `answer`: the steps of a request,
and what a client that hangs up frees), `tenants` and `models` (what the request may ask for), `tokenization` (its
prompt as blocks), `dispatch` (when it is sent, and to which worker), `relay` (the answer on its way back), `ledger`
and `telemetry` (its record). `dispatch` asks `quotas` (what the tenant may still use), `queueing` (whose turn it
is), `routing` (the order of workers), `fleet` (the state of workers) and `kv_index` (what they have cached).
`wiring` and `app` build all of it from `settings`; `runtime` runs it; `cli` starts it.

docs/pages/extend/where-things-happen.md has the file and the function of each step, and of two hundred questions.
"""
