"""Request-level simulation: queues and latency percentiles from a step time.

`traffic` draws requests and `trace_files` reads them. `scheduling_policy` describes the scheduler, and
`step_time_model` the step times. `event_loop` runs the requests, and `run_metrics` computes the figures.
`simulator.simulate` combines them.
"""
