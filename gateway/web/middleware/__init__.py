"""Middleware between the HTTP server and the handlers of a listener: limits, logging, CORS, error answers.

- How many connections may an address have? connection_limits.py
- What is logged of each request? access_middleware.py
- Which web pages may call the API? cors.py
- How are failures answered, and foreign host names refused? error_middleware.py
- How is malformed HTTP answered? protocol_errors.py
"""
