"""Implements syncline.torch.Optimizer, whose state lives on the servers."""
