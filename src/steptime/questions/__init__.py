"""Questions: each is declared once, and the command line, sweeps, the page, HTTP and the docs are derived from it."""
