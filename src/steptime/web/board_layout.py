"""The default layout of a board: experts over all chips, else maximum TP."""

from __future__ import annotations

from functools import lru_cache

from steptime.lecture.model_on_system import domain_chips
from steptime.physics.default_layout import most_spread
from steptime.physics.layout import Layout
from steptime.physics.layout_space import legal
from steptime.web.board_inputs import Shared, bar_inputs
from steptime.web.page_subject import WrongField, load_subject


def single_stage_layout(inputs: Shared, chips: int) -> Layout:
    """Return the layout of one pipeline stage with the most chips of one replica.

    Experts are spread over all chips, with as many data-parallel ranks as possible. Models without experts use tensor
    parallelism.

    Args:
        inputs: Inputs of a board; only the bar counts.
        chips: Number of chips; 0: the scale-up domain.

    Returns:
        Layout of one replica.

    Raises:
        WrongField: No layout is legal.
    """
    return _layout(bar_inputs(inputs), chips)


@lru_cache(maxsize=512)
def _layout(shared: Shared, chips: int) -> Layout:
    subject = load_subject(shared)
    model, system = subject.model, subject.system
    max_chips = chips or domain_chips(system)
    layouts = [x for x in legal(model, system, max_chips, microbatches=(1,)) if x.pp == 1 and x.cp == 1]
    if not layouts:
        raise WrongField("chips", f"{model.name} has no legal layout on {max_chips:,} chips of {system.name}")
    return most_spread(layouts)
