"""Executors: what runs slices. One plain class without transport, UI or notebook in it."""
