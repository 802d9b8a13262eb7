"""Model sizing: parameters, training tokens and RL for a traffic.

`scaling_laws` reads scaling laws (`data/laws`) and computes losses. `compute_optimal` finds optimal sizes.
`lifetime_compute` adds up training, RL and serving as in the lecture, 6 N D and 2 N D eta. `sizing_on_system` replaces
these by the costs of steptime's own planners.

`model_sizing` combines them. `moe_vs_dense` compares mixtures of experts with dense models, `rl_step` gives the time of a
step of RL, `law_fit` fits a law to measured losses.
"""
