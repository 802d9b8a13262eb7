"""What is asked: lengths and arrivals of requests, trace files, limits and speculative tokens."""
