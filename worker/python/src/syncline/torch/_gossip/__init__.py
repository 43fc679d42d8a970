"""Implements syncline.torch.Gossip: training without servers, in which workers average their weights in pairs."""
