"""The database of tenants: PostgreSQL or SQLite. Read: tables, database, schema, tenant_store; then migrations."""
