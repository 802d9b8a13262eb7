"""Training steps and runs: time, memory, schedules and the search over layouts."""
