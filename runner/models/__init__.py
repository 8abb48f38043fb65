"""Models that we make ourselves, so that measuring needs no hub: a demo model, a tiny test pair."""
