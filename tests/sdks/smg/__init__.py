"""smg's own end-to-end tests of the client APIs, against this gateway."""
