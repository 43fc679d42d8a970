"""Modules of ../slow_network.py."""
