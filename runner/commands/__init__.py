"""The subcommands of ``python -m runner``, one module each.

A module offers ``HELP`` (one line), ``add_arguments(parser)`` and ``run(options) -> exit code``.
"""
