"""Local SGD: optimizers that run on the worker and synchronise with the servers after several steps."""
