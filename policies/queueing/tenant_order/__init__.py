"""Inside a tenant: which of its tickets goes first. One file each; ../protocol.py has the promise."""
