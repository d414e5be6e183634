"""The gateway's database, PostgreSQL or SQLite: connections, tables, and a store for each kind of data.

`database` connects, `schema` upgrades the tables with the steps in `migrations`. Modules named `*_tables` define
the tables (`tables` those of tenants and responses). `tenant_store`, `usage_store`, `response_store`,
`background_store`, `file_store` and `batch_store` read and write them, and `audit_log` records changes of tenants.
No other package knows SQL.
"""
