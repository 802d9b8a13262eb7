"""Configs from outside the catalogue: those that the package aiconfigurator-core carries."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import steptime as st
from steptime.errors import InputError
from steptime.models.model import active_parameters, total_parameters

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def test_every_config_of_aiconfigurator_is_read_or_refused_by_name():
    """0.12.0 has 89 configs and 28 hf_quant_config.json beside them, which are no models."""
    package = pytest.importorskip("aiconfigurator_core")
    folder = Path(next(iter(package.__path__))) / "model_configs"
    paths = [path for path in sorted(folder.glob("*config.json")) if not path.name.endswith("hf_quant_config.json")]
    assert len(paths) >= 80
    refused = {}
    for path in paths:
        try:
            model = st.load_model(path)
        except InputError as problem:
            refused[path.name] = str(problem)
        else:
            assert 0 < active_parameters(model) <= total_parameters(model) < math.inf
    assert all("'" in problem for problem in refused.values()), "each refusal names the field or the architecture"
    assert len(refused) <= len(paths) // 10, refused
