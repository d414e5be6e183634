"""Code that the APIs of stored objects (responses, files, batches) share: stores, handlers, list parameters.

- Which stores are there, and which limits do they have? object_stores.py
- How does a handler answer with JSON, and what does it answer while the database is down? json_handlers.py
- Which page of a list is requested? list_parameters.py
- How is a file's content sent? file_contents.py
- How does a response continue after its client has disconnected, and where are its events kept? `follow` and
  `_write_events` of background_responses.py
"""
