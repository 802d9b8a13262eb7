"""Turns a config.json into a `Model`."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from steptime.catalog.data_files import (
    check_entry_name,
    entry_labels,
    find,
    is_dir,
    is_entry_name,
    is_file,
    is_name_of,
    list_aliases,
    looks_like,
    read_file,
)
from steptime.errors import (
    ConfigError,
    DataFileError,
    InputError,
    RangeError,
    UnknownName,
    did_you_mean,
    install_hint,
    os_problem,
    short_repr,
)
from steptime.models.config import LATENT_FP8_MIXED, Config
from steptime.models.family_registry import Family, family_named, known_families, refuse
from steptime.models.model import Model, default_experts, stored_formats, with_formats
from steptime.models.quantization import release_format
from steptime.models.release_names import SHAPE_NOTE, Release, find_release, parse_release
from steptime.units import counted

if TYPE_CHECKING:
    from steptime.models.safetensors_header import Headers

ModelLike = Model | str | os.PathLike[str] | Mapping[str, Any]


# Hugging Face ids: owner and model.
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
NO_DIFFUSION = "steptime has models that generate tokens (`steptime models` lists them)"
# Prefix of a name: read the model from the code of transformers.
CODE = "transformers:"
# Names of the longest context in configs.
CONTEXTS = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len")
KV_FORMATS = ("fp32", "bf16", "fp16", "fp8", "int8", "int4", "nvfp4", "mxfp8", "mxfp4", LATENT_FP8_MIXED)


def read_model(
    fields: Mapping[str, Any],
    *,
    name: str = "",
    kv_format: str = "",
    headers: Headers | None = None,
    renamed: Callable[[str], str] = str,
    lookups: set[str] | None = None,
) -> Model:
    """Return the model that a config.json describes.

    If the headers of its checkpoint are given, the formats and bytes are those of the files.

    Args:
        fields: Fields of the config.
        name: Name of the model; "": `_name_or_path` or `model_type` of the config.
        kv_format: Number format of the KV cache; "": the config's, or bf16.
        headers: Headers of the checkpoint.
        renamed: Maps a module name of the checkpoint to its name here.
        lookups: Set to which the names of all fields that were looked up are added.

    Returns:
        The model.

    Raises:
        ConfigError: A field is missing or wrong; the error names it.
        UnknownName: No family reads the architecture; the error lists the known families.
    """

    # A name from a file may contain characters that scripts must not repeat.
    names = (fields.get(key) for key in ("_name_or_path", "model_type"))
    name = name or next(filter(is_entry_name, names), "model")
    if kv_format and kv_format not in KV_FORMATS:
        raise UnknownName("KV format", kv_format, KV_FORMATS, "Known: " + ", ".join(KV_FORMATS) + ".")

    # The headers give the formats, so an unreadable quantization in the config does not matter.
    fields, doubts = (fields, ()) if headers is None else _reliable_fields(fields, name, headers)
    outer = Config(fields, name=name, kv_format=kv_format, lookups=lookups)
    _, family = find_family(outer)

    # Vision-language models nest the config of the language part.
    c = outer.language
    plain_layers, towers = tuple(family.iter_layers(c)), family.towers(outer)
    stem, draft = family.stem(c), family.draft(c)

    # Import late: most models have no towers, and come from the catalogue without files of weights.
    if towers:
        from steptime.models.blocks_vision import tower_op

        stem += tuple(map(tower_op, towers))
    model = Model(
        name=name,
        family=c.text("model_type", default=outer.text("model_type", default=type(family).__name__)),
        layers=tuple(Counter(plain_layers).items()),
        stem=stem,
        draft=draft,
        width=c.width,
        vocabulary=c.vocabulary,
        heads=family.heads(c),
        max_context=c.integer(*CONTEXTS) if any(c.has(field) for field in CONTEXTS) else math.inf,
        kv_format=kv_format or c.quantization.kv_format or "bf16",
        kv_told=bool(kv_format or c.quantization.kv_format),
        notes=(*family.notes(c), *doubts),
        towers=towers,
    )
    if headers is not None:
        from steptime.models.checkpoint import with_files

        model = with_files(model, plain_layers, headers, bits=_bits(c), rename=renamed)
    dense, routed = stored_formats(model)
    kv, code = c.quantization.kv_format or "bf16", "auto_map" in fields

    return replace(model, checkpoint=replace(model.checkpoint, weights=dense, experts=routed, kv=kv, remote_code=code))


def _bits(c: Config) -> int:
    """Return the bits of an integer if several share a word, from MLX's field or else."""
    mlx = c.raw("quantization", default=None)
    bits = mlx.get("bits") if isinstance(mlx, Mapping) else None
    return bits if bits in (2, 3, 4, 6, 8) else c.quantization.bits


def _reliable_fields(fields: Mapping[str, Any], name: str, headers: Headers) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return the fields without an unreadable quantization, and a note about it.

    The quantization may be left out only if the files give the formats.
    """
    if headers.missing:
        return fields, ()
    inner = fields.get("text_config")
    notes: tuple[str, ...] = ()
    if isinstance(inner, Mapping):
        believed, notes = _reliable_fields(inner, name, headers)
        fields = {**fields, "text_config": believed} if notes else fields
    try:
        Config(fields, name=name)
    except ConfigError as problem:
        other_fields = {key: value for key, value in fields.items() if key != "quantization_config"}
        return other_fields, (*notes, f"{problem}. The formats of the files are used")
    return fields, notes


def find_family(c: Config) -> tuple[str, Family]:
    """Return the kind of model of a config, and the family that reads it.

    Args:
        c: The config.

    Returns:
        Its `model_type`, or else one of its `architectures`; the family.

    Raises:
        ConfigError: The config names neither, or an architecture that is not a decoder.
        UnknownName: No family reads the kind; the error lists the nearest kinds.
    """
    architectures = c.fields.get("architectures")
    names = [c.fields.get("model_type"), *(architectures if isinstance(architectures, list) else ())]
    kinds = [name for name in names if isinstance(name, str) and name]
    for kind in kinds:
        if (family := family_named(kind) or known_families().get(kind)) is not None:
            return kind, family

    families = known_families()
    if not kinds and ("_diffusers_version" in c.fields or "_class_name" in c.fields):
        kind = short_repr(c.fields.get("_class_name", "diffusers"))
        raise c.error("_class_name", f"is {kind}: a diffusion model, which denoises images or video; {NO_DIFFUSION}")
    if not kinds:
        raise c.error(
            "model_type",
            f"is missing or not a text; it selects one of {len(families)} families, such as llama, qwen3_moe or deepseek_v3",
        )

    # An encoder gets a better message than an unknown architecture.
    refuse(c)
    hint = (
        f"The config of {c.name or 'the model'} names it; {len(families)} architectures are known. `steptime models --new "
        "CONFIG` guesses the nearest from the config's fields; transformers: before the path or id reads the model's code."
    )
    near = did_you_mean(kinds[0], families, cutoff=NEAR_ARCHITECTURE)
    raise UnknownName("architecture", kinds[0][:60], near, hint)


# Minimum similarity of an unknown architecture with one that a message names.
NEAR_ARCHITECTURE: Final = 0.7


def load_model(
    name: str | os.PathLike[str] | Mapping[str, Any],
    *,
    weights: str = "",
    experts: str = "",
    kv: str = "",
    catalog: str | os.PathLike[str] | None = None,
    via: str = "",
    trust_remote_code: bool = False,
) -> Model:
    """Return a model by name, Hugging Face id, path, or the fields of a config.json.

    A path is that of a config.json or its folder, or of a GGUF file. It may also be a safetensors file or index with a
    config.json in the same folder. If files of weights are there, their headers give the formats and exact bytes; the weights
    are not read.

    Args:
        name: Name of the catalogue, Hugging Face id, path, or dict of fields. "transformers:" before a name or path means
            `via="transformers"`.
        weights: Number format that replaces the config's, such as "fp8", "nvfp4" or "bf16"; "": the config's.
        experts: Number format of the routed experts; "": that of `weights` (with GGUF formats, MXFP4 experts stay).
        kv: Number format of the KV cache; "": the config's.
        catalog: Folder that is searched first; None: only the user's and the packaged folder.
        via: "transformers": read the model from the code of transformers, built without weights; "": read it with a family.
        trust_remote_code: Whether the code of the folder or id in `name` may run. Other places in a config are never
            trusted.

    Returns:
        The model.

    Raises:
        UnknownName: No entry has this name; the error lists the nearest names.
        ConfigError: A field of the config is missing or wrong; the error names it.
        DataFileError: A file is malformed; the error names the file and the line.
    """
    if not isinstance(name, str | os.PathLike | Mapping):
        raise RangeError(f"model: must be a name, a path or the fields of a config.json, got {short_repr(name)}")
    if isinstance(name, str) and not name.strip():
        raise RangeError("model: must be a name or a path, got an empty text")
    if isinstance(name, str) and name.startswith(CODE):
        name, via = name.removeprefix(CODE), "transformers"
    if via:
        model = _from_code(name, via, kv, catalog, trust_remote_code)
    elif isinstance(name, Mapping):
        model = read_model(name, kv_format=kv)
    else:
        model = _from_path(name, kv, catalog, is_format_given=bool(weights or experts))

    # The formats of the user replace those of the config.
    if weights or experts:
        dense = release_format(model.name, weights) if weights else None
        routed = release_format(model.name, experts or default_experts(model, weights))
        model = with_formats(model, weights=dense, experts=routed)

    return model


def _from_path(
    name: str | os.PathLike[str], kv_format: str, catalog: str | os.PathLike[str] | None, *, is_format_given: bool = False
) -> Model:
    """Return the model of a path or a name.

    The path may be a folder, a config, a file of weights next to a config, or a GGUF file. A name may be that of another
    release of a model in the catalogue.
    """
    path = Path(name)
    config, weights = _files_at(path)
    if config is None:
        from steptime.models.gguf_config import gguf_path, model_of_file
        from steptime.models.safetensors_header import signature

        gguf_file = gguf_path(path)
        return model_of_file(gguf_file, signature(gguf_file), kv_format)
    is_given = is_file(config)
    release: Release | None = None
    if not is_given:
        config, release = _config_path_by_name(str(name), catalog)
    if release is not None:
        model = _load(config, config.stat().st_mtime, kv_format or release.kv, config.parent, ())
        return _as_release(model, release, is_format_given)
    if config.name != "config.json":
        model = _load(config, config.stat().st_mtime, kv_format, config.parent, ())
        return model if is_given else _at_alias(model, config, str(name))

    # The cache of `_load` is keyed by the state of the files of weights, so changed files are read again.
    from steptime.models.safetensors_header import signature

    weights = weights or config.parent
    model = _load(config, config.stat().st_mtime, kv_format, weights, signature(weights))
    # The cache of Hugging Face names the folder by a hash, so the id is used as the name.
    return model if is_given else _with_place(replace(model, name=str(name)), str(name))


def _files_at(path: Path) -> tuple[Path | None, Path | None]:
    """Return the config of a folder, of a file of weights, or the path itself, and the file of weights or its index.

    There is no config for a GGUF file, or for a folder without a config.json, and no file of weights for other paths.

    Raises:
        DataFileError: A file of weights or its config is missing.
    """
    if is_dir(path):
        return (path / "config.json" if is_file(path / "config.json") else None), None
    if not path.name.endswith((".safetensors", ".safetensors.index.json")):
        return (None if path.suffix == ".gguf" else path), None
    config = path.parent / "config.json"
    if not is_file(path):
        raise DataFileError(path, "no such file")
    if not is_file(config):
        raise DataFileError(path, "has no config.json in its folder; the config is needed to assign the tensors")
    return config, path


def _from_code(
    name: str | os.PathLike[str] | Mapping[str, Any],
    via: str,
    kv_format: str,
    catalog: str | os.PathLike[str] | None,
    trusted: bool,
) -> Model:
    if via != "transformers":
        raise UnknownName("way to read a model", via, ("transformers",), "Known: transformers.")
    from steptime.models.from_transformers import read_from_code

    place = _trusted_place(name) if trusted else ""
    fields = name if isinstance(name, Mapping) else load_config_fields(name, catalog)
    # As in `read_model`: only safe names.
    config_name = next(filter(is_entry_name, (fields.get("_name_or_path"), fields.get("model_type"))), "model")
    label = config_name if isinstance(name, Mapping) else model_label(name)
    return read_from_code(fields, name=label, kv_format=kv_format, trusted_place=place)


def _trusted_place(name: str | os.PathLike[str] | Mapping[str, Any]) -> str:
    """Return the folder or Hugging Face id whose code the user trusts.

    Only the place that the user named is trusted.
    """
    if not isinstance(name, Mapping):
        folder = config_folder(name)
        if folder is not None:
            return str(folder.resolve())
        if isinstance(name, str) and HUB_ID.fullmatch(name) and not Path(name).exists():
            return name
    raise InputError(
        f"trust_remote_code: needs the place of the code, got {short_repr(name)}; give a folder with a config.json or a "
        "Hugging Face id such as owner/model"
    )


def model_label(name: str | os.PathLike[str]) -> str:
    """Return the name of a model that is given by path.

    Args:
        name: Path or name.

    Returns:
        The name of the folder, of the file if it is not called config.json, or `name` if there is no such path.
    """
    path = Path(name)
    if is_file(path) and path.name == "config.json":
        path = path.parent
    return path.resolve().name if is_dir(path) else path.stem if is_file(path) else str(name)


def config_folder(name: str | os.PathLike[str]) -> Path | None:
    """Return the folder of a model's config.json, which may contain its weights.

    Args:
        name: Path of a folder or a config.json, or a name.

    Returns:
        The folder; None if `name` is not such a path.
    """
    path = Path(name)
    path = path / "config.json" if is_dir(path) else path
    return path.parent if is_file(path) and path.name == "config.json" else None


def load_config_fields(name: str | os.PathLike[str], catalog: str | os.PathLike[str] | None = None) -> Mapping[str, Any]:
    """Return the fields of a model's config as its file has them.

    Args:
        name: Name of the catalogue, Hugging Face id or path, as for `load_model`.
        catalog: Folder that is searched first; None: only the user's and the packaged folder.

    Returns:
        The fields; for a GGUF file, the equivalent fields of a config.json.

    Raises:
        DataFileError: The file is malformed.
    """
    path = Path(name)
    config, _ = _files_at(path)
    if config is None:
        from steptime.models.gguf_config import fields_of_file, gguf_path

        return fields_of_file(gguf_path(path))
    data = _read_config(config if is_file(config) else _config_path_by_name(str(name), catalog)[0])
    fields = data.get("config", data)
    if not isinstance(fields, dict):
        raise DataFileError(config, "config: must be a table of fields")
    return fields


def resolve_model(model: ModelLike) -> Model:
    """Return a model as it is, or load it.

    Every public function accepts a model in these forms.

    Args:
        model: A model, or what `load_model` accepts.

    Returns:
        The model.

    Raises:
        InputError: `model` is of another type.
    """
    if isinstance(model, Model):
        return model
    if not isinstance(model, str | os.PathLike | Mapping):
        raise InputError(f"model: must be a name, a path, a dict or a Model, got {type(model).__name__}")
    return load_model(model)


def _read_config(path: Path) -> dict[str, Any]:
    """Return the content of a model's file.

    Raises:
        DataFileError: The file is neither JSON nor named like a TOML file.
    """
    if path.suffix not in (".json", ".toml"):
        try:
            with path.open("rb") as file:
                start = file.read(1000)
        except OSError as error:
            raise DataFileError(path, os_problem(error)) from None
        if not start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
            raise DataFileError(path, "is not a config.json, which begins with a brace; give a config.json or its folder")
    return read_file(path)


@lru_cache(maxsize=256)
def _load(path: Path, _modified: float, kv_format: str, weights: Path, file_stats: tuple[Any, ...]) -> Model:
    data = _read_config(path)
    if not data:
        raise DataFileError(path, "is empty; expected a model's config.json")
    kind = looks_like(data)
    if kind and "model" not in kind:
        raise DataFileError(path, f"is not a model's config.json: it looks like {kind}")

    # A plain config.json, not a file of the catalogue.
    if "config" not in data:
        in_folder = path.name == "config.json"
        headers: Headers | None = None
        if file_stats:
            from steptime.models.safetensors_header import read_headers

            headers = read_headers(weights, file_stats)
        read_fields: set[str] = set()
        name = path.parent.name if in_folder else path.stem
        model = read_model(data, name=name, kv_format=kv_format, headers=headers, lookups=read_fields)
        if note := _unread_note(data, read_fields):
            model = replace(model, notes=(*model.notes, note))
        return _with_place(model, str(path.parent.resolve())) if in_folder else model
    if not isinstance(data["config"], dict):
        raise DataFileError(path, "config: must be a table of fields")
    for key in ("source", "published", "remote_code"):
        if not isinstance(data.get(key, {}), dict):
            raise DataFileError(path, f"{key}: must be a table, got {short_repr(data[key])}")

    # A file of the catalogue: the config with its source and published figures.
    name = check_entry_name(data["name"], path) if "name" in data else path.stem
    model = read_model(data["config"], name=name, kv_format=kv_format)
    checkpoint = replace(
        model.checkpoint,
        remote_code=model.checkpoint.remote_code or bool(data.get("remote_code")),
        place=name if "/" in name else model.checkpoint.place,
    )
    return replace(model, source=data.get("source", {}), published=data.get("published", {}), checkpoint=checkpoint)


def _unread_note(fields: Mapping[str, Any], read_fields: set[str]) -> str:
    """Return a note about unread fields that may be architecture; "" without any."""
    from steptime.models.config_coverage import ignored_fields

    unread = [entry.name for entry in ignored_fields(fields, read_fields) if entry.doubtful]
    if not unread:
        return ""
    suffix = f" and {len(unread) - 4} more" if len(unread) > 4 else ""
    return (
        f"its config has {counted(len(unread), 'unread field')} that may be part of the architecture: "
        f"{', '.join(unread[:4])}{suffix}; `steptime models --new` shows the values"
    )


def _with_place(model: Model, place: str) -> Model:
    return replace(model, checkpoint=replace(model.checkpoint, place=place))


def _at_alias(model: Model, path: Path, name: str) -> Model:
    """Return a model of the catalogue with the checkpoint of an alias, such as the Instruct model of a base model.

    An alias of another name, such as a later version, gets a note.
    """
    alias = next((alias for alias in list_aliases(path) if "/" in alias and is_name_of(alias, name)), "")
    if not alias or is_name_of(model.name, name):
        return model
    is_other = not {*parse_release(model.name).core} <= {*parse_release(alias).core}
    notes = (f"{alias} has the shape of {model.name}", *model.notes) if is_other else model.notes
    return _with_place(replace(model, notes=notes), alias)


def _config_path_by_name(name: str, catalog: str | os.PathLike[str] | None) -> tuple[Path, Release | None]:
    """Return the config of a name, and the release where the config is that of another release of the model.

    Raises:
        UnknownName: There is no such entry, id or release, or entries with several shapes fit its name.
    """
    try:
        return find("models", name, catalog), None
    except UnknownName as unknown:
        # The config of the id itself comes before the entry of another release.
        fetched = fetch(name) if "/" in name else ""
        if isinstance(fetched, Path):
            return fetched, None
        if found_release := _find_release_path(name, catalog):
            return found_release
        if "/" not in name:
            raise
        hint = f"`steptime models` lists the catalogue; a path to a config.json works too, and {fetched}."
        raise UnknownName("model", name, unknown.nearest, hint) from None


def release_notes(names: Iterable[str], catalog: str | os.PathLike[str] | None = None) -> list[str]:
    """Return the models that stand for other releases of models in the catalogue.

    Args:
        names: Names as for `load_model`; repeated ones count once.
        catalog: Folder that is searched first; None: only the user's and the packaged folder.

    Returns:
        A note for each such name; the formats of the model are those that the user gave.

    >>> release_notes(["Qwen/Qwen3-32B", "Qwen/Qwen3-32B-AWQ"])
    ['Qwen/Qwen3-32B-AWQ: not in the catalogue; its shape is taken from Qwen/Qwen3-32B, by its name']
    """
    loaded = [(name, _from_path(name, "", catalog, is_format_given=True)) for name in dict.fromkeys(names)]
    return [note for name, model in loaded for note in model.notes[:1] if note.startswith(f"{name}: {SHAPE_NOTE}")]


def _find_release_path(name: str, catalog: str | os.PathLike[str] | None) -> tuple[Path, Release] | None:
    """Return the file with the shape of a release, and the release; None if the grammar of names does not lead to one.

    Raises:
        UnknownName: Entries with several shapes fit the name.
    """
    labels = entry_labels("models", catalog)
    release = find_release(name, labels)
    if release is None:
        return None
    paths = [find("models", entry, catalog) for entry in release.entries]
    models = [_load(path, path.stat().st_mtime, "", path.parent, ()) for path in paths]
    if any((model.layers, model.stem) != (models[0].layers, models[0].stem) for model in models):
        hint = f"Several shapes fit this name: {', '.join(release.entries)}; give one of them."
        raise UnknownName("model", name, release.entries, hint)
    return paths[0], release


def _as_release(model: Model, release: Release, is_format_given: bool) -> Model:
    """Return a model of the catalogue as another release of it, with a note.

    It has the name of the entry, so that measured acceptance lengths and runs of the entry apply.
    """
    checkpoint = model.checkpoint
    # Formats that the entry has are those of the name: an FP8 release of a model in FP8.
    if release.applies_format and release.weights == (checkpoint.experts or checkpoint.weights):
        release = replace(release, applies_format=False)
    if release.applies_format and not is_format_given:
        stored = release_format(model.name, release.weights)
        model = with_formats(model, weights=stored, experts=stored)
        checkpoint = replace(checkpoint, weights=stored.name, experts=checkpoint.experts and stored.name)
    if "/" in release.name:
        checkpoint = replace(checkpoint, place=release.name)
    return replace(
        model,
        checkpoint=checkpoint,
        notes=(release.note(model.name, is_format_given=is_format_given), *model.notes),
        max_context=math.inf if release.is_later else model.max_context,
    )


def fetch(name: str) -> Path | str:
    """Fetch the config.json of a Hugging Face id with `huggingface_hub`.

    Args:
        name: The id, owner/model.

    Returns:
        Path of the file in the cache of Hugging Face, or a text that explains why there is no file.
    """
    try:
        from huggingface_hub import errors, hf_hub_download
    except ImportError:
        return f"any Hugging Face id works with a network, after {install_hint('hub')}"

    # Special kinds of errors come before their base classes.
    reasons = {
        errors.GatedRepoError: "this one is gated: request access from its owner, and log in with `hf auth login`",
        errors.RepositoryNotFoundError: (
            "Hugging Face has no public repository of this name; for a private one, log in with `hf auth login`"
        ),
        errors.LocalEntryNotFoundError: "Hugging Face did not answer",
        errors.EntryNotFoundError: "this one has no config.json",
        errors.HFValidationError: "this name is not a valid id",
    }
    try:
        return Path(hf_hub_download(name, "config.json"))
    except Exception as error:
        # A network, a proxy or a full disk may raise many kinds of errors.
        failure = f"the request for this one failed with {type(error).__name__}"
        reason = next((text for kind, text in reasons.items() if isinstance(error, kind)), failure)
        return f"any Hugging Face id works, but {reason}"
