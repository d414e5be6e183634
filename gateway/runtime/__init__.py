"""A gateway that serves: its listeners, its certificates, and its settings when they are read again.

`server` opens the listeners, serves, and drains when it is told to stop. `reload` swaps settings while the gateway
serves. `certificates` renews the TLS certificates of the listeners when their files change.
"""
