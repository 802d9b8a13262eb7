"""Entry point of `python -m steptime`, the same as the command `steptime`."""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import suppress
from typing import Final

INTERRUPTED: Final = 130
# Imports make many objects and no garbage, so Python searches for it rarely.
NEW_OBJECTS_BEFORE_SEARCH: Final = 100_000


def main() -> None:
    """Run the command line; Ctrl-C ends it with exit code 130.

    This also holds while its modules are imported.
    """
    gc.set_threshold(NEW_OBJECTS_BEFORE_SEARCH)
    try:
        from steptime.cli.main import main as run

        run()
        code = 0
    except KeyboardInterrupt:
        code = INTERRUPTED
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    except Exception as error:
        # Ctrl-C while a class is made becomes a RuntimeError, for example.
        if not _is_interrupt(error):
            raise
        code = INTERRUPTED
    # A second Ctrl-C must not interrupt the end of the program.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if code == INTERRUPTED:
        # Python ends by the signal, although it was caught, if the signal came inside an `exec` (in the import of a dataclass).
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether an error was raised because of Ctrl-C."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


if __name__ == "__main__":
    main()
