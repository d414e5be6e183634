"""The workers of a large fleet in the order of their load, as changes come: least_loaded, from groups (load_group).

`ordered_worker` is the interface of a worker; `holders` chooses among those that hold a prompt.
"""
