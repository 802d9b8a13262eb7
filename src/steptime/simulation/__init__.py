"""Requests one by one: what queues and percentiles make of a step time.

`traffic` makes requests and `trace_files` reads them, `scheduling_policy` says how a server schedules them, `step_time_model`
how long its steps take, `event_loop` runs them, and `run_metrics` computes the figures. `simulator.simulate` joins them.
"""
