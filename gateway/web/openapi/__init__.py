"""The OpenAPI document of the tenants' API, served at /openapi.json.

document.py puts the document together and has the inference paths; stored_objects_paths.py has the paths of
responses, files and batches; descriptions.py has the building blocks of both.
"""
