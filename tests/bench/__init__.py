"""``make bench``: what the harness and the pages cost. Timings stay out of the tests."""
