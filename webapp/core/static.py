"""Static files: plotly.js from the wheel under a stable name, and names that carry a hash."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.contrib.staticfiles.finders import BaseFinder
from django.core.files.storage import FileSystemStorage, Storage
from whitenoise.storage import CompressedManifestStaticFilesStorage

PLOTLY_NAME = "vendor/plotly.min.js"


class _PlotlyStorage(FileSystemStorage):
    """Shows the one file of the wheel's folder, under another name."""

    def path(self, name: str) -> str:
        return super().path(Path(PLOTLY_NAME).name if name == PLOTLY_NAME else name)


class PlotlyFinder(BaseFinder):
    """Finds ``vendor/plotly.min.js`` in the installed ``plotly`` wheel, and nothing else there.

    So the browser's plotly.js always is the version that the wheel's figures are made for.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # By location, without importing plotly: its import costs memory that the site never uses.
        spec = find_spec("plotly")
        assert spec is not None
        assert spec.origin is not None
        folder = Path(spec.origin).parent / "package_data"
        self.storage = _PlotlyStorage(location=str(folder))

    def check(self, **kwargs: Any) -> list[Any]:
        return []

    def find(self, path: str, find_all: bool = False, **kwargs: Any) -> Any:
        if path != PLOTLY_NAME:
            return []
        found = self.storage.path(path)
        return [found] if find_all else found

    def list(self, ignore_patterns: Iterable[str] | None) -> Iterable[tuple[str, Storage]]:
        yield PLOTLY_NAME, self.storage


class HashedStaticStorage(CompressedManifestStaticFilesStorage):
    """Names with a hash once ``collectstatic`` has run; plain names before that.

    The plain names make a first start and the tests work without a step before them.
    """

    def stored_name(self, name: str) -> str:
        if not self.hashed_files:
            return name
        return str(super().stored_name(name))
