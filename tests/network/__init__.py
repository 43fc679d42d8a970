"""Private networks on one machine, for tests and measurements of several hosts."""
