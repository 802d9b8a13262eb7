"""Damaged configs: each is refused with an error that names the cause, or read as a model whose figures make sense."""

from __future__ import annotations

import copy
import json
import math
import random
import string
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Any

import pytest

from steptime.errors import InputError
from steptime.models import model as counted
from steptime.models.model_loading import read_model
from tests.conftest import each
from tests.fuzz.damage import in_time

SECONDS = 10.0
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
KV_FORMATS = ("", "", "", "fp8", "fp8_ds_mla")
JUNK: tuple[Any, ...] = (
    None, -1, 0, 1, 2, 3, 7, 999, 10**6, 10**9, 10**18, 10**400, 0.5, -0.0, 1e308, math.nan, math.inf, -math.inf,
    True, False, "", "7", "text", "bfloat16", "*", "re:(", "re:.*", [], [0], [None], ["full_attention"], [[1]], {}, {"a": 1},
    {"model_type": "llama"}, (1, 2), b"bytes", 1j,
)  # fmt: skip


@cache
def configs() -> dict[str, list[dict[str, Any]]]:
    """Return the configs of the catalogue by model_type."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted((files("steptime") / "data" / "models").iterdir(), key=lambda path: path.name):
        if path.name.endswith(".json"):
            config = json.loads(path.read_text())["config"]
            found.setdefault(str(config.get("model_type")), []).append(config)
    return found


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every field and of some items of each list."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield (*path, key)
            yield from places(value, (*path, key))
    elif isinstance(node, list) and node:
        for index in sorted({0, len(node) // 2, len(node) - 1}):
            yield (*path, index)
            yield from places(node[index], (*path, index))


def shortened(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config with few layers, so that many cases take little time; lists keep their length."""
    return {
        key: shortened(value)
        if isinstance(value, dict)
        else min(value, 5)
        if key in DEPTHS and isinstance(value, int)
        else value
        for key, value in config.items()
    }


def changed(value: Any, rng: random.Random) -> Any:
    """Return a value that is wrong in kind or in size, or merely odd."""
    changes: list[Callable[[], Any]] = [lambda: copy.deepcopy(rng.choice(JUNK))] * 3
    if isinstance(value, bool):
        changes += [lambda: not value, lambda: str(value)]
    elif isinstance(value, int | float):
        changes += [
            lambda: -value,
            lambda: value * 1000,
            lambda: value + 1,
            lambda: max(-1e300, min(value, 1e300)) * 1.0,
            lambda: str(value),
            lambda: [value],
        ]
    elif isinstance(value, str):
        changes += [
            lambda: value[:-1],
            lambda: value + "x",
            lambda: [value],
            lambda: "".join(rng.choices(string.printable, k=8)),
        ]
    elif isinstance(value, list):
        changes += [
            lambda: value[: rng.randrange(len(value) + 1)],
            lambda: value * 2,
            lambda: {"0": value},
            lambda: value[::-1],
        ]
        changes += [lambda: [*value[:1], "unknown_kind", *value[1:]], lambda: [str(item) for item in value]]
    elif isinstance(value, dict):
        changes += [lambda: {}, lambda: list(value), lambda: dict(list(value.items())[: len(value) // 2]), lambda: {"x": value}]
    return rng.choice(changes)()


def damaged(config: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return the config with one to three fields removed or changed at any depth, or one that does not belong there."""
    config = copy.deepcopy(config)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        every = list(places(config))
        if not every:
            return config
        path = rng.choice([path for path in every if len(path) == 1] if rng.random() < 0.5 else every)
        parent = config
        for step in path[:-1]:
            parent = parent[step]
        kind = rng.random()
        if kind < 0.2:
            del parent[path[-1]]
        elif kind < 0.25 and isinstance(parent, dict):
            parent[str(path[-1]) + rng.choice(("_", "s", "_2"))] = parent.pop(path[-1])
        elif kind < 0.3 and isinstance(parent, dict):
            other = rng.choice([key for family in configs().values() for key in rng.choice(family)])
            parent[other] = copy.deepcopy(rng.choice(JUNK))
        else:
            parent[path[-1]] = changed(parent[path[-1]], rng)
    return config


def check(config: dict[str, Any], kv_format: str = "") -> bool:
    """Hold one config to the promise; return whether it was read as a model."""
    with in_time(SECONDS):
        try:
            model = read_model(config, kv_format=kv_format)
        except InputError as error:
            message = str(error)
            assert len(message) > 20, message
            assert "'" in message or '"' in message, message
            return False
    total, active = counted.total_parameters(model), counted.active_parameters(model)
    assert math.isfinite(total), total
    assert 0 < active <= total, (active, total)
    assert 0 < counted.weight_bytes(model) < math.inf
    assert 0 <= counted.kv_bytes_per_token(model) < math.inf
    assert 0 <= counted.cache_bytes(model, 4096.0) < math.inf
    assert 0 < counted.decode_flops_per_token(model, 4096.0) < math.inf
    assert model.depth > 0
    assert isinstance(hash(model.layers), int)
    return True


def cases(kind: str, count: int, *, short: bool) -> None:
    """Check `count` damaged configs of one model_type; a failure prints the config that caused it."""
    rng = random.Random(f"{kind} {count} {short}")
    for case in range(count):
        config = rng.choice(configs()[kind])
        config = damaged(shortened(config) if short or rng.random() < 0.8 else config, rng)
        try:
            check(config, rng.choice(KV_FORMATS))
        except Exception as error:
            raise AssertionError(f"{kind}, case {case}: {error!r}\n{config!r}") from error


@each("kind", sorted(configs()))
def test_a_damaged_config_is_refused_by_name_or_read(kind: str) -> None:
    cases(kind, 5, short=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(configs()))
def test_many_damaged_configs_are_refused_by_name_or_read(kind: str) -> None:
    cases(kind, math.ceil(12_000 / len(configs())), short=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(configs()))
def test_every_field_may_be_absent_null_or_wrong(kind: str) -> None:
    config = shortened(configs()[kind][0])
    for path in [path for path in places(config) if isinstance(path[-1], str)]:
        for value in (*JUNK, ...):
            broken = copy.deepcopy(config)
            parent = broken
            for step in path[:-1]:
                parent = parent[step]
            if value is ...:
                del parent[path[-1]]
            else:
                parent[path[-1]] = value
            try:
                check(broken)
            except Exception as error:
                raise AssertionError(f"{kind}: {path} = {value!r:.60}: {error!r}") from error


def test_the_configs_of_the_catalogue_are_read_as_they_are() -> None:
    families = {kind: [check(shortened(config)) for config in found[:1]] for kind, found in configs().items()}
    assert len(families) > 50
    assert all(read for kind, found in families.items() for read in found)


@each("junk", [*({"model_type": value} for value in JUNK), {}, {"architectures": 3}, {"architectures": [1, None]}])
def test_what_is_no_config_at_all_is_refused(junk: dict[str, Any]) -> None:
    assert not check(junk)


@each("field", ["hidden_size", "num_hidden_layers", "layer_types", "quantization_config", "torch_dtype"])
def test_a_number_too_long_to_print_is_refused(field: str) -> None:
    for config in (found[0] for found in configs().values()):
        check({**shortened(config), field: 10**5000})


def test_a_kind_or_name_that_is_a_number_too_long_to_print_is_refused_or_passed_over() -> None:
    for config in (shortened(found[0]) for found in configs().values()):
        assert not check({**config, "model_type": 10**5000, "architectures": None})
        assert check({**config, "_name_or_path": 10**5000})
    assert not check({"model_type": 10**5000, "architectures": [10**5000]})
    assert not check({"model_type": "x" * 10**6})


HOSTILE = (
    "re:(a+)+$", "re:(a|a)*b", "re:(.*)*x", "re:(.*.*)*x", "re:" + "a?" * 40 + "a" * 40, "re:" + "(.|.)" * 40 + "x",
    "re:" + ".*" * 30 + "x", "re:" + "(" * 500 + ")" * 500, "re:((.{1,90}){1,90}){1,90}x", "re:a**", "re:(", "re:[", "re:\\",
    "re:" + "x" * 10**5, "*" * 10**5, "re:(?=(.*)*)x",
)  # fmt: skip
"""Patterns on which Python's matcher takes exponential time, or which are none."""


@each("pattern, field", list(product(HOSTILE, ["modules_to_not_convert", "quantized_layers"])))
def test_a_pattern_that_would_take_long_is_refused(pattern: str, field: str) -> None:
    config = shortened(configs()["deepseek_v3"][0])
    listed = {pattern: {"quant_algo": "FP8"}} if field == "quantized_layers" else [pattern]
    assert not check({**config, "quantization_config": {"quant_method": "fp8", field: listed}})


@pytest.mark.thorough
def test_many_slow_patterns_end_in_an_error() -> None:
    config = shortened(configs()["deepseek_v3"][0])
    slow = [f"re:.*.*.*{n}x" for n in range(20_000)]
    assert not check({**config, "quantization_config": {"quant_method": "fp8", "modules_to_not_convert": slow}})


def test_many_plain_patterns_are_read() -> None:
    config = configs()["deepseek_v3"][0]
    many = [f"layers.{n}.elsewhere" for n in range(100_000)] + [f"layers.{n}.self_attn*" for n in range(61)]
    assert check({**config, "quantization_config": {"quant_method": "fp8", "modules_to_not_convert": many}})
