r"""Plain inference requests, served on their connection without aiohttp's server, which costs as much as a relay.

    a connection --> connection.py --> a plain POST of an inference path: its handler, with request.py and answer.py
                                  \\-> any other request: aiohttp, from its first byte on, and all that follow it

- Which requests are served here, and what becomes of the others? connection.py
- What do handlers get of a request? request.py
- How is an answer written? answer.py
- What notices that the client has hung up? `connection_lost` of connection.py, which cancels the handler
"""
