"""Reads a model from the code of transformers, without weights.

The module tree is built without weights, and two prompts run through it. This is the generic way for architectures
without a family, and the reference for the tests of families. The parameters equal those of the code by construction. A
family remains the readable description of an architecture.

Tensors are on the meta device, which computes only shapes. Two prompts of different lengths separate the parts that
grow with tokens ($a$), with pairs ($b$) and with neither: $F(n) = a n + b n^2$ for FLOPs, $s + g n$ for the values of a
cache.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from steptime.errors import InputError, install_hint, short_repr
from steptime.models.config import Config
from steptime.models.family_registry import refuse
from steptime.models.model import Attention, Checkpoint, Layer, Model, Op, matmul_flops_per_token, stored_formats
from steptime.units import percent_change

# Names of the number of experts per token.
TOP_K_FIELDS: Final = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_k", "moe_top_k")
# Names of modules with experts, shared experts, and token mixers.
EXPERT: Final = re.compile(r"expert", re.IGNORECASE)
SHARED: Final = re.compile(r"shared", re.IGNORECASE)
MIXER: Final = re.compile(r"attn|attention|mixer|mamba|conv|rec|time_mix|temporal|mlstm", re.IGNORECASE)
# Parameters of a recurrent state that are not used in a matrix multiply.
DECAY: Final = re.compile(r"A(_log)?$|D$|dt_bias$")
# Fields of caches with entries of many tokens.
COMPRESSED: Final = re.compile(r"compress")
# Tokens of the two prompts.
SHORT, LONG = 8, 16
# Operators of PyTorch that are counted as matrix multiplies.
PLAIN: Final = ("mm", "addmm", "bmm", "baddbmm")
AGREES: Final = 0.01
"""Relative difference between traced FLOPs and FLOPs of the modules above which a note reports it."""


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of a module in a prompt: number, and rows per token."""

    count: int
    rows: float


@dataclass(frozen=True, slots=True)
class LayerCache:
    """The cache of one layer.

    per_token: values per token. heads: KV heads. state_bytes: bytes that do not grow with tokens. window: tokens.
    """

    per_token: float = 0.0
    heads: int = 1
    state_bytes: float = 0.0
    window: float = float("inf")


@dataclass(frozen=True)
class Trace:
    """The result of two prompts, by name of module."""

    calls: Mapping[str, Calls]
    # FLOPs of matrix multiplies per token, with those of children.
    per_token: Mapping[str, float]
    # FLOPs of matrix multiplies per pair of tokens, with those of children.
    per_pair: Mapping[str, float]
    caches: tuple[LayerCache, ...]

    def exclusive_flops(self, name: str, children: tuple[str, ...]) -> float:
        """Return the FLOPs per token of a module without its children.

        Args:
            name: Full name of the module.
            children: Full names of its children.

        Returns:
            FLOPs per token.
        """
        return self.per_token.get(name, 0.0) - sum(self.per_token.get(child, 0.0) for child in children)


@dataclass(frozen=True)
class Tree:
    """A module tree with its trace."""

    c: Config
    model: Any
    trace: Trace
    # Name of the list of layers.
    container: str
    # Name of the module of the logits.
    head: str

    def children(self, name: str) -> tuple[str, ...]:
        """Return the full names of a module's children.

        Args:
            name: Full name of the module.

        Returns:
            The names.
        """
        module = self.model.get_submodule(name)
        return tuple(f"{name}.{child}".lstrip(".") for child, _ in module.named_children())


def read_from_code(fields: Mapping[str, Any], *, name: str, kv_format: str = "", trusted_place: str = "") -> Model:
    """Return the model that transformers builds from the fields of a config.json.

    Args:
        fields: Fields of the config.
        name: Name of the model.
        kv_format: Number format of the KV cache; "": the config's.
        trusted_place: Folder or Hugging Face id whose code may run; "": none. Places in a config are never used.

    Returns:
        The model, with notes about the trace.

    Raises:
        InputError: transformers is missing or lacks the architecture, or its code cannot be traced.
    """
    c = Config(fields, name=name, kv_format=kv_format)
    refuse(c)
    if unseen := sorted(key for key in c.language.fields if COMPRESSED.search(key)):
        raise c.error(unseen[0], "compresses many tokens into one cache entry; the traced prompts are too short for it")
    torch, transformers = _torch_and_transformers()
    model, tree_trace = _traced_model(torch, transformers, fields, trusted_place)
    tree = Tree(c.language, model, tree_trace, _container(model), _head(model))
    if not tree_trace.caches and any(
        flops > 0 and "attention" in _class(tree, module).lower() for module, flops in tree_trace.per_pair.items()
    ):
        raise InputError(
            f"{type(model).__name__} has attention but returns no cache, so the bytes of the cache cannot be read from code"
        )

    layers, stem, active = _ops(tree)
    model_read = Model(
        name=name,
        family=f"{c.text('model_type', default=type(model).__name__)}, read from code",
        layers=tuple(Counter(layers).items()),
        stem=stem,
        width=tree.c.width,
        vocabulary=tree.c.vocabulary,
        heads=_count(tree.c, ("num_attention_heads", "n_head", "num_heads", "n_heads"), 1),
        max_context=_count(tree.c, ("max_position_embeddings", "n_positions", "seq_length"), 0) or math.inf,
        kv_format=kv_format or c.quantization.kv_format or "bf16",
        kv_told=bool(kv_format or c.quantization.kv_format),
    )
    dense, routed = stored_formats(model_read)
    checkpoint = Checkpoint(
        weights=dense, experts=routed, kv=c.quantization.kv_format or "bf16", remote_code="auto_map" in fields
    )

    return replace(model_read, checkpoint=checkpoint, notes=_notes(transformers, tree, model_read, active))


def _torch_and_transformers() -> tuple[Any, Any]:
    try:
        import torch
        import transformers
    except ImportError as problem:
        raise InputError(
            f"reading a model from code needs PyTorch and transformers, but {problem.name} is missing; "
            f"use {install_hint('code')}"
        ) from None
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call, unused-ignore]
    return torch, transformers


def _traced_model(torch: Any, transformers: Any, fields: Mapping[str, Any], trusted_place: str) -> tuple[Any, Trace]:
    """Build the model without weights and run its prompts.

    They run on the meta device. If the code needs the values of tensors that it made itself, they run with fake
    tensors, which have only shapes.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    fake = FakeTensorMode(allow_non_fake_inputs=True)
    devices: tuple[Callable[[], AbstractContextManager[Any]], ...] = (lambda: torch.device("meta"), lambda: fake)
    refused: InputError | None = None
    for device in devices:
        model = _built(transformers, fields, trusted_place, device)
        try:
            return model, trace(torch, model, device)
        except InputError as problem:
            refused = refused or problem
    raise refused or InputError("the code cannot be traced")


def _as_json(value: Any) -> Any:
    """Return a value of a config.json in Python, with infinities that were tables."""
    if isinstance(value, Mapping):
        return float(value["__float__"]) if "__float__" in value else {key: _as_json(part) for key, part in value.items()}
    return [_as_json(part) for part in value] if isinstance(value, list) else value


def _check_code_places(fields: Any, place: str) -> None:
    """Check that every `auto_map` in a config takes code from the trusted place only.

    Raises:
        InputError: One takes it from another place.
    """
    if isinstance(fields, list):
        for part in fields:
            _check_code_places(part, place)
    elif isinstance(fields, Mapping):
        for key, value in fields.items():
            if key != "auto_map":
                _check_code_places(value, place)
                continue
            for reference in _texts(value):
                repository, dashes, _ = reference.partition("--")
                if dashes and repository != place:
                    raise InputError(
                        f"trust_remote_code: auto_map takes code from another repository, got {short_repr(reference)}; "
                        f"only the code of {short_repr(place)} is trusted"
                    )


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part)


def _built(
    transformers: Any, fields: Mapping[str, Any], trusted_place: str, device: Callable[[], AbstractContextManager[Any]]
) -> Any:
    trusted = bool(trusted_place)

    # A config must not say where code comes from, so fields that transformers takes as a place are left out.
    left_out = ("quantization_config", "auto_map", "_name_or_path", "name_or_path")
    plain = {key: _as_json(value) for key, value in fields.items() if key not in left_out}
    kind = plain.pop("model_type", None)
    if not isinstance(kind, str) or (kind not in transformers.CONFIG_MAPPING and not trusted):
        raise InputError(
            f"transformers {transformers.__version__} has no code for the architecture {str(kind)[:60]!r}; if the "
            "repository has its own code, load_model(..., trust_remote_code=True) runs it"
        )

    try:
        if kind in transformers.CONFIG_MAPPING:
            config = transformers.AutoConfig.for_model(kind, **plain)
        else:
            # transformers reads the config of the place itself, which may differ from `fields`.
            for config_fields in (fields, transformers.PretrainedConfig.get_config_dict(trusted_place)[0]):
                _check_code_places(config_fields, trusted_place)
            config = transformers.AutoConfig.from_pretrained(trusted_place, trust_remote_code=True)

        # A vision-language model without a causal class is built by its own class.
        seeing = type(config) in transformers.AutoModelForImageTextToText._model_mapping
        plainly = type(config) in transformers.AutoModelForCausalLM._model_mapping
        auto = transformers.AutoModelForImageTextToText if seeing and not plainly else transformers.AutoModelForCausalLM
        with device():
            model = auto.from_config(config, attn_implementation="eager", trust_remote_code=trusted).eval()
        if getattr(model, "_can_set_experts_implementation", bool)():
            # The shapes of this implementation do not depend on the routing.
            model.set_experts_implementation("batched_mm")
    except InputError:
        raise
    except Exception as problem:
        first = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise InputError(
            f"transformers {transformers.__version__} cannot build {kind} from this config: {first[:160]}"
        ) from None

    return model


def _container(model: Any) -> str:
    """Return the name of the list of layers, the list with the most parameters."""
    lists = {name: module for name, module in model.named_modules() if type(module).__name__ == "ModuleList"}
    if not lists:
        raise InputError(f"the code of {type(model).__name__} has no list of layers")
    outer = [name for name in lists if not any(name.startswith(f"{parent}.") for parent in lists)]
    return str(max(outer, key=lambda name: sum(p.numel() for p in lists[name].parameters())))


def _head(model: Any) -> str:
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    return next((str(name) for name, module in model.named_modules() if module is head and head is not None), "")


def _count(c: Config, names: tuple[str, ...], default: int) -> int:
    return int(next((c.fields[name] for name in names if isinstance(c.fields.get(name), int)), default))


def _ops(tree: Tree) -> tuple[list[Layer], tuple[Op, ...], float]:
    """Return the layers, the stem, and the traced FLOPs per token."""
    by_layer: dict[int, list[Op]] = {}
    stem: list[Op] = []
    parameter_ids: set[int] = set()

    # Modules that no prompt reaches come last, so shared weights are counted where they run.
    idle_last = sorted(tree.model.named_modules(), key=lambda entry: tree.trace.calls.get(entry[0]) is None)
    for name, module in idle_last:
        parameters = dict(module.named_parameters(recurse=False))
        fresh = {n: p for n, p in parameters.items() if id(p) not in parameter_ids}
        parameter_ids |= {id(p) for p in parameters.values()}
        if not parameters or (not fresh and name != tree.head and tree.trace.calls.get(name) is None):
            continue
        ops = _module_ops(tree, name, module, fresh if fresh and name != tree.head else parameters)
        if not fresh and name != tree.head:
            # An earlier block stores these weights.
            ops = [replace(op, stored=False) for op in ops]
        inside = re.match(re.escape(tree.container) + r"\.(\d+)\.?", name)
        (by_layer.setdefault(int(inside[1]), []) if inside else stem).extend(ops)

    depth = len(tree.model.get_submodule(tree.container))
    layers = [_layer(tree, index, tuple(by_layer.get(index, ())), depth) for index in range(depth)]
    traced = tree.trace.per_token.get("Global", 0.0)

    return layers, tuple(stem), traced


def _module_ops(tree: Tree, name: str, module: Any, parameters: Mapping[str, Any]) -> list[Op]:
    """Return the operators of one module's own parameters.

    A module that no prompt reaches belongs to a tower.
    """
    c, kind, size = tree.c, type(module).__name__, float(sum(p.numel() for p in parameters.values()))
    calls = tree.trace.calls.get(name)
    path = name.removeprefix("model.")
    base = Op(
        name=kind if name.rpartition(".")[2].isdecimal() or not name else name.rpartition(".")[2],
        term=_term(tree, name),
        weights=size,
        flops_per_row=0.0,
        format=c.weight_format(path),
        split="group",
    )
    inside = name.startswith(f"{tree.container}.")
    if calls is None and not (inside and any(tree.trace.calls.get(parent) for parent in _parents(name))):
        return [replace(base, term="vision", rows="none", split="replicated", active=0, format=c.base_format)]

    # An embedding looks up rows, which costs no FLOPs.
    if hasattr(module, "num_embeddings"):
        shared = bool(tree.head) and module.weight is tree.model.get_submodule(tree.head).weight
        # The head stores a shared matrix.
        weights = size - module.weight.numel() * shared
        table = replace(base, weights=weights, term="embedding", rows="lookup", format=c.base_format)
        return [replace(table, outputs=module.weight.shape[-1])]
    if name == tree.head:
        flops = 2.0 * module.weight.numel()
        return [replace(base, term="head", rows="outputs", flops_per_row=flops, inputs=c.width, outputs=c.vocabulary)]

    # Vectors, such as gains and biases, multiply no matrix.
    wide = [p for p in parameters.values() if p.ndim >= 2]
    if EXPERT.search(kind) and any(p.ndim == 3 for p in wide):
        return _experts(tree, name, base, parameters)
    if not wide or "norm" in kind.lower():
        norm = "norm" in kind.lower()
        return [replace(base, term="norms" if norm else base.term, split="replicated", format=c.base_format)]

    inputs = input_width(module)
    if (
        inputs
        and calls is not None
        and (kind in ("Linear", "Conv1D") or tree.trace.exclusive_flops(name, tree.children(name)) > 0)
    ):
        matrix = 2.0 * module.weight.numel()
        repeats = calls.count if calls.rows == calls.count else 1
        first = replace(
            base, flops_per_row=matrix * calls.rows / repeats, inputs=inputs, outputs=module.weight.numel() / inputs
        )
        return [first, *[replace(first, stored=False)] * (repeats - 1)]

    parent = _parents(name)[0] if "." in name else ""
    if (
        calls is None
        and inputs
        and tree.trace.exclusive_flops(parent, tree.children(parent)) >= 2 * module.weight.numel() * (1 - AGREES)
    ):
        # The parent multiplies by the weight of this module.
        return [replace(base, flops_per_row=2.0 * module.weight.numel(), inputs=inputs)]

    # Parameters of a state have two dimensions, but are used element by element.
    of_state = all(DECAY.match(n) for n, p in parameters.items() if p.ndim >= 2)
    traced = 0.0 if of_state else max(tree.trace.exclusive_flops(name, tree.children(name)), 0.0)

    return [replace(base, flops_per_row=traced, format=c.base_format)]


def _parents(name: str) -> list[str]:
    words = name.split(".")
    return [".".join(words[:end]) for end in range(len(words) - 1, 0, -1)][:1]


def _experts(tree: Tree, name: str, base: Op, parameters: Mapping[str, Any]) -> list[Op]:
    """Return routed experts, or a dense block if every token passes all of them."""
    count = min(p.shape[0] for p in parameters.values() if p.ndim == 3)
    expert_parameters = sum(p.numel() / p.shape[0] for p in parameters.values() if p.shape[0] >= count)
    matrices = sum(p.numel() / p.shape[0] for p in parameters.values() if p.ndim == 3)
    other_parameters = sum(p.numel() for p in parameters.values()) - expert_parameters * count
    traced = tree.trace.exclusive_flops(name, tree.children(name)) / (2 * matrices)
    if SHARED.search(name):
        return [replace(base, term="shared experts", flops_per_row=2 * matrices * traced)]

    # The trace counts experts that run; a config may name the number under several names.
    active = _count(tree.c, TOP_K_FIELDS, round(traced)) or traced
    routed = replace(
        base,
        name="experts",
        term="experts",
        weights=expert_parameters,
        flops_per_row=2 * matrices,
        rows="routed",
        split="experts",
        experts=count,
        active=min(active, count),
        inputs=tree.c.width,
        outputs=tree.c.width,
        format=tree.c.weight_format(f"{name.removeprefix('model.')}.0.up_proj"),
    )
    unused_ops = (replace(base, name="not used", weights=other_parameters, rows="none", active=0),) if other_parameters else ()

    return [routed, *unused_ops]


def _term(tree: Tree, name: str) -> str:
    inside = name.removeprefix(f"{tree.container}.").partition(".")[2] if name.startswith(tree.container) else name
    if EXPERT.search(inside):
        return "shared experts" if SHARED.search(inside) else "experts"
    if re.search(r"(^|\.)(router|gate)(\.|$)", inside):
        return "experts"
    return "projections" if MIXER.search(inside) or not name.startswith(tree.container) else "feed-forward"


def _layer(tree: Tree, index: int, ops: tuple[Op, ...], depth: int) -> Layer:
    """Return one layer: its operators, and its mixers from the traced cache."""
    caches = tree.trace.caches
    if len(caches) == 1 and depth > 1:
        # RWKV keeps one tensor for all layers.
        caches = (replace(caches[0], per_token=caches[0].per_token / depth, state_bytes=caches[0].state_bytes / depth),) * depth
    # Some layers have several caches, such as attention and convolution.
    caches_per_layer = len(caches) // depth if depth and len(caches) % depth == 0 else 0
    layer_caches = (
        caches[index * caches_per_layer : (index + 1) * caches_per_layer] if caches_per_layer else caches[index : index + 1]
    )
    name = f"{tree.container}.{index}"
    mixers = tuple(mixer for cache in layer_caches for mixer in _mixers(tree, name, cache, len(layer_caches)))
    module = tree.model.get_submodule(name)
    window = next((f", window {m.window:.0f}" for m in mixers if math.isfinite(m.window)), "")
    return Layer(name=f"{type(module).__name__}{window}", ops=ops, attention=mixers)


def _mixers(tree: Tree, name: str, cache: LayerCache, sharing: int) -> tuple[Attention, ...]:
    c, mixers = tree.c, []
    if cache.per_token:
        pair = _pair_flops(tree, name) / max(sharing, 1)
        decode, expand = pair, 0.0
        rank, rotary = (_count(c, (n,), 0) for n in ("kv_lora_rank", "qk_rope_head_dim"))
        heads = _count(c, ("num_attention_heads", "n_head", "num_heads"), 1)
        if rank and cache.per_token == rank + rotary:
            # Absorbed decode, see `blocks.latent`.
            decode = 2.0 * heads * (2 * rank + rotary)
            expand = 2.0 * rank * heads * (_count(c, ("qk_nope_head_dim",), 0) + _count(c, ("v_head_dim",), 0))
        mixers.append(
            Attention(
                name="attention",
                kv_bytes=cache.per_token * c.kv_format.bytes,
                kv_shards=cache.heads,
                flops_per_pair_decode=decode,
                flops_per_pair_prefill=pair,
                expand_flops=expand,
                window=cache.window,
                heads=heads,
                query_values=pair / 4,
                output_values=pair / 4,
                arithmetic=c.kv_format.arithmetic,
            )
        )
    if cache.state_bytes > 0:
        mixers.append(Attention(name="state", state_bytes=cache.state_bytes, heads=cache.heads))

    return tuple(mixers)


def _pair_flops(tree: Tree, name: str) -> float:
    """Return the FLOPs per pair of a layer's attention.

    They are those of modules named attention, or else of the whole layer.
    """
    inner = [n for n in tree.trace.per_pair if n.startswith(f"{name}.") and "attention" in _class(tree, n).lower()]
    top = [n for n in inner if not any(n.startswith(f"{parent}.") for parent in inner)]
    return max(sum(tree.trace.per_pair[n] for n in top) if top else tree.trace.per_pair.get(name, 0.0), 0.0)


def _class(tree: Tree, name: str) -> str:
    try:
        return type(tree.model.get_submodule(name)).__name__
    except AttributeError:
        return ""


def _notes(transformers: Any, tree: Tree, model: Model, traced: float) -> tuple[str, ...]:
    summary = f"read from code: {type(tree.model).__name__} of transformers {transformers.__version__}, without weights"
    counted_flops = matmul_flops_per_token(model)
    deviation = traced / counted_flops - 1 if counted_flops else 0.0
    checked = "the FLOPs of a traced prompt agree with its matrices"
    if abs(deviation) > AGREES:
        change = percent_change(deviation)
        checked = f"the FLOPs of a traced prompt differ by {change} from its matrices, because mixers run as matrices"
    return (
        f"{summary}; {checked}",
        "states and convolutions are counted in bytes, not in FLOPs; chips can share KV heads only",
    )


def trace(torch: Any, model: Any, device: Callable[[], AbstractContextManager[Any]]) -> Trace:
    """Run two prompts through a model without weights.

    Args:
        torch: The module torch.
        model: The module tree.
        device: Makes the context in which tensors have no values.

    Returns:
        The trace.

    Raises:
        InputError: The code needs the values of tensors, or fails.
    """
    short, long = (_run(torch, model, device, tokens) for tokens in (SHORT, LONG))
    names = short[1].keys() | long[1].keys()

    # Solve F(n) = a n + b n^2 for the two lengths.
    pairs = {n: (long[1].get(n, 0) - LONG / SHORT * short[1].get(n, 0)) / (LONG**2 - SHORT * LONG) for n in names}
    tokens = {n: short[1].get(n, 0) / SHORT - SHORT * pairs[n] for n in names}
    caches = tuple(_cache(*both) for both in zip(short[2], long[2], strict=True))
    return Trace(calls=short[0], per_token=tokens, per_pair=pairs, caches=caches)


def _run(
    torch: Any, model: Any, device: Callable[[], AbstractContextManager[Any]], tokens: int
) -> tuple[dict[str, Calls], dict[str, float], list[dict[str, Any]]]:
    from torch.utils.flop_counter import FlopCounterMode

    calls: dict[str, Calls] = {}
    counter = FlopCounterMode(display=False)
    try:
        with _counted(model, calls, tokens), torch.no_grad(), device(), counter:
            prompt = torch.zeros(1, tokens, dtype=torch.long)
            output = model(prompt, use_cache=True)
    except Exception as problem:
        first = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise InputError(
            f"the code of {type(model).__name__} cannot be traced without weights; it needs the values of tensors or fails: "
            f"{first[:160]}"
        ) from None

    prefix = f"{type(model).__name__}."
    flops: dict[str, float] = {}
    for name, by_operator in counter.get_flop_counts().items():
        module = name.removeprefix(prefix)
        flops[module] = sum(n for operator, n in by_operator.items() if str(operator).rpartition(".")[2] in PLAIN)

    return calls, flops, _layers(torch, output)


@contextmanager
def _counted(model: Any, calls: dict[str, Calls], tokens: int) -> Iterator[None]:
    """Count the calls of every module, and the rows of modules with a weight."""

    def count(name: str, inputs: float) -> Callable[..., None]:
        def hook(_module: Any, positional: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            first = next((v for v in (*positional, *keywords.values()) if hasattr(v, "numel")), None)
            rows = first.numel() / inputs if first is not None and inputs else float(tokens)
            # A module may run several times in a prompt.
            before = calls.get(name, Calls(0, 0.0))
            calls[name] = Calls(before.count + 1, before.rows + rows / tokens)

        return hook

    handles = [
        module.register_forward_pre_hook(count(name, input_width(module)), with_kwargs=True)
        for name, module in model.named_modules()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def input_width(module: Any) -> int:
    """Return the input values per row of a module.

    Args:
        module: A PyTorch module.

    Returns:
        Values; 0 if its weight is not a matrix that multiplies the input.
    """
    weight = getattr(module, "weight", None)
    if weight is None or getattr(weight, "ndim", 0) != 2 or hasattr(module, "num_embeddings"):
        return 0
    return int(weight.shape[0] if type(module).__name__ == "Conv1D" else weight.shape[1])


def _layers(torch: Any, output: Any) -> list[dict[str, Any]]:
    """Return the tensors of each layer of a cache by name, and its window."""
    # Names of the cache in the outputs of transformers.
    names = ("past_key_values", "cache_params", "state")
    cache = next((getattr(output, name) for name in names if getattr(output, name, None) is not None), None)
    if cache is None:
        return []
    listed = getattr(cache, "layers", None)
    if listed is None:
        # The cache has one tensor per kind, each for all layers.
        parts = cache if isinstance(cache, list | tuple) else list(vars(cache).values())
        layers = {str(i): {"values": part} for i, part in enumerate(_tensors(torch, parts))}
        return [{"tensors": {f"{k}.{n}": v for k, t in layers.items() for n, v in t.items()}, "window": None, "all": True}]

    return [
        {
            "tensors": {str(i): value for i, value in enumerate(_tensors(torch, vars(layer)))},
            "heads": _heads(getattr(layer, "keys", None)),
            "position": sum(_position(getattr(layer, name, None)) for name in ("keys", "values")),
            "window": getattr(layer, "sliding_window", None),
        }
        for layer in listed
    ]


def _tensors(torch: Any, value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, Mapping):
        return [tensor for part in value.values() for tensor in _tensors(torch, part)]
    return [tensor for part in value for tensor in _tensors(torch, part)] if isinstance(value, list | tuple) else []


def _heads(keys: Any) -> int:
    return int(keys.shape[1]) if getattr(keys, "ndim", 0) == 4 else 1


def _position(stored: Any) -> float:
    """Return the values of one position of a cache.

    The axes of the cache are sequences, heads, positions and values.
    """
    return float(stored.numel() / stored.shape[-2]) if getattr(stored, "ndim", 0) == 4 and stored.shape[-2] else 0.0


def _cache(short: Mapping[str, Any], long: Mapping[str, Any]) -> LayerCache:
    per_token, state = 0.0, 0.0
    for name, tensor in long["tensors"].items():
        before = short["tensors"].get(name)
        values = before.numel() if before is not None else 0
        grown = (tensor.numel() - values) / (LONG - SHORT)
        per_token += grown
        state += (values - grown * SHORT) * tensor.element_size()
    window = long["window"]
    if window and long["position"]:
        # The prompts may be shorter than the window, so the values per position are taken.
        return LayerCache(long["position"], long["heads"], 0.0, float(window))
    return LayerCache(per_token, long.get("heads", 1), state)
