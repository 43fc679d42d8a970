"""Parts of ../slow_network.py."""
