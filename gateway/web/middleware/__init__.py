"""Middleware between the HTTP server and the handlers of a listener: limits, logging, CORS, error answers.

- How many connections may an address have? connection_limits.py
- What is logged of each request? access_middleware.py
- Which web pages may call the API? cors.py
- How are failures answered? error_middleware.py
- Which host names and web pages are refused on loopback? foreign_pages.py
- How is malformed HTTP answered? protocol_errors.py
"""
