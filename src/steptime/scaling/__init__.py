"""Budgets: how large a model, on how many tokens, and how much RL, for the traffic that it will serve.

`laws` reads scaling laws (`data/laws`) and tells losses; `optimum` finds best sizes; `bill` is the lecture's reckoning of
training, RL and serving, 6 N D and 2 N D eta; `machine` has steptime's own costs in their place; `budget` answers. `moe` holds
mixtures of experts against dense models, `rl` prices a step of RL, `refit` fits a law to points.
"""
