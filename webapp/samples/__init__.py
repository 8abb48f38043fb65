"""Uploaded traffic: what was understood of it, and how long it is kept."""
