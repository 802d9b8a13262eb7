"""Questions through several doors: what all of them ask alike is answered once."""

from tests.cli.conftest import answered_once

__all__ = ["answered_once"]
