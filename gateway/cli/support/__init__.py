"""What the commands share: options, tables, and access to settings, the database, Redis and the admin API."""
