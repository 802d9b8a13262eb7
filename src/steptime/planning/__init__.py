"""A deployment: workload and limits, steady states, queues, the search over layouts, and what binds."""
