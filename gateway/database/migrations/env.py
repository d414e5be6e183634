"""The environment that Alembic runs migrations in: a connection that is in a transaction already."""

from alembic import context

from gateway.database.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
