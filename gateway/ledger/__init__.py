"""The usage ledger: who used what, and what it cost. Read: entry, journal, segment, shipper; then webhooks."""
