"""Experiments, their runs and trials, and the lease that executes them."""
