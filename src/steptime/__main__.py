"""`python -m steptime` is `steptime`."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line; Ctrl-C ends it with 130, also while its modules are imported."""
    try:
        from steptime.cli.main import main as run

        run()
    except KeyboardInterrupt:
        # a second Ctrl-C must not break into the end of the program
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
