"""The mark of a test that runs on shared engines."""

from __future__ import annotations

import pytest


def on(*kinds: str) -> pytest.MarkDecorator:
    """Run the test once on each of these kinds of engines (see `shelf.KINDS`), as its argument `subject`."""
    return pytest.mark.parametrize("subject", kinds, indirect=True)
