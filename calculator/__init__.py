"""The arithmetic of Draftproof: pure functions over frozen data, no clock, disk or network."""
