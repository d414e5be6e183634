"""The gateway's database, PostgreSQL or SQLite: connections, tables, and a store for each kind of data.

`database` connects (`sqlite_connection`), `schema` upgrades the tables with the steps in `migrations`, `backup`
writes and restores them. No other package contains SQL.

tenants      `tenant_store`, `operators`, `audit_log` (changes of both); tables in `tables`, `audit_tables`
usage        `usage_store` writes, `usage_query` reads, `account_hours` sums up for quotas, `webhook_outbox` keeps
             events; tables in `usage_tables`
responses    `response_store`, `background_store`, `conversation_store`; tables in `tables`, `conversation_tables`
files        `file_store`, `batch_store`, `batch_result_lines`; tables in `file_batch_tables`

`pagination` reads lists page by page, `row_conversion` converts rows to values, `storable_text` refuses texts that
no database can store.
"""
