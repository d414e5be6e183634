"""The usage ledger: the usage and the cost of each request, stored in the database.

`entry` is the ledger's entry of one request. It is appended to a file of the `journal` (a `segment`) as soon as the
request has ended; the `shipper` moves it to the database, where gateway/database/usage_store.py writes the row.
`ledger` assembles these. Alerts of used-up budgets take the same way (`alert` of `ledger`), into the outbox of
`webhooks`, which sends them and tries again. `usage_maintenance` deletes old rows and reports hours to `webhooks`.
`attribution` reads the client's labels of a request, `export` and `usage_query_parsing` answer queries
(gateway/database/usage_query.py adds up), and `account_usage` reports the usage of accounts to quotas.
"""
