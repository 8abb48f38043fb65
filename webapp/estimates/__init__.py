"""Frozen cost documents and the links that share them."""
