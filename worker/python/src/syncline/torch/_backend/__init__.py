"""The torch.distributed backend "syncline" (syncline.torch.distributed)."""
