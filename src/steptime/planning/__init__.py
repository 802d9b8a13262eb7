"""Deployment planning: workload, limits, steady states, queues, layout search."""
