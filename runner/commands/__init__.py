"""The subcommands of ``python -m runner``, one module each.

A module offers ``add_arguments(parser)`` and ``run(options) -> exit code``; its docstring is its
``--help``. One line on each stands in ``runner.__main__``, which imports only the wanted one.
"""
