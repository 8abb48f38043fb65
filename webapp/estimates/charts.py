"""Figures of an estimate's page, from its frozen document."""

from __future__ import annotations

from webapp.core.charts import Document, Figure, gain_against_load


def figures(document: Document) -> dict[str, Figure]:
    """The charts by name; one that has nothing to show is left out."""
    own = document["inputs"].get("own_concurrency")
    gain = gain_against_load(document["levels"], own)
    return {} if gain is None else {"gain": gain}
