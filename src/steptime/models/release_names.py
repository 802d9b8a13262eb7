"""Release names: which entry of the catalogue has the shape of another release of the same model.

Publishers tune, date and quantize a model without a change of its shape. Such names follow a grammar:

$$ name = [owner/] [vendor-] shape (-tuning | -date | -format | -format's detail)* $$

Words outside this grammar belong to the shape. So `Qwen3-VL-8B`, `Llama-3.2-3B` or `Qwen3-8B-speculator` never become
`Qwen3-8B` or `Llama-3.1-8B`. A distilled model has the shape of its student, never that of its teacher.

References:
    Names of quantized checkpoints: https://huggingface.co/RedHatAI, https://huggingface.co/nvidia, https://huggingface.co/amd.
    Students of DeepSeek-R1: https://huggingface.co/deepseek-ai/DeepSeek-R1#deepseek-r1-distill-models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from steptime.catalog.data_files import folded

# Words of training after pre-training, or of a stage of release; they leave the shape as it is.
TUNING: Final = frozenset(
    (
        "base", "chat", "exp", "hf", "inst", "instruct", "it", "original", "preview", "pt", "reasoning", "speciale", "terminus",
        "thinking", "zero",
    )
)  # fmt: skip
# Words of a speciality. Only a name without its own entry may drop one: Qwen2.5-Coder-7B has the shape of Qwen2.5-7B.
SPECIALITIES: Final = frozenset({"coder", "math"})
# Year and month, or month and day.
DATE: Final = re.compile(r"2\d(0[1-9]|1[0-2])|(0[1-9]|1[0-2])([0-2]\d|3[01])")
# Parameters, in all or per token, or the experts of a mixture: 32b, a22b, e4b, 8x7b, 1.7b.
SIZE: Final = re.compile(r"[ae]?(\d+x)?\d+(\.\d+)?[bm]")
FORMATS: Final[Mapping[str, str]] = {
    "bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "int8": "int8", "w8a8": "int8", "w8a16": "int8", "8bit": "int8",
    "int4": "int4", "w4a16": "int4", "4bit": "int4", "awq": "int4", "gptq": "int4", "mxfp4": "mxfp4", "mxfp8": "mxfp8",
    "nvfp4": "nvfp4", "fp4": "nvfp4",
}  # fmt: skip
"""Number format by its word in a name; FP4 alone is NVIDIA's word for NVFP4."""
# Methods whose usual width a second word may replace, as in GPTQ-Int8.
METHODS: Final = frozenset({"awq", "gptq"})
# Details of a format: how scales are taken, the size of a group, the version of a quantized checkpoint.
DETAIL: Final = re.compile(r"dynamic|static|block|channel|per|tensor|pertensor|perchannel|kv|v\d|g\d+|\d+g")
VERSION: Final = re.compile(r"v\d")
# Words before a format.
LEADS: Final = frozenset({"quantized", "bnb", "mlx"})
# Owners that publish cut-down models under full names, for tests.
NOT_MODELS: Final = frozenset({"tiny", "random", "testing", "test", "dummy"})
DISTILLED: Final = "distill"
# Start of a note, after the name of the release.
SHAPE_NOTE: Final = "not in the catalogue; its shape is taken from "
STUDENTS: Final[Mapping[tuple[str, str], str]] = {
    ("deepseek-r1", "qwen-7b"): "qwen2.5-7b",
    ("deepseek-r1", "qwen-14b"): "qwen2.5-14b",
    ("deepseek-r1", "qwen-32b"): "qwen2.5-32b",
    ("deepseek-r1", "llama-8b"): "llama-3.1-8b",
    ("deepseek-r1", "llama-70b"): "llama-3.3-70b",
}
"""Shape by teacher and student, where the name lacks the student's version; Qwen-1.5B has its own head, so it is not here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseName:
    """The parts of a release name; formats are "" if the name has none.

    core: Words of the shape. details: Words after the format, without versions. conflict: Whether the words name several
    formats.
    """

    owner: str
    core: tuple[str, ...]
    tuning: frozenset[str] = frozenset()
    dates: frozenset[str] = frozenset()
    weights: str = ""
    details: frozenset[str] = frozenset()
    kv: str = ""
    conflict: bool = False

    @property
    def has_size(self) -> bool:
        """Whether the core states a number of parameters."""
        return any(map(SIZE.fullmatch, self.core))


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A release, the entries of the catalogue that may have its shape, and the formats in its name.

    entries: Best first, with equal standing; several must have one shape. is_later: Whether tuning or date differ from the
    entry, so that its longest context may differ too. applies_format: Whether the format of the name replaces the entry's.
    """

    name: str
    entries: tuple[str, ...]
    weights: str = ""
    kv: str = ""
    is_later: bool = False
    applies_format: bool = False

    def note(self, entry: str, *, is_format_given: bool = False) -> str:
        """Return the model taken for the release, as a sentence for the user.

        Args:
            entry: Name of the entry with the shape.
            is_format_given: Whether the user gave the format of the weights.

        Returns:
            The note.
        """
        text = f"{self.name}: {SHAPE_NOTE}{entry}, by its name"
        if self.applies_format and not is_format_given:
            text += f", with {self.weights} weights"
        if self.kv:
            text += f" and an {self.kv} KV cache" if self.applies_format else f", with an {self.kv} KV cache"
        return text + ("; its longest context is not known" if self.is_later else "")


def parse_release(name: str) -> ReleaseName:
    """Split a model's name into shape, tuning, dates and formats.

    Args:
        name: Name or Hugging Face id.

    Returns:
        The parts.

    >>> parts = parse_release("RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16")
    >>> parts.core, sorted(parts.tuning), parts.weights
    (('llama', '3.3', '70b'), ['instruct'], 'int4')
    >>> parse_release("amd/Llama-3.1-405B-Instruct-FP8-KV").kv
    'fp8'
    """
    owner, _, base = name.strip().rpartition("/")
    # A "_" between digits stands for the point of a version.
    words = folded(re.sub(r"(?<=\d)_(?=\d)", ".", base)).replace("quantized.", "quantized-").split("-")
    core: list[str] = []
    tuning: set[str] = set()
    dates: set[str] = set()
    formats: list[str] = []
    details: set[str] = set()
    for position, word in enumerate(words):
        following = words[position + 1] if position + 1 < len(words) else ""
        if position == 0:
            core.append(word)
        elif word in FORMATS:
            formats.append(word)
        elif formats and DETAIL.fullmatch(word):
            details.add(word)
        elif word in LEADS and following in FORMATS:
            continue
        elif word in TUNING:
            tuning.add(word)
        elif DATE.fullmatch(word):
            dates.add(word)
        else:
            core.append(word)
    stated = {FORMATS[word] for word in formats if word not in METHODS} or {FORMATS[word] for word in formats}
    weights = next(iter(stated)) if len(stated) == 1 else ""
    return ReleaseName(
        owner=folded(owner), core=tuple(core), tuning=frozenset(tuning), dates=frozenset(dates), weights=weights,
        details=frozenset(word for word in details if not VERSION.fullmatch(word)),
        kv=weights if "kv" in details else "", conflict=len(stated) > 1,
    )  # fmt: skip


def find_release(name: str, names: Mapping[str, Iterable[str]]) -> Release | None:
    """Return the entries of a catalogue that may have the shape of a release.

    Args:
        name: Name of the release, which no entry has.
        names: Name and aliases of each entry, by its name.

    Returns:
        The release with its entries; None if the grammar does not lead to an entry.

    >>> find_release("Qwen3-235B-A22B-Instruct-2507-FP8", {"Qwen/Qwen3-235B-A22B": ("Qwen/Qwen3-235B-A22B",)}).entries
    ('Qwen/Qwen3-235B-A22B',)
    """
    release_name = parse_release(name)
    if release_name.conflict or NOT_MODELS & set(release_name.owner.split("-")):
        return None
    by_core: dict[str, dict[str, list[ReleaseName]]] = {}
    for entry, labels in names.items():
        for parts in map(parse_release, labels):
            by_core.setdefault("-".join(parts.core), {}).setdefault(entry, []).append(parts)
    vendors = {entry.partition("/")[0].casefold().partition("-")[0] for entry in names if "/" in entry}
    core = _known_core(release_name.core, by_core, vendors)
    if not core:
        return None

    # An entry in the format of the name, with its details, is exact; else the entry without a format gets it.
    entry_names = {entry: parse_release(entry) for entry in by_core[core]}
    quantized = {entry for entry, parts in entry_names.items() if parts.weights not in ("", "bf16", "fp16")}
    exact = {
        entry for entry in quantized
        if (entry_names[entry].weights, entry_names[entry].details) == (release_name.weights, release_name.details)
    }  # fmt: skip
    pool = {entry: labels for entry, labels in by_core[core].items() if entry in (exact or set(by_core[core]) - quantized)}

    # Without a size, a date distinguishes the models of a series.
    pool = {
        entry: labels for entry, labels in pool.items()
        if release_name.has_size or any(not parts.dates or parts.dates == release_name.dates for parts in labels)
    }  # fmt: skip
    if not pool:
        return None

    def distance(entry: str) -> tuple[int, int]:
        """Return how many words of tuning, and of dates, differ from the nearest label of an entry."""
        return min((len(release_name.tuning ^ parts.tuning), len(release_name.dates ^ parts.dates)) for parts in pool[entry])

    nearest = min(map(distance, pool))
    entries = tuple(sorted((entry for entry in pool if distance(entry) == nearest), key=lambda entry: (len(entry), entry)))
    is_later = nearest != (0, 0) or core != "-".join(release_name.core)
    applies_format = bool(release_name.weights and not exact)
    # A name that several entries have is not that of another release: it needs its owner.
    if len(entries) > 1 and not (release_name.owner or is_later or applies_format):
        return None
    return Release(
        name=name, entries=entries, weights=release_name.weights, kv=release_name.kv, is_later=is_later,
        applies_format=applies_format,
    )  # fmt: skip


def _known_core(words: tuple[str, ...], shapes: Mapping[str, object], vendors: set[str]) -> str:
    """Return the known shape that the words of a name stand for; "" without such a shape."""
    if DISTILLED in words:
        position = words.index(DISTILLED)
        teacher, student = "-".join(words[:position]), "-".join(words[position + 1 :])
        student = STUDENTS.get((teacher, student), student)
        return student if student in shapes else ""
    plain = tuple(word for word in words if word not in SPECIALITIES)
    without_vendor = words[1:] if words[0] in vendors else words
    for candidate in (words, without_vendor, plain):
        if (core := "-".join(candidate)) in shapes:
            return core

    # Teacher and student, both known, one after the other: DeepSeek-R1-0528-Qwen3-8B.
    for position in range(1, len(words)):
        if "-".join(words[:position]) in shapes and (student := "-".join(words[position:])) in shapes:
            return student
    return ""
