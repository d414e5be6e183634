"""`radixgate demo`: workers and a gateway on one machine, compared under two routing policies."""
