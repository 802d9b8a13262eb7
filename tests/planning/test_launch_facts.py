"""What launch commands have to know of a model and a system."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from steptime.models.model import Layer
from steptime.planning.launch_facts import what_is_served
from tests.conftest import experts, machine, model_of, one_matrix


def test_facts_of_a_model_with_experts_in_some_layers():
    few, many = (Layer(name="layer", ops=(experts(count=count),)) for count in (16, 64))
    model = replace(model_of(), layers=((few, 2), (many, 3), (one_matrix().layers[0][0], 1)), max_context=4096)
    found = what_is_served(model, machine(size=8, capacity=80e9, vendor="NVIDIA"))
    assert (found.routed_experts, found.max_context) == (64, 4096)
    assert (found.vendor, found.arithmetic, found.memory, found.fabric) == ("NVIDIA", ("bf16", "fp8"), 80e9, "up")
    assert found.domain_chips == 8
    assert what_is_served(one_matrix(), machine()).routed_experts == 0


def test_domains_are_no_larger_than_the_network_and_a_million():
    system = machine(size=8)
    up, out = system.domains
    small = replace(system, domains=(replace(up, size=64), replace(out, size=16)))
    assert what_is_served(one_matrix(), small).domain_chips == 16
    endless = replace(system, domains=(replace(up, size=np.inf), out))
    assert what_is_served(one_matrix(), endless).domain_chips == 1 << 20
