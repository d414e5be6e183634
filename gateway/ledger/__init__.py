"""The usage ledger: what each request used and cost, kept in the database.

`entry` is one request as the ledger keeps it. It is appended to a file of the `journal` (a `segment`) as soon as
the request has ended, and the `shipper` takes it into the database, where gateway/database/usage_store.py writes
the row. `ledger` puts these together. `usage_maintenance` deletes old rows and reports hours to `webhooks`.
`attribution` reads what a client says a request is for, `export` and `usage_query_parsing` answer questions, and
`account_usage` reports to quotas what an account has used.
"""
