"""How the tables became what they are: one file a step, in `versions`. `env` is what Alembic runs."""
