"""Reads safetensors headers: names, dtypes, shapes and bytes of tensors.

The weights are not read. A file is the length of the header in 8 bytes, the header as a JSON object, and the tensors
without gaps (https://github.com/huggingface/safetensors, "Format"). Every claim of a header is checked.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from steptime.catalog.data_files import is_dir, is_file
from steptime.errors import DataFileError, os_problem, short_repr

# Largest header [B]. The format allows 100 MB; the largest published headers have about 5 MB.
LONGEST_HEADER: Final = 10_000_000
# Largest index [B]. It lists every tensor with its shard: 28 MB for 1 T parameters in NVFP4.
LONGEST_INDEX: Final = 50_000_000
MOST_TENSORS: Final = 300_000
# Values, lists and objects of one JSON text. A tensor has about nine of them; each takes up to 200 bytes of memory.
MOST_JSON_VALUES: Final = 1_000_000
MOST_SHARDS: Final = 10_000
# Bits per value, by dtype.
BITS: Final = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16,
    "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64, "F4": 4,
    "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
INDEX: Final = ".safetensors.index.json"
# Name of a shard: base, number, count, format.
SHARD: Final = re.compile(r"(.*)-(\d{5,6})-of-(\d{5,6})\.(safetensors|gguf)")
# Prefixes of files with copies of the weights, or with other data.
IGNORED_PREFIXES: Final = ("consolidated", "adapter_", "original", "training_args", "optimizer")


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a checkpoint: name, dtype as in the header, shape and bytes."""

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
    """The content of a checkpoint's headers: tensors, files, and missing shards.

    total: bytes of all tensors in the index; 0 if it does not state them.
    """

    kind: str
    tensors: tuple[Tensor, ...]
    files: int = 1
    missing: tuple[str, ...] = ()
    total: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of the tensors that are present."""
        return sum(tensor.bytes for tensor in self.tensors)


def read_header(path: Path) -> tuple[Tensor, ...]:
    """Return the tensors of one safetensors file in the order of their bytes.

    Args:
        path: The file.

    Returns:
        The tensors.

    Raises:
        DataFileError: The file is malformed or truncated.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            begin = file.read(8)
            if len(begin) < 8:
                raise DataFileError(
                    path, f"is not a safetensors file: it has {size} bytes, but the length of the header takes 8"
                )
            length = int.from_bytes(begin, "little")
            if length > LONGEST_HEADER:
                problem = f"is not a safetensors file: its first 8 bytes claim a header of {short_repr(length)} bytes"
                raise DataFileError(path, f"{problem}; the limit is {LONGEST_HEADER:,}")
            if length > size - 8:
                raise DataFileError(path, f"is truncated: its header has {length:,} bytes, but only {size - 8:,} are present")
            text = file.read(length)
    except OSError as error:
        raise DataFileError(path, os_problem(error)) from None

    fields = _json(path, text, "has a header that ", skipped=8, max_values=MOST_JSON_VALUES)
    fields.pop("__metadata__", None)
    return _tensors(path, fields, size - 8 - length)


class _Twice(ValueError):
    """A key that occurs twice in one object."""


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        keys: set[str] = set()
        raise _Twice(next(name for name, _ in pairs if name in keys or keys.add(name)))  # type: ignore[func-returns-value]
    return fields


def _json(path: Path, text: bytes, place: str, skipped: int = 0, *, max_values: int) -> dict[str, Any]:
    """Return the JSON object of a header or an index.

    Args:
        path: File, for errors.
        text: JSON text.
        place: Beginning of an error.
        skipped: Bytes before the text.
        max_values: Largest number of values, lists and objects together.

    Returns:
        The object.

    Raises:
        DataFileError: The text is not one JSON object, or has too many values.
    """
    # The parser needs up to thirty times the text's size, so values are counted before it starts.
    values = sum(map(text.count, (b",", b"[", b"{")))
    if values > max_values:
        raise DataFileError(path, f"{place}has {values:,} values, lists and objects; the limit is {max_values:,}")
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
        raise DataFileError(path, f"{place}must be an object, got {short_repr(fields)}")

    return fields


def _tensors(path: Path, fields: Mapping[str, Any], room: int) -> tuple[Tensor, ...]:
    """Return the tensors of a header, which must fill the `room` [bytes] after it."""
    places: list[tuple[int, Tensor]] = []
    for name, entry in fields.items():
        tensor, begin = _tensor(path, name, entry)
        places.append((begin, tensor))

    # Empty tensors may share the first byte of the next one, so they come first.
    places.sort(key=lambda item: (item[0], item[1].bytes))
    end = 0
    for begin, tensor in places:
        if begin != end:
            problem = "overlaps the tensor before it" if begin < end else f"has {begin - end:,} unused bytes before it"
            raise DataFileError(path, f"tensor {short_repr(tensor.name)} {problem}, at byte {begin:,} of {room:,}")
        end = begin + tensor.bytes

    if end > room:
        raise DataFileError(path, f"is truncated: its header lists {end:,} bytes of tensors, but only {room:,} are present")
    if end < room:
        raise DataFileError(path, f"has {room - end:,} bytes after its tensors that its header does not list")

    return tuple(tensor for _, tensor in places)


def _tensor(path: Path, name: str, entry: Any) -> tuple[Tensor, int]:
    """Return a tensor and its first byte.

    Raises:
        DataFileError: dtype, shape and offsets do not agree.
    """

    def wrong(problem: str) -> DataFileError:
        return DataFileError(path, f"tensor {short_repr(name)}{problem}")

    if not isinstance(entry, dict):
        raise wrong(f": must be an object with dtype, shape and data_offsets, got {short_repr(entry)}")
    dtype: Any = entry.get("dtype")
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in BITS:
        raise wrong(f": dtype: unknown, got {short_repr(dtype)}; known: {', '.join(BITS)}")
    if not _is_whole_numbers(shape) or len(shape) > 16:
        raise wrong(f": shape must be a list of whole numbers from 0, got {short_repr(shape)}")
    if not _is_whole_numbers(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise wrong(f": data_offsets must be its first and end byte, got {short_repr(offsets)}")

    # A header may claim any shape, so the bytes must agree with it.
    bits, stored = math.prod(shape) * BITS[dtype], offsets[1] - offsets[0]
    if bits != 8 * stored:
        expected = f"{bits // 8:,}" if bits < 1 << 63 else short_repr(bits // 8)
        raise wrong(f": {dtype} of shape {short_repr(shape)} takes {expected} bytes, but data_offsets cover {stored:,}")

    return Tensor(name, dtype, tuple(shape), stored), offsets[0]


def _is_whole_numbers(numbers: Any) -> bool:
    """Return whether a value is a list of whole numbers from 0."""
    if not isinstance(numbers, list):
        return False
    for number in numbers:  # noqa: SIM110 - twice as fast as all()
        if type(number) is not int or number < 0:
            return False
    return True


def checkpoint_files(path: Path) -> tuple[list[Path], dict[str, str], int]:
    """Return the safetensors files of a checkpoint.

    An index lists the files of a checkpoint. Without an index, the numbers of the shards give the files.

    Args:
        path: A folder, an index, or one of the files.

    Returns:
        The files, the file of each tensor (empty without an index), and the total bytes in the index (0 if not stated).
    """
    if path.name.endswith(INDEX):
        return _indexed(path)
    folder = path if is_dir(path) else path.parent

    # transformers uses this index if it exists.
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

    # Without an index, leave out copies and adapters.
    model_files = [file for file in weight_files if not file.name.startswith(IGNORED_PREFIXES)]

    return _siblings(model_files or [file for file in weight_files if not file.name.startswith("adapter_")]), {}, 0


def _shard(numbered: re.Match[str], number: int) -> str:
    """Return the name of another shard than the one that `SHARD` matched."""
    return f"{numbered[1]}-{number:0{len(numbered[2])}d}-of-{numbered[3]}.{numbered[4]}"


def _siblings(files: list[Path]) -> list[Path]:
    """Return files together with the other shards that their numbers imply."""
    siblings: dict[Path, None] = {}
    for file in files:
        numbered = SHARD.fullmatch(file.name)
        if numbered is None or int(numbered[3]) > MOST_SHARDS:
            siblings[file] = None
            continue
        shards = [file.with_name(_shard(numbered, number)) for number in range(int(numbered[3]) + 1)]
        # Some tools count shards from 0.
        siblings |= dict.fromkeys(shards if is_file(shards[0]) else shards[1:])
    return list(siblings)


def _indexed(index: Path) -> tuple[list[Path], dict[str, str], int]:
    """Return the shards in an index, the shard of each tensor, and the stated bytes."""
    try:
        if index.stat().st_size > LONGEST_INDEX:
            raise DataFileError(index, f"has {index.stat().st_size:,} bytes; the limit is {LONGEST_INDEX:,}")
        data = _json(index, index.read_bytes(), "", max_values=MOST_TENSORS + MOST_SHARDS)
    except OSError as error:
        raise DataFileError(index, os_problem(error)) from None

    places, metadata = data.get("weight_map"), data.get("metadata")
    if not isinstance(places, dict) or not places:
        raise DataFileError(index, f"weight_map: must be a table of tensors and their files, got {short_repr(places)}")
    for name, shard in places.items():
        if not isinstance(shard, str) or not shard or Path(shard).name != shard or "\0" in shard:
            raise DataFileError(
                index, f"weight_map: {short_repr(name)} must be in a file in the folder of the index, got {short_repr(shard)}"
            )

    shards = sorted(set(places.values()))
    if len(shards) > MOST_SHARDS:
        raise DataFileError(index, f"weight_map: must name at most {MOST_SHARDS:,} files, got {len(shards):,}")

    # Some tools write the total as a float, or leave it out.
    total = metadata.get("total_size") if isinstance(metadata, dict) else 0
    is_valid = isinstance(total, int | float) and not isinstance(total, bool) and 0 < total < 1e18

    return [index.parent / shard for shard in shards], places, int(total) if is_valid and total else 0


@lru_cache(maxsize=2)
def read_headers(path: Path, _signature: tuple[tuple[str, int, int], ...] = ()) -> Headers | None:
    """Return the headers of a folder, or of a file and its shards.

    The result is cached until the `signature` of the files changes.

    Args:
        path: A folder, an index, or one of the files.
        _signature: Signature of the files, the key of the cache.

    Returns:
        The headers; None if there are no files of weights. Shards that do not exist are `missing`.

    Raises:
        DataFileError: A file is malformed, two files have the same tensor, or a shard lacks a tensor of the index.
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
                raise DataFileError(
                    file, f"has the tensor {short_repr(tensor.name)}, but another file of the checkpoint has it too"
                )
            if (place := places.get(tensor.name, file.name)) != file.name:
                raise DataFileError(file, f"has the tensor {short_repr(tensor.name)}, but the index lists it in {place}")
            by_name[tensor.name] = tensor
        if len(by_name) > MOST_TENSORS:
            raise DataFileError(file, f"has, with the shards before it, more than {MOST_TENSORS:,} tensors, which is the limit")

    by_file = {file.name: file for file in present}
    for name, shard in places.items():
        if shard in by_file and name not in by_name:
            raise DataFileError(by_file[shard], f"lacks the tensor {short_repr(name)}, but the index lists it in this file")

    return Headers(kind="safetensors", tensors=tuple(by_name.values()), files=len(present), missing=missing, total=total)


def signature(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Return the state of the files of weights in a folder.

    Args:
        path: The folder, or a file in it.

    Returns:
        Name, size [bytes] and time [ns] of each file; empty if the folder cannot be read.
    """
    folder = path if is_dir(path) else path.parent
    file_stats = []
    try:
        for file in (*folder.glob("*.safetensors*"), *folder.glob("*.gguf")):
            stat = file.stat() if is_file(file) else None
            file_stats.append((file.name, stat.st_size, stat.st_mtime_ns) if stat else (file.name, 0, 0))
    except OSError:
        return ()
    return tuple(sorted(file_stats))
