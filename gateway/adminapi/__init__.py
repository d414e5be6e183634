"""The operators' API, /admin/v1, with its authorization, browser login and OpenAPI document.

- Which operations are there? keys.py, operators.py, resources.py (organisations, plans, tenants), workers.py,
  queues.py, index_view.py, requests.py, reports.py (usage, audit log), route_explanation.py, policy_comparison.py;
  settings_view.py shows the settings, which only the settings file and a reload change
- Where are the views of the console, under /admin/v1 too? In gateway/web: operator_views.py, served by admin_app.py
- What is an operation, and how is it reached? operation.py, routes.py, openapi.py, problems.py
- Which principal sends a request, with which role? authorization.py, principal.py, issuer_tokens.py
- Where is the role checked? `authorize` of authorization.py, called by `_handler` of routes.py for operations, and
  for views by `_guarded` of gateway/web/admin_app.py
- How do operators log in with a browser? login.py, sessions.py, ended_sessions.py, signed_cookies.py
- How are these parts built, and query parameters read? services.py, query_parameters.py
"""
