"""`python -m steptime` is `steptime`."""

from steptime.cli import main

main()
