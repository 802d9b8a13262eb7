"""Reads the headers of safetensors files: names, dtypes, shapes and exact bytes of tensors, and no weights.

A file is 8 bytes, the length of the header; the header, a JSON object; then the tensors one behind another, without gaps
(https://github.com/huggingface/safetensors, "Format"). What a header claims is checked before it is believed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from steptime.catalog.data_files import is_dir, is_file
from steptime.errors import DataFileError, short_repr

# The format allows 100 MB; the largest published headers have some 5 MB.
LONGEST_HEADER: Final = 10_000_000  # bytes
# An index holds the names of all shards: 28 MB for 1 T parameters in NVFP4.
LONGEST_INDEX: Final = 50_000_000  # bytes
MOST_TENSORS: Final = 300_000
# Values, lists and objects of one JSON text. A tensor has about nine; each takes up to 200 bytes of memory.
MOST_JSON_VALUES: Final = 1_000_000
MOST_SHARDS: Final = 10_000
BITS: Final = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16,
    "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64, "F4": 4,
    "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
INDEX: Final = ".safetensors.index.json"
SHARD: Final = re.compile(r"(.*)-(\d{5,6})-of-(\d{5,6})\.(safetensors|gguf)")
IGNORED_PREFIXES: Final = (
    "consolidated",
    "adapter_",
    "original",
    "training_args",
    "optimizer",
)  # of the same weights, or of others


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a checkpoint: its name, its dtype as the header calls it, its shape and its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int

    @property
    def values(self) -> int:
        """Number of stored values, packed or not."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Headers:
    """What the headers of a checkpoint tell: its tensors, its files, the shards that are not there, and what to mind.

    total: bytes of all tensors as the index states them (0: it does not).
    """

    kind: str
    tensors: tuple[Tensor, ...]
    files: int = 1
    missing: tuple[str, ...] = ()
    total: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of the tensors that are there."""
        return sum(tensor.bytes for tensor in self.tensors)


def read_header(path: Path) -> tuple[Tensor, ...]:
    """Return the tensors of one safetensors file in the order of their bytes; raise DataFileError for a malformed one."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            begin = file.read(8)
            if len(begin) < 8:
                raise DataFileError(path, f"is no safetensors file: it has {size} bytes, and its header's length takes 8")
            length = int.from_bytes(begin, "little")
            if length > LONGEST_HEADER:
                problem = f"is no safetensors file: its first 8 bytes claim a header of {short_repr(length)} bytes"
                raise DataFileError(path, f"{problem}; at most {LONGEST_HEADER:,} are read")
            if length > size - 8:
                raise DataFileError(path, f"is truncated: its header has {length:,} bytes, and {size - 8:,} are there")
            text = file.read(length)
    except OSError as error:
        raise DataFileError(path, error.strerror or str(error)) from None
    return _tensors(path, _entries(path, text), size - 8 - length)


def _entries(path: Path, text: bytes) -> dict[str, Any]:
    """Return the fields of a header without its metadata."""
    fields = _json(path, text, "has a header that ", skipped=8, max_values=MOST_JSON_VALUES)
    fields.pop("__metadata__", None)
    return fields


class _Twice(ValueError):
    """A key that stands twice in one object."""


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        keys: set[str] = set()
        raise _Twice(next(name for name, _ in pairs if name in keys or keys.add(name)))  # type: ignore[func-returns-value]
    return fields


def _json(path: Path, text: bytes, place: str, skipped: int = 0, *, max_values: int) -> dict[str, Any]:
    """Return the object that a header or an index holds.

    Args:
        path: File, for errors.
        text: JSON text.
        place: Beginning of an error.
        skipped: Bytes before the text.
        max_values: Largest number of values, lists and objects together.

    Raises:
        DataFileError: The text is not one JSON object, or has too many values.
    """
    # The parser needs up to thirty times the text's size, so values are counted before it starts.
    values = sum(map(text.count, (b",", b"[", b"{")))
    if values > max_values:
        raise DataFileError(path, f"{place}has {values:,} values, lists and objects; at most {max_values:,} are read")
    try:
        fields = json.loads(text.decode("utf-8-sig"), object_pairs_hook=_unique_keys)
    except UnicodeDecodeError as error:
        raise DataFileError(path, f"{place}is not UTF-8 text ({error.reason} at byte {error.start + skipped})") from None
    except RecursionError:
        raise DataFileError(path, f"{place}is nested too deep") from None
    except _Twice as key:
        raise DataFileError(path, f"{place}has the key {short_repr(str(key))} twice in one object") from None
    except ValueError as error:
        raise DataFileError(path, f"{place}is not valid JSON: {error!s:.100}") from None
    if not isinstance(fields, dict):
        raise DataFileError(path, f"{place}is {short_repr(fields)}, not an object")
    return fields


def _tensors(path: Path, fields: Mapping[str, Any], room: int) -> tuple[Tensor, ...]:
    """Return the tensors of a header; their bytes follow one another and fill the `room` [bytes] behind it."""
    places: list[tuple[int, Tensor]] = []
    for name, entry in fields.items():
        tensor, begin = _tensor(path, name, entry)
        places.append((begin, tensor))
    places.sort(key=lambda item: (item[0], item[1].bytes))
    end = 0
    for begin, tensor in places:
        if begin != end:
            problem = "overlaps the tensor before it" if begin < end else f"leaves {begin - end:,} bytes before it unused"
            raise DataFileError(path, f"tensor {short_repr(tensor.name)} {problem}, at byte {begin:,} of {room:,}")
        end = begin + tensor.bytes
    if end > room:
        raise DataFileError(path, f"is truncated: its header tells of {end:,} bytes of tensors, and {room:,} are there")
    if end < room:
        raise DataFileError(path, f"has {room - end:,} bytes behind its tensors that its header does not tell of")
    return tuple(tensor for _, tensor in places)


def _tensor(path: Path, name: str, entry: Any) -> tuple[Tensor, int]:
    """Return a tensor and where it begins; raise DataFileError unless dtype, shape and offsets agree."""

    def wrong(problem: str) -> DataFileError:
        return DataFileError(path, f"tensor {short_repr(name)}{problem}")

    if not isinstance(entry, dict):
        raise wrong(f" must be an object of dtype, shape and data_offsets, not {short_repr(entry)}")
    dtype: Any = entry.get("dtype")
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in BITS:
        raise wrong(f": dtype is {short_repr(dtype)}; known: {', '.join(BITS)}")
    if not _is_whole_numbers(shape) or len(shape) > 16:
        raise wrong(f": shape must be a list of whole numbers from 0, not {short_repr(shape)}")
    if not _is_whole_numbers(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise wrong(f": data_offsets must be the bytes where it begins and ends, not {short_repr(offsets)}")
    bits, stored = math.prod(shape) * BITS[dtype], offsets[1] - offsets[0]
    if bits != 8 * stored:
        expected = f"{bits // 8:,}" if bits < 1 << 63 else short_repr(bits // 8)
        raise wrong(f": {dtype} of shape {short_repr(shape)} takes {expected} bytes, and data_offsets {stored:,}")
    return Tensor(name, dtype, tuple(shape), stored), offsets[0]


def _is_whole_numbers(numbers: Any) -> bool:
    """Whether something is a list of whole numbers from 0."""
    if not isinstance(numbers, list):
        return False
    for number in numbers:  # noqa: SIM110 - twice as fast as all()
        if type(number) is not int or number < 0:
            return False
    return True


def checkpoint_files(path: Path) -> tuple[list[Path], dict[str, str], int]:
    """Return the safetensors files of a folder, or of what one of its files belongs to; the file of each tensor; the total.

    An index says which belong together, else the numbers of the shards. The total [bytes] is what the index states, or 0.
    """
    if path.name.endswith(INDEX):
        return _indexed(path)
    folder = path if is_dir(path) else path.parent
    index = folder / f"model{INDEX}"
    if is_file(index):
        indexed = _indexed(index)
        if is_dir(path) or path in indexed[0]:
            return indexed
    if not is_dir(path):
        return _siblings([path]), {}, 0
    weight_files = sorted(file for file in folder.glob("*.safetensors") if is_file(file))
    indexes = sorted(file for file in folder.glob(f"*{INDEX}") if is_file(file))
    if indexes and not any(file.name == "model.safetensors" for file in weight_files):
        return _indexed(indexes[0])
    for names in (("model.safetensors",), ()):
        if named_files := [file for file in weight_files if file.name in names]:
            return named_files, {}, 0
    model_files = [file for file in weight_files if not file.name.startswith(IGNORED_PREFIXES)]
    return _siblings(model_files or [file for file in weight_files if not file.name.startswith("adapter_")]), {}, 0


def _shard(numbered: re.Match[str], number: int) -> str:
    """Return the name of another shard than the one that `SHARD` matched."""
    return f"{numbered[1]}-{number:0{len(numbered[2])}d}-of-{numbered[3]}.{numbered[4]}"


def _siblings(files: list[Path]) -> list[Path]:
    """Return files with the shards that their own numbers say are there besides."""
    siblings: dict[Path, None] = {}
    for file in files:
        numbered = SHARD.fullmatch(file.name)
        if numbered is None or int(numbered[3]) > MOST_SHARDS:
            siblings[file] = None
            continue
        shards = [file.with_name(_shard(numbered, number)) for number in range(int(numbered[3]) + 1)]
        siblings |= dict.fromkeys(shards if is_file(shards[0]) else shards[1:])  # some count from 0
    return list(siblings)


def _indexed(index: Path) -> tuple[list[Path], dict[str, str], int]:
    """Return the shards that an index names, the shard of each tensor, and the bytes that it states."""
    try:
        if index.stat().st_size > LONGEST_INDEX:
            raise DataFileError(index, f"has {index.stat().st_size:,} bytes; at most {LONGEST_INDEX:,} are read")
        data = _json(index, index.read_bytes(), "", max_values=MOST_TENSORS + MOST_SHARDS)
    except OSError as error:
        raise DataFileError(index, error.strerror or str(error)) from None
    places, metadata = data.get("weight_map"), data.get("metadata")
    if not isinstance(places, dict) or not places:
        raise DataFileError(index, f"weight_map: must be a table of tensors and their files, not {short_repr(places)}")
    for name, shard in places.items():
        if not isinstance(shard, str) or not shard or Path(shard).name != shard or "\0" in shard:
            raise DataFileError(
                index, f"weight_map: {short_repr(name)} must be in a file beside the index, not {short_repr(shard)}"
            )
    shards = sorted(set(places.values()))
    if len(shards) > MOST_SHARDS:
        raise DataFileError(index, f"weight_map: names {len(shards):,} files; at most {MOST_SHARDS:,}")
    total = metadata.get("total_size") if isinstance(metadata, dict) else 0
    is_valid = isinstance(total, int | float) and not isinstance(total, bool) and 0 < total < 1e18
    return [index.parent / shard for shard in shards], places, int(total) if is_valid and total else 0


@lru_cache(maxsize=2)
def read_headers(path: Path, _signature: tuple[tuple[str, int, int], ...] = ()) -> Headers | None:
    """Return what the safetensors headers of a folder, or of a file and its shards, tell; None where there are none.

    They are read again when the `signature` of the files is another one.
    Raises DataFileError for a malformed file, for a tensor that two files have, and for one of the index that no shard has.
    Shards that are not there are `missing`.
    """
    files, places, total = checkpoint_files(path)
    present = [file for file in files if is_file(file)]
    if not present and not places:
        return None
    missing = tuple(file.name for file in files if file not in set(present))
    by_name: dict[str, Tensor] = {}
    for file in present:
        for tensor in read_header(file):
            if tensor.name in by_name:
                raise DataFileError(file, f"has the tensor {short_repr(tensor.name)}, which another of its files has too")
            if (place := places.get(tensor.name, file.name)) != file.name:
                raise DataFileError(file, f"has the tensor {short_repr(tensor.name)}, which the index says is in {place}")
            by_name[tensor.name] = tensor
        if len(by_name) > MOST_TENSORS:
            raise DataFileError(
                file, f"and the shards before it have more than {MOST_TENSORS:,} tensors, the most that are read"
            )
    _check_index(present, by_name, places)
    return Headers(kind="safetensors", tensors=tuple(by_name.values()), files=len(present), missing=missing, total=total)


def _check_index(files: Iterable[Path], by_name: Mapping[str, Tensor], places: Mapping[str, str]) -> None:
    by_file = {file.name: file for file in files}
    for name, shard in places.items():
        if shard in by_file and name not in by_name:
            raise DataFileError(by_file[shard], f"lacks the tensor {short_repr(name)}, which the index says is in it")


def signature(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Return name, size and time of each file of weights in a folder, or beside a file: what says whether any has changed."""
    folder = path if is_dir(path) else path.parent
    file_stats = []
    try:
        for file in (*folder.glob("*.safetensors*"), *folder.glob("*.gguf")):
            stat = file.stat() if is_file(file) else None
            file_stats.append((file.name, stat.st_size, stat.st_mtime_ns) if stat else (file.name, 0, 0))
    except OSError:
        return ()
    return tuple(sorted(file_stats))
