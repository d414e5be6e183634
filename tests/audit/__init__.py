"""`make audit`: known vulnerabilities of the installed dependencies."""
