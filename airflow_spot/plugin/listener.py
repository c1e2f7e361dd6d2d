"""Listener."""
