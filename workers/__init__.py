"""Workers: clients, probes and launchers, and the project's own engine as a worker.

Read worker.py (a worker at one moment) and adapter.py (the interface for talking to one) first. `engine` is the
project's own inference engine, `engine_server` serves it over HTTP, and `chat_template` turns messages into the
text that an engine reads. `carrier` is the interface of a proxy that carries requests in place of the gateway;
`system_error` has the operating system's messages.
"""
