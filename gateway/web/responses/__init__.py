"""The Responses API over chat completions.

Every worker is asked in chat completions, also one that has a responses route of its own: an engine keeps them in
its memory, for whoever knows the id, and a conversation could go on at that one worker only. Here they belong to a
tenant and live in the gateway's database, and any worker goes on.

Read wire.py, items.py and requests.py (a body to a chat request), answers.py and events.py (back again),
dialect.py, stored.py (retrieve, delete, cancel, input items).
"""
