"""Traffic files in, normalised requests out."""
