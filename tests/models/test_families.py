"""The laws of architectures, over every model of the catalogue and every family file."""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

import steptime as st
from steptime.catalog.data_files import files, read_file
from steptime.models import families
from steptime.models.family_registry import Family, family_named, known_families
from steptime.models.model import (
    active_parameters,
    cache_bytes,
    cache_bytes_read,
    decode_flops_per_token,
    growing_kv_bytes_per_token,
    kv_bytes_per_token,
    matmul_flops_per_token,
    prefill_flops,
    state_bytes,
    total_parameters,
    weight_bytes,
)
from steptime.physics.chip_memory import weights_per_chip
from steptime.physics.layout import Layout
from steptime.physics.layout_space import legal
from tests.conftest import each, every

NAMES = tuple(files("models"))
BASES = ("Family",)


def each_model(law: Callable[[str], None]) -> Callable[[int], None]:
    """Check a law for every third model of the catalogue each day, and for the others in the slow stage."""

    @pytest.mark.parametrize("third", every(3, range(3)))
    def check(third: int) -> None:
        each("name", NAMES[third::3])(law)()

    return check


def modules() -> dict[str, list[type[Family]]]:
    """Return the families that each file of the package defines, for files that define any."""
    found = {}
    for file in pkgutil.iter_modules(families.__path__):
        module = importlib.import_module(f"{families.__name__}.{file.name}")
        classes = [v for v in vars(module).values() if isinstance(v, type) and issubclass(v, Family)]
        found[file.name] = [c for c in classes if c.__module__ == module.__name__ and c.__name__ not in BASES]
    return {name: classes for name, classes in found.items() if classes}


@cache
def kinds() -> frozenset[str]:
    """Return every model_type and architecture by which a config of the catalogue finds its family."""
    configs = [read_file(path)["config"] for path in files("models").values()]
    named = {config.get("model_type") for config in configs}
    return frozenset(named | {kind for config in configs for kind in config.get("architectures") or ()})


@each("file", modules())
def test_families_of_a_file_are_final_and_have_a_model(file):
    for family in modules()[file]:
        assert getattr(family, "__final__", False), "no family derives from another"
        assert family.__doc__
        assert kinds() & {*family.model_types, *family.architectures}, "the catalogue has a model of each family"


def test_no_two_families_read_the_same_kind():
    every = [family for classes in modules().values() for family in classes]
    claimed = [kind for family in every for kind in (*family.model_types, *family.architectures)]
    assert sorted(claimed) == sorted(known_families())
    assert len(claimed) == len(set(claimed))


def test_a_family_is_the_same_by_its_source_and_among_all():
    """Each kind stands in the source of the module of its family, which is imported alone."""
    assert {kind: family_named(kind) for kind in known_families()} == known_families()
    assert family_named("") is family_named("no_such_kind") is None


@each_model
def test_parameters_and_bytes(name):
    model = st.load_model(name)
    total, active = total_parameters(model), active_parameters(model)
    assert 0 < active <= total < math.inf
    assert total == int(total), "parameters are counted, not estimated"
    assert 0.4 * total < weight_bytes(model) <= 4 * total
    assert model.depth == sum(n for _, n in model.layers) > 0
    assert hash(model.layers) == hash(st.load_model(name).layers)
    routed = any(layer.routed for layer, _ in model.layers)
    stored_only = sum(op.total_weights for op in model.stem if op.rows == "none")
    assert routed or active == total - stored_only, "a dense model uses all it has but what only sees images"
    assert not routed or active < total - stored_only


@each_model
def test_the_cache_grows_linearly_or_stays_bounded(name):
    model = st.load_model(name)
    windows = [a.window * a.stride for layer, _ in model.layers for a in layer.attention if math.isfinite(a.window)]
    start = 2 * max(windows, default=1.0)
    context = start * np.arange(1.0, 6.0)
    cache = np.broadcast_to(cache_bytes(model, context), context.shape)
    step = growing_kv_bytes_per_token(model) * start
    assert np.diff(cache) == pytest.approx(np.full(4, step), rel=1e-9)
    assert cache[0] <= kv_bytes_per_token(model) * start + state_bytes(model) + 1e-6
    assert growing_kv_bytes_per_token(model) <= kv_bytes_per_token(model)
    assert np.all(np.diff(np.broadcast_to(cache_bytes_read(model, context), context.shape)) >= 0)
    assert kv_bytes_per_token(model) + state_bytes(model) > 0, "a model remembers what it has read"


@each_model
def test_flops_are_twice_what_a_token_multiplies_by(name):
    """Each active parameter is multiplied and added once: all but tables, norms, biases and towers.

    Where operators run several times a token (projections of several residual streams), FLOPs are more; never less.
    """
    model = st.load_model(name)
    ops = [(op, n) for layer, n in model.layers for op in layer.ops] + [(op, 1) for op in model.stem]
    multiplied = sum(n * op.active_weights for op, n in ops if op.rows not in ("lookup", "none") and op.flops_per_row)
    assert decode_flops_per_token(model, 1.0) >= matmul_flops_per_token(model) >= 1.98 * multiplied
    idle = sum(n * op.active_weights for op, n in ops if op.rows in ("lookup", "none") or not op.flops_per_row)
    assert active_parameters(model) == pytest.approx(multiplied + idle)
    assert idle < 0.75 * active_parameters(model), "an operator without FLOPs is a table, a norm or a tower"
    assert float(decode_flops_per_token(model, 2e5)) >= float(decode_flops_per_token(model, 2e3))


@pytest.mark.thorough
@each("name", NAMES)
def test_a_prompt_costs_its_decode_steps_in_matrices(name):
    model, tokens = st.load_model(name), 64
    head = sum(op.flops_per_row for op in model.stem if op.rows == "outputs")
    matrices = matmul_flops_per_token(model, logits=False) * tokens + head
    prompt = float(prefill_flops(model, tokens))
    assert prompt >= matrices
    apart = float(prefill_flops(model, 40)) + float(prefill_flops(model, tokens - 40, 40))
    expanded = sum(n * a.expand_flops * 40 for layer, n in model.layers for a in layer.attention)
    assert apart == pytest.approx(prompt + head + expanded, rel=1e-9), "a prompt in two chunks does the same work"


@pytest.mark.thorough
@each("name", NAMES)
def test_shards_sum_to_at_least_the_whole(name):
    model, system = st.load_model(name), st.load_system("hgx-h200")
    options = [m for m in legal(model, system, 8) if int(m.chips) == 8]
    for layout in (Layout(), *options[:: max(1, len(options) // 3)]):
        shards = float(weights_per_chip(model, layout)) * int(layout.chips)
        assert shards >= weight_bytes(model) * (1 - 1e-9), layout


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt-oss-120b"])
def test_a_format_of_latents_is_refused_where_there_is_no_latent(name):
    with pytest.raises(st.InputError, match="kv: 'fp8_ds_mla' needs multi-head latent"):
        st.load_model(name, kv="fp8_ds_mla")
