"""State and data of jobs whose workers come and go (syncline.torch.elastic)."""
