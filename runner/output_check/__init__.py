"""The output check: what one run writes when it is greedy, and what the baseline thinks of it.

Untimed. ``greedy`` asks, ``read`` and ``traits`` take an answer apart, ``forced`` has a server
score text that is already written, ``record`` turns it all into what may be kept, and ``phase`` is
the order in which a run does this.
"""

from runner.output_check.greedy import GreedyAnswer, greedy_answers
from runner.output_check.phase import OutputCheckPhase
from runner.output_check.record import digest_chain, output_record

__all__ = ["GreedyAnswer", "OutputCheckPhase", "digest_chain", "greedy_answers", "output_record"]
