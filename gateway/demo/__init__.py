"""`radixgate demo`: the whole product on one machine. Read: show, stage, sessions, table."""
