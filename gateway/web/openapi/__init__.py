"""The OpenAPI document of the tenants' API, served at /openapi.json.

document.py puts the document together (`tenant_api_document`) and has the inference paths; stored_objects_paths.py
has the paths of responses, files and batches; descriptions.py has the building blocks of both. The operators' API
has a document of its own: gateway/adminapi/openapi.py.
"""
