"""How to start a plan: the commands of each engine, one a host, their router, and manifests for a cluster."""
