"""The catalogue takes seconds to import: where it is not run it is not collected."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the catalogue out unless its marker is asked for."""
    return True if collection_path.stem == "test_catalogue" and "not catalogue" in config.option.markexpr else None
