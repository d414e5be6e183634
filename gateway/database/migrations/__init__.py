"""Migrations of the tables with Alembic: one file for each step, in `versions`; Alembic runs `env`."""
