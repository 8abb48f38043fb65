"""Serving engines behind one protocol."""
