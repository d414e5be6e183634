"""Images, audio and video in requests.

media_policy.py decides which media a request may refer to, media_fetch.py from which hosts and addresses they are
fetched, and media_parts.py gives each medium in a conversation the placeholder tokens by which its prompt is
matched: MEDIA_TOKENS (768) for each, whatever its size, until the worker reports its usage. media_places.py finds
media in the JSON of any API, and field_check.py refuses addresses where nothing is fetched.
"""
