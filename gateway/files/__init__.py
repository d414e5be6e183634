"""Files that tenants keep here: their contents in a directory or an S3-compatible store, the rest in the database.

Read content.py (the promise), directory.py and object_store.py (who keep it), shelf.py (what the API does with it).
"""
