"""Networks of one machine's own, for tests and measurements of several hosts."""
