"""Local aggregation: the ranks of one host send their gradients to the servers as one worker (docs/pytorch.md)."""
