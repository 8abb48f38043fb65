"""Do the intervals hold what they promise? Simulated truth, printed as a table (`make truth`)."""
