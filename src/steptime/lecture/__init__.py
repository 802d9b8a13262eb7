"""The lecture as data: sections, claims and question cards with computed numbers.

Each number has the function that computes it and a verdict. The lecture is Reiner Pope's "The math behind how LLMs
are trained and served" (Dwarkesh Podcast, 2026-04-29), summarized in new words.

`lecture_content` reads the files of `data/lecture`. `lecture_check` computes every number again. `current_figures`
holds the functions for real models and machines. `pair_roofline` answers the questions of the blackboard for one
model and one system.
"""
