"""Requests one by one: what queues and percentiles make of a step time.

`traffic` makes or reads requests, `policy` says how a server schedules them, `pace` how long its steps take, `loop` runs them,
`reference` does the same one step at a time, and `metrics` answers. `run.simulate` joins them for a model on a system.
"""
