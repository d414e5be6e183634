"""The usage ledger: the usage and the cost of each request, stored in the database.

`entry` is the ledger's entry of one request. It is appended to a file of the `journal` (a `segment`) as soon as the
request has ended; the `shipper` moves it to the database, where gateway/database/usage_store.py writes the row.
`ledger` assembles these. `usage_maintenance` deletes old rows and reports hours to `webhooks`. `attribution` reads
the client's labels of a request, `export` and `usage_query_parsing` answer queries (gateway/database/usage_query.py
adds up), and `account_usage` reports the usage of accounts to quotas.
"""
