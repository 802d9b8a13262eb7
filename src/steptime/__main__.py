"""`python -m steptime` is `steptime`."""

from steptime.terminal.main import main

main()
