"""Reads the header of a GGUF file of llama.cpp: its metadata and its tensors.

Names, types and shapes of tensors are read, and no weights. The format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
Versions 2 and 3, little and big endian. Every claim of a header is checked, and long arrays are skipped.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from steptime.catalog.data_files import is_file
from steptime.errors import DataFileError, InputError, short_repr
from steptime.hardware.number_formats import GGML
from steptime.models.safetensors_header import MOST_SHARDS, SHARD, Tensor

NAMES: Final = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K",
    13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S",
    22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0",
    35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
"""Names of tensor types by number (enum ggml_type of ggml.h)."""
# Values and bytes of a block, by type.
BLOCKS: Final = {
    "F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "F64": (1, 8), "I8": (1, 1), "I16": (1, 2), "I32": (1, 4), "I64": (1, 8),
    "MXFP4": (32, 17), "NVFP4": (64, 36), **{name.upper(): block for name, block in GGML.items()},
}  # fmt: skip
# Codes of the module struct, by the number of the GGUF type.
SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
# Longest array that is kept. Of a longer array, or one of texts, only the length is kept.
MOST_ARRAY_VALUES: Final = 4096
# Values of all arrays together. The largest vocabularies with their merges have a fifth of it.
MOST_VALUES: Final = 5_000_000
# Limits on keys, tensors, characters of a name, and nested arrays.
MOST_KEYS, MOST_GGUF_TENSORS, LONGEST_NAME, DEEPEST = 10_000, 100_000, 65_535, 4
# Bytes of texts and numbers in memory. Vocabularies and merges do not count, because only their lengths are kept.
MOST_KEPT_BYTES: Final = 10_000_000
# Longest path in an error, in characters.
LONGEST_PATH: Final = 1_000


@dataclass(frozen=True, slots=True)
class Long:
    """A metadata array of which only the length is kept."""

    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """The header of one file.

    header_bytes: bytes before the tensors. tensors: in the order of the header.
    """

    version: int
    big_endian: bool
    metadata: Mapping[str, Any]
    tensors: tuple[Tensor, ...]
    header_bytes: int


class _Cursor:
    """A position in the bytes of a file; every step is checked against the end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at, self.size = path, data, 0, len(data)
        self.order, self.values, self.kept = "<", 0, 0

    def keep(self, length: int, label: str) -> None:
        """Count bytes that stay in memory; raise DataFileError above the limit."""
        self.kept += length
        if self.kept > MOST_KEPT_BYTES:
            problem = f"{label} has {short_repr(length)} bytes at byte {self.at:,}"
            raise DataFileError(self.path, f"{problem}; the limit for all texts and numbers is {MOST_KEPT_BYTES:,}")

    def room(self, length: int, label: str) -> None:
        if length > self.size - self.at:
            problem = f"is truncated or malformed: {label} takes {short_repr(length)} bytes at byte {self.at:,}"
            raise DataFileError(self.path, f"{problem}, and {self.size - self.at:,} are left")

    def take(self, code: str, label: str) -> Any:
        length = struct.calcsize(f"<{code}")
        self.room(length, label)
        value = struct.unpack_from(self.order + code, self.data, self.at)[0]
        self.at += length
        return value

    def text(self, label: str, max_bytes: int) -> str:
        length = self.take("Q", f"the length of {label}")
        if length > max_bytes:
            raise DataFileError(self.path, f"{label} has {short_repr(length)} bytes at byte {self.at:,}; at most {max_bytes:,}")
        self.room(length, label)
        self.keep(length, label)
        raw = self.data[self.at : self.at + length]
        self.at += length
        return raw.decode("utf-8", errors="replace")

    def value(self, kind: int, label: str, depth: int = 0) -> Any:
        if kind in SCALARS:
            return self.take(SCALARS[kind], label)
        if kind == STRING:
            return self.text(label, MOST_KEPT_BYTES)
        if kind != ARRAY:
            raise DataFileError(self.path, f"{label} is of the unknown type {short_repr(kind)} at byte {self.at:,}")
        return self._array(label, depth)

    def _array(self, label: str, depth: int) -> Any:
        kind, length = self.take("I", f"the type of {label}"), self.take("Q", f"the length of {label}")

        # An array of arrays takes more time per element, so it counts a hundredfold.
        weight = 100 if kind == ARRAY else 1
        self.values += length * weight
        if depth >= DEEPEST or self.values > MOST_VALUES:
            length_text = f"has {short_repr(length)} {'arrays' if kind == ARRAY else 'values'}"
            problem = "is nested too deep" if depth >= DEEPEST else f"{length_text}; at most {MOST_VALUES // weight:,} in all"
            raise DataFileError(self.path, f"{label} {problem}")
        if kind in SCALARS:
            size = length * struct.calcsize(f"<{SCALARS[kind]}")
            self.room(size, f"{label}, {length:,} values,")
            begin, self.at = self.at, self.at + size
            if length > MOST_ARRAY_VALUES:
                return Long(length)
            self.keep(8 * length, label)
            return list(struct.unpack_from(f"{self.order}{length}{SCALARS[kind]}", self.data, begin))
        if kind == STRING:
            self._pass_texts(length, label)
            return Long(length)

        for _ in range(length):
            self.value(kind, label, depth + 1)

        return Long(length)

    def _pass_texts(self, count: int, label: str) -> None:
        """Skip texts of which only the number is kept.

        A vocabulary has hundreds of thousands of texts.
        """
        unpack_length, data, position, last = struct.Struct(f"{self.order}Q").unpack_from, self.data, self.at, self.size - 8
        for _ in range(count):
            if position > last:
                self.at = min(position, self.size)
                self.room(8, label)
            position += 8 + unpack_length(data, position)[0]
        self.at = min(position, self.size)
        self.room(position - self.at, label)


def read_gguf(path: Path) -> GgufFile:
    """Return the header of one GGUF file.

    Args:
        path: The file.

    Returns:
        The header.

    Raises:
        DataFileError: The file is malformed or truncated.
    """
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise DataFileError(path, "is not a GGUF file: it does not begin with the letters GGUF")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _gguf_file(_Cursor(path, data))
    except (OSError, ValueError) as error:
        raise DataFileError(path, getattr(error, "strerror", None) or str(error)) from None


def _gguf_file(cursor: _Cursor) -> GgufFile:
    cursor.at = 4
    version = cursor.take("I", "the version")

    # A version with zero low bytes is a big-endian file.
    if version & 0xFFFF == 0 and version:
        cursor.order, cursor.at = ">", 4
        version = cursor.take("I", "the version")
    if version not in (2, 3):
        raise DataFileError(cursor.path, f"version: must be 2 or 3, got {short_repr(version)}")
    tensors, keys = cursor.take("Q", "the number of tensors"), cursor.take("Q", "the number of keys")
    for count, limit, noun in ((tensors, MOST_GGUF_TENSORS, "tensors"), (keys, MOST_KEYS, "keys of metadata")):
        if count > limit:
            raise DataFileError(cursor.path, f"claims {short_repr(count)} {noun}; the limit is {limit:,}")

    metadata: dict[str, Any] = {}
    for number in range(keys):
        key = cursor.text(f"the name of key {number + 1}", LONGEST_NAME)
        if key in metadata:
            raise DataFileError(cursor.path, f"has the key {short_repr(key)} twice")
        metadata[key] = cursor.value(cursor.take("I", f"the type of {short_repr(key)}"), f"the value of {short_repr(key)}")

    tensor_places = [_tensor(cursor, number + 1) for number in range(tensors)]
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
        raise DataFileError(cursor.path, f"general.alignment must be a power of two, got {short_repr(alignment)}")

    # The tensors begin at the next multiple of the alignment.
    data_offset = -(-cursor.at // alignment) * alignment
    _check(cursor, tensor_places, data_offset, alignment)

    return GgufFile(
        version=version,
        big_endian=cursor.order == ">",
        metadata=metadata,
        tensors=tuple(tensor for tensor, _ in tensor_places),
        header_bytes=data_offset,
    )


def _tensor(cursor: _Cursor, number: int) -> tuple[Tensor, int]:
    """Return a tensor with its shape in the order of other formats, and its offset."""
    name = cursor.text(f"the name of tensor {number}", LONGEST_NAME)
    label = f"tensor {number}"
    count = cursor.take("I", label)
    if count > 4:
        raise DataFileError(cursor.path, f"tensor {short_repr(name)} has {short_repr(count)} dimensions; at most 4")
    sizes = [cursor.take("Q", label) for _ in range(count)]
    kind, offset = cursor.take("I", label), cursor.take("Q", label)
    if kind not in NAMES:
        type_names = ", ".join(NAMES.values())
        raise InputError(
            f"{cursor.path}: tensor {short_repr(name)} is of the unknown ggml type {short_repr(kind)}; known: {type_names}"
        )

    # Rows consist of whole blocks.
    values, size = BLOCKS[NAMES[kind]]
    if (sizes[0] if sizes else 1) % values:
        problem = (
            f"tensor {short_repr(name)} has rows of {short_repr(sizes[0])} values, and {NAMES[kind]} has blocks of {values}"
        )
        raise DataFileError(cursor.path, problem)

    return Tensor(name, NAMES[kind], tuple(reversed(sizes)), math.prod(sizes) // values * size), offset


def _check(cursor: _Cursor, tensor_places: list[tuple[Tensor, int]], begin: int, alignment: int) -> None:
    """Check that all tensors are in the file, aligned, and do not overlap.

    Raises:
        DataFileError: They are not.
    """
    names: set[str] = set()
    for tensor, offset in tensor_places:
        if tensor.name in names:
            raise DataFileError(cursor.path, f"has the tensor {short_repr(tensor.name)} twice")
        names.add(tensor.name)
        if offset % alignment:
            raise DataFileError(
                cursor.path, f"tensor {short_repr(tensor.name)}: offset must be a multiple of {alignment}, got {offset:,}"
            )

    end = 0
    for tensor, offset in sorted(tensor_places, key=lambda item: (item[1], item[0].bytes)):
        if offset < end:
            raise DataFileError(cursor.path, f"tensor {short_repr(tensor.name)} overlaps the tensor before it, at {offset:,}")
        end = offset + tensor.bytes

    if end and begin + end > cursor.size:
        extent = f"its tensors end at byte {short_repr(begin + end)}, but it has {cursor.size:,} bytes"
        raise DataFileError(cursor.path, f"is truncated: {extent}")


def shard_paths(path: Path) -> list[Path]:
    """Return all files of a GGUF model in order.

    A name such as -00001-of-00003 gives the number of files.

    Args:
        path: One of the files.

    Returns:
        The files.

    Raises:
        DataFileError: A file is missing.
    """
    numbered = SHARD.fullmatch(path.name)
    if numbered is None or not 1 <= int(numbered[3]) <= MOST_SHARDS:
        if not is_file(path):
            raise DataFileError(path if len(str(path)) < LONGEST_PATH else short_repr(str(path)), "no such file")
        return [path]
    width = len(numbered[2])
    shards = [path.with_name(f"{numbered[1]}-{n:0{width}d}-of-{numbered[3]}.gguf") for n in range(1, int(numbered[3]) + 1)]
    lacking = [file.name for file in shards if not is_file(file)]
    if lacking:
        suffix = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
        missing_count = f"and {len(lacking)} {'is' if len(lacking) == 1 else 'are'} missing"
        problem = f"is one of {len(shards)} files {missing_count}: {', '.join(lacking[:3])}{suffix}"
        raise DataFileError(path, problem)
    return shards


def read_shards(path: Path) -> tuple[Mapping[str, Any], tuple[Tensor, ...], int]:
    """Return the content of all files of a GGUF model.

    Args:
        path: One of the files.

    Returns:
        Metadata of the first file, tensors of all files, and the number of files.

    Raises:
        DataFileError: A file is missing or malformed, or the files do not belong together.
    """
    files = shard_paths(path)
    metadata: Mapping[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for number, file in enumerate(files):
        header = read_gguf(file)
        metadata = metadata or header.metadata
        split = header.metadata.get("split.count", len(files))
        if split not in (0, len(files)) or header.metadata.get("split.no", number) != number:
            split_text = f"split {short_repr(header.metadata.get('split.no'))} of {short_repr(split)}"
            raise DataFileError(
                file, f"has metadata of {split_text}, but its name is that of file {number + 1} of {len(files)}"
            )
        for tensor in header.tensors:
            if tensor.name in tensors:
                raise DataFileError(file, f"has the tensor {short_repr(tensor.name)}, but another file has it too")
            tensors[tensor.name] = tensor

    return metadata, tuple(tensors.values()), len(files)
