"""A deployment: workload and limits, steady states, queues, the search over layouts, what binds, and how to start it."""
