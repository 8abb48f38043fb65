"""What holds for every test. The services are started by ``tests.settings``."""

import os

import hypothesis

# Machines that build many things at once are slow at times, which is no failure of a property.
hypothesis.settings.register_profile("local", deadline=None)
# The same examples at each build: a new one that fails is for a person at a desk to see first.
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")
