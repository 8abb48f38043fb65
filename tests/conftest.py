"""What holds for every test. The services are started by ``tests.settings``."""

import os

import hypothesis
import pytest

# Machines that build many things at once are slow at times, which is no failure of a property.
hypothesis.settings.register_profile("local", deadline=None)
# The same examples at each build: a new one that fails is for a person at a desk to see first.
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Side by side only where all quick tests run: one file is there sooner in one process, tests
    with an engine or a browser share one, and those that judge times want to be alone."""
    everything = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    quick = config.getoption("markexpr") == "not engine and not browser and not quiet"
    return 4 if everything and quick else 0
