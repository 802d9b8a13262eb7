"""Reads the flags of serving engines from the sources of their released packages, and never imports one.

    python docs/engine_flags.py tests/golden/engine_flags vllm-*.whl sglang-*.whl ...

takes wheels, sdists or unpacked folders and writes one JSON file for each: version, programs with their flags, and the values
that a flag may have where they are counted up. What is understood: calls of `add_argument`, dataclass and pydantic fields whose
types are `Literal`s (vLLM), fields annotated with `Arg` (SGLang), click options and pydantic models (TensorRT-LLM).
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Sources = Mapping[str, ast.Module]
Flags = dict[str, list[str] | None]
WANTED = {
    "vllm": r"vllm/(config/.*|engine/arg_utils|entrypoints/common/cli_args|envs"
    r"|model_executor/layers/quantization/__init__)\.py",
    "sglang": r"sglang/srt/(arg_groups/(fields/.*|choices)|server_args|environ)\.py",
    "sglang_router": r"sglang_router/router_args\.py",
    "vllm_router": r"vllm_router/router_args\.py",
    "ai_dynamo": r"dynamo/((vllm|sglang|trtllm|frontend)/(backend_args|frontend_args)|profiler/utils/config)\.py",
    "tensorrt_llm": r"tensorrt_llm/(commands/serve|llmapi/llm_args)\.py",
}
# What launch commands set.
ENVIRONMENT = r"^(VLLM|SGLANG)_(\w*(DEEPEP|NIXL_SIDE|HICACHE_FILE_BACKEND_(STORAGE_DIR|MAX_SIZE))\w*|ROCM_USE_AITER)$"


# --- packages -----------------------------------------------------------------------------------------------------------


def members(place: Path) -> Iterator[tuple[str, str]]:
    """Yield the path inside its package and the text of each Python file of a wheel, an sdist or a folder."""
    if place.is_dir():
        for path in sorted(place.rglob("*.py")):
            yield str(path.relative_to(place)), path.read_text(encoding="utf-8")
    elif zipfile.is_zipfile(place):
        with zipfile.ZipFile(place) as wheel:
            for name in wheel.namelist():
                if name.endswith(".py"):
                    yield name, wheel.read(name).decode()
    else:
        with tarfile.open(place) as sdist:
            for entry in sdist:
                if entry.name.endswith(".py") and (stream := sdist.extractfile(entry)):
                    yield entry.name.partition("/")[2], stream.read().decode()


def name_and_version(place: Path) -> tuple[str, str]:
    """Return the package and the version in the name of a wheel, an sdist or a folder."""
    found = re.match(r"(?P<name>[A-Za-z_-]+?)-(?P<version>\d[\w.+]*)", place.name.removesuffix(".tar.gz"))
    if found is None:
        raise SystemExit(f"{place}: the name has no package and version, such as vllm-0.33.0-...whl")
    return found["name"].replace("-", "_").lower(), found["version"]


def read(place: Path, package: str) -> Sources:
    """Return the syntax trees of the files that hold a package's flags."""
    return {name: ast.parse(text) for name, text in members(place) if re.fullmatch(WANTED[package], name)}


# --- values -------------------------------------------------------------------------------------------------------------


def named_values(sources: Sources) -> dict[str, ast.expr]:
    """Return what module-level names stand for, over all files."""
    found: dict[str, ast.expr] = {}
    for tree in sources.values():
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                found[node.targets[0].id] = node.value
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
                found[node.target.id] = node.value
    return found


def counted_up(node: ast.expr | None, names: Mapping[str, ast.expr], depth: int = 0) -> list[str]:
    """Return the values that a type or a list of choices counts up: those of `Literal`s, and of names that stand for them."""
    if node is None or depth > 8:
        return []
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str) and "Literal" in node.value:
            return counted_up(ast.parse(node.value, mode="eval").body, names, depth + 1)
        return []
    if isinstance(node, ast.Name):
        held = names.get(node.id)
        return counted_up(held, names, depth + 1) or texts(held)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal":
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return [text for one in inner for text in (texts(one) or counted_up(one, names, depth + 1))]
    if isinstance(node, ast.Subscript | ast.BinOp | ast.Tuple):
        return [text for child in ast.iter_child_nodes(node) for text in counted_up(child, names, depth + 1)]  # type: ignore[arg-type]
    return []


def texts(node: ast.AST | None) -> list[str]:
    """Return the texts and numbers of a list, a tuple or one constant."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int) and not isinstance(node.value, bool):
        return [str(node.value)]
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [text for one in node.elts for text in texts(one)]
    return []


def flag_names(arguments: list[ast.expr]) -> list[str]:
    """Return the flags among a call's arguments; the prefix of an f-string is taken as empty."""
    found = []
    for node in arguments:
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
        if isinstance(text, str) and text.startswith("-"):
            found.append(text)
    return found


def keywords(call: ast.Call) -> dict[str, ast.expr]:
    """Return the named arguments of a call."""
    return {word.arg: word.value for word in call.keywords if word.arg}


def called(node: ast.AST, *names: str) -> bool:
    """Whether a node calls a function or method of one of the names."""
    target = node.func if isinstance(node, ast.Call) else None
    return getattr(target, "attr", getattr(target, "id", "")) in names


def fields_of(tree: ast.Module) -> dict[str, dict[str, ast.AnnAssign]]:
    """Return the annotated fields of each class of a file."""
    return {
        node.name: {
            line.target.id: line for line in node.body if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
        }
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }


def classes(sources: Sources) -> dict[str, dict[str, ast.AnnAssign]]:
    """Return the annotated fields of every class."""
    return {name: fields for tree in sources.values() for name, fields in fields_of(tree).items()}


def options(fields: Mapping[str, ast.AnnAssign], names: Mapping[str, ast.expr]) -> Flags:
    """Return the fields of a class with the values that their types count up."""
    return {name: counted_up(line.annotation, names) or None for name, line in fields.items() if not name.startswith("_")}


# --- engines ------------------------------------------------------------------------------------------------------------


def argparse_flags(sources: Sources) -> Flags:
    """Return the flags of every `add_argument`, with its choices."""
    names, found = named_values(sources), Flags()
    for tree in sources.values():
        for node in ast.walk(tree):
            if called(node, "add_argument", "add_negatable_bool_argument") and isinstance(node, ast.Call):
                given = keywords(node)
                named = flag_names([*node.args, *([given["flag_name"]] if "flag_name" in given else [])])
                for flag in named:
                    choices = texts(given.get("choices")) or counted_up(given.get("choices"), names)
                    found[flag] = choices or found.get(flag)
                    if called(node, "add_negatable_bool_argument"):
                        found[f"--no-{flag.removeprefix('--')}"] = None
    return found


def vllm(sources: Sources) -> dict[str, Any]:
    """vLLM: `add_argument("--flag", **kwargs["field"])`, with the values in the type of the field; frontends by field."""
    names, known = named_values(sources), classes(sources)
    found: Flags = {}
    for tree in sources.values():
        for node in ast.walk(tree):
            if called(node, "add_argument") and isinstance(node, ast.Call):
                for flag in flag_names(node.args):
                    found[flag] = _choices_of_field(node, known, names)
                    if _is_switch(node, known):
                        found[f"--no-{flag.removeprefix('--')}"] = None
    for name in ("BaseFrontendArgs", "FrontendArgs"):
        found |= {f"--{key.replace('_', '-')}": values for key, values in options(known[name], names).items()}
    found.pop("--", None)
    return {
        "programs": {"vllm serve": found},
        "objects": {
            "--eplb-config": options(known["EPLBConfig"], names),
            "--kv-transfer-config": options(known["KVTransferConfig"], names),
            "--quantization-config": options(known["QuantizationConfigArgs"], names),
            "--speculative-config": options(known["SpeculativeConfig"], names),
        },
        "environment": environment(sources),
    }


def _field_of(call: ast.Call, known: Mapping[str, Mapping[str, ast.AnnAssign]]) -> list[ast.AnnAssign]:
    """Return the fields of the name that a call's `**kwargs["name"]` asks for."""
    asked = [w.value.slice for w in call.keywords if w.arg is None and isinstance(w.value, ast.Subscript)]
    name = asked[0].value if asked and isinstance(asked[0], ast.Constant) else None
    return [fields[name] for fields in known.values() if name in fields]


def _choices_of_field(call: ast.Call, known: Any, names: Mapping[str, ast.expr]) -> list[str] | None:
    return next((values for line in _field_of(call, known) if (values := counted_up(line.annotation, names))), None)


def _is_switch(call: ast.Call, known: Any) -> bool:
    return any("bool" in ast.unparse(line.annotation) for line in _field_of(call, known))


def environment(sources: Sources) -> list[str]:
    """Return the environment variables that launch commands may set."""
    declared = {name for fields in classes(sources).values() for name in fields} | set(named_values(sources))
    for tree in sources.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.AnnAssign | ast.Assign):
                target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                declared.add(getattr(target, "id", ""))
    return sorted(name for name in declared if re.match(ENVIRONMENT, name))


def sglang(sources: Sources) -> dict[str, Any]:
    """SGLang: fields annotated `A[type, "help" or Arg(...)]`, and the calls of `add_argument`."""
    names, found = named_values(sources), argparse_flags(sources)
    for fields in classes(sources).values():
        for name, line in fields.items():
            note = line.annotation
            if isinstance(note, ast.Subscript) and isinstance(note.value, ast.Name) and note.value.id == "A":
                found |= _annotated(name, note, names)
    return {"programs": {"python -m sglang.launch_server": found}, "environment": environment(sources)}


def _annotated(name: str, note: ast.Subscript, names: Mapping[str, ast.expr]) -> Flags:
    kind, *rest = note.slice.elts if isinstance(note.slice, ast.Tuple) else [note.slice]
    given = keywords(rest[0]) if rest and isinstance(rest[0], ast.Call) else {}
    if "no_cli" in given:
        return {}
    values = texts(given.get("choices")) or counted_up(given.get("choices"), names) or counted_up(kind, names)
    flags = [*(texts(given.get("cli_name")) or [f"--{name.replace('_', '-')}"]), *texts(given.get("aliases"))]
    return dict.fromkeys(flags, values or None)


def tensorrt_llm(sources: Sources) -> dict[str, Any]:
    """TensorRT-LLM: click options of each command, and the fields of the pydantic models behind its options file."""
    names, known = named_values(sources), classes(sources)
    programs: dict[str, Flags] = {}
    for tree in sources.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                calls = [d for d in node.decorator_list if isinstance(d, ast.Call)]
                command = next((texts(d.args[0])[0] for d in calls if called(d, "command") and d.args), None)
                if command:
                    program = "trtllm-serve" if command == "serve" else f"trtllm-serve {command}"
                    programs[program] = {
                        flag: texts(next(iter(getattr(keywords(d).get("type"), "args", [])), None)) or None
                        for d in calls
                        if called(d, "option")
                        for flag in flag_names(d.args)
                    }
    objects = {name: options(known[name], names) for name in known if name in {"KvCacheConfig", "MoeConfig"} | TRTLLM_MODELS}
    return {"programs": programs, "objects": objects}


TRTLLM_MODELS = {"BaseLlmArgs", "TorchLlmArgs", "MoeLoadBalancerConfig", "CacheTransceiverConfig", "DecodingBaseConfig"} | {
    f"{name}DecodingConfig" for name in ("Eagle", "DraftTarget", "MTP")
}


def ai_dynamo(sources: Sources) -> dict[str, Any]:
    """NVIDIA Dynamo: its own flags of each worker, and the fields of a DynamoGraphDeployment."""
    known = classes(sources)
    programs = {
        f"python3 -m dynamo.{part}": argparse_flags({n: t for n, t in sources.items() if n.startswith(f"dynamo/{part}/")})
        for part in ("vllm", "sglang", "trtllm", "frontend")
    }
    manifest = {
        name: sorted("type" if field == "component_type" else field for field in known[name])
        for name in ("Config", "Metadata", "Spec", "Component", "MultinodeConfig", "PodTemplate", "PodSpec", "Container")
    }
    return {"programs": programs, "manifest": manifest}


def router(program: str) -> Any:
    """Return the reader of a router's flags."""
    return lambda sources: {"programs": {program: argparse_flags(sources)}}


READERS: dict[str, Any] = {
    "vllm": vllm,
    "sglang": sglang,
    "sglang_router": router("python -m sglang_router.launch_router"),
    "vllm_router": router("vllm-router"),
    "ai_dynamo": ai_dynamo,
    "tensorrt_llm": tensorrt_llm,
}


def compact(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return flags without counted values as one text, and those with as a table: short files that differ line by line."""
    programs = {
        program: {
            "free": " ".join(sorted(flag for flag, values in flags.items() if not values)),
            "counted": {flag: " ".join(dict.fromkeys(values)) for flag, values in sorted(flags.items()) if values},
        }
        for program, flags in found["programs"].items()
    }
    objects = {
        name: {field: " ".join(values or ()) for field, values in fields.items()}
        for name, fields in found.get("objects", {}).items()
    }
    return {**found, "programs": programs} | ({"objects": objects} if objects else {})


def main(words: list[str]) -> None:
    """Write the flags of each package that is named into the folder that is named first."""
    folder, *places = (Path(word) for word in words)
    for place in places:
        package, version = name_and_version(place)
        found = compact(READERS[package](read(place, package)))
        head = {"package": package, "version": version, "source": f"PyPI, {place.name}"}
        (folder / f"{package}.json").write_text(json.dumps(head | found, indent=1, sort_keys=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
