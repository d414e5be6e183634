"""Shared code of the commands: options, tables, and access to settings, the database, Redis and the admin API."""
