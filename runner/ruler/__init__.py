"""The ruler: a local server that answers exactly when it says, and what we read off it."""

from runner.ruler.check import RulerCheck, check, check_once
from runner.ruler.process import KnownDelayServer, Lateness, Promise

__all__ = ["KnownDelayServer", "Lateness", "Promise", "RulerCheck", "check", "check_once"]
