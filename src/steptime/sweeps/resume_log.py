"""A log of answers on disk, from which a stopped sweep continues."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import pickle
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from steptime.atomic_files import write_text_atomically
from steptime.errors import DataFileError
from steptime.sweeps.axes import label
from steptime.sweeps.point_grid import Job, Region, RegionAnswers

SUFFIX: Final = ".partial"
# Time between two syncs to the disk [s].
SYNC_INTERVAL: Final = 1.0


class Journal:
    """A file next to the results with one line per answered region.

    It belongs to one sweep: its question, axes, fixed values, and the contents of files that these name. It is removed once the
    results are written. A file of another sweep raises DataFileError.
    """

    def __init__(self, results: str, job: Job) -> None:
        self.path = Path(results + SUFFIX)
        self.mark = fingerprint(job)
        self.done: dict[Region, RegionAnswers] = {}
        self.synced = -math.inf
        try:
            if self.path.exists():
                self._load()
            self.file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115 - open as long as the sweep lasts
            if self.path.stat().st_size == 0:
                self._write({"sweep": self.mark})
        except OSError as error:
            raise DataFileError(self.path, f"cannot be written: {error.strerror}") from None
        # Whether the file has an answer that is worth keeping.
        self.kept = bool(self.done)

    def _load(self) -> None:
        lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        try:
            mark = _parse_line(lines[0])["sweep"] if lines else self.mark
        except (ValueError, KeyError, TypeError):
            raise DataFileError(self.path, "is not a log of a sweep; remove it, or give the results another name") from None
        if mark != self.mark:
            raise DataFileError(self.path, "is the log of another sweep; remove it, or give the results another name")
        valid_lines = lines[:1]
        for line in lines[1:]:
            try:
                record = _parse_line(line)
                region = tuple((start, stop) for start, stop in record["region"])
            except (ValueError, KeyError, TypeError):
                # The sweep ended while it wrote this line.
                break
            shape = tuple(stop - start for start, stop in region)
            answers = {name: _array(value, shape) for name, value in record["answers"].items()}
            self.done[region] = RegionAnswers(region=region, answers=answers, reason=record.get("reason", ""))
            valid_lines.append(line)

        # New lines are appended, so that a broken last line must go first.
        if len(valid_lines) < len(lines):
            write_text_atomically(self.path, "".join(f"{line}\n" for line in valid_lines))

    def pending_regions(self, regions: Iterable[Region]) -> Iterator[Region]:
        """Yield the regions without an answer.

        Args:
            regions: All regions of the job.

        Returns:
            Those that are not in the file.
        """
        return (region for region in regions if region not in self.done)

    def note(self, region_answers: RegionAnswers) -> None:
        """Append the answers of a region to the file.

        Args:
            region_answers: Answers of one region.
        """
        answers = {name: values.ravel().tolist() for name, values in region_answers.answers.items()}
        self._write({"region": region_answers.region, "answers": answers, "reason": region_answers.reason})
        self.kept = True

    def _write(self, record: dict[str, Any]) -> None:
        text = json.dumps(record)
        self.file.write(f"{zlib.crc32(text.encode()):08x} {text}\n")
        self.file.flush()
        # A power cut costs one second of work; a sync of every line would cost more than a short point.
        if time.monotonic() - self.synced >= SYNC_INTERVAL:
            os.fsync(self.file.fileno())
            self.synced = time.monotonic()

    def close(self, *, finished: bool) -> None:
        """Close the file; remove it if the results are written.

        Args:
            finished: Whether the results are written.
        """
        if not finished:
            self.file.flush()
            with suppress(OSError):
                os.fsync(self.file.fileno())
        self.file.close()
        if finished:
            self.path.unlink(missing_ok=True)


def _parse_line(line: str) -> dict[str, Any]:
    """Return the record of a line; raise ValueError if the line is damaged."""
    mark, _, text = line.partition(" ")
    if mark != f"{zlib.crc32(text.encode()):08x}":
        raise ValueError("the checksum of the line is wrong")
    record: dict[str, Any] = json.loads(text)
    return record


def _array(values: list[Any], shape: tuple[int, ...]) -> Any:
    text = any(isinstance(value, str) for value in values)
    return np.array(values, dtype=object if text else np.float64).reshape(shape)


def fingerprint(job: Job) -> str:
    """Return a text that identifies a sweep.

    Args:
        job: Question, axes and fixed inputs.

    Returns:
        24 hexadecimal digits.
    """
    digest = hashlib.sha256()
    digest.update(f"{job.question.name} {job.together} {sorted(job.answer_names)}".encode())
    # The answers of a Python function change with its code.
    function = getattr(job.question.ask, "args", None)
    if function and callable(function[0]):
        try:
            digest.update(inspect.getsource(function[0]).encode())
        except (OSError, TypeError):
            digest.update(repr(function[0]).encode())
    for axis in job.axes:
        digest.update(axis.name.encode())
        digest.update(axis.values.tobytes() if axis.numeric else _fingerprint_values(axis.values).encode())
    for name, value in sorted(job.fixed.items()):
        digest.update(f"{name}={_fingerprint_values([value])}".encode())
    return digest.hexdigest()[:24]


def _fingerprint_values(values: Iterable[Any]) -> str:
    parts = []
    for value in values:
        plain = isinstance(value, str | float | int)
        parts.append(repr(value) if plain else label(value) + hashlib.sha256(pickle.dumps(value)).hexdigest())
        # The contents of a file may change under the same name.
        if isinstance(value, str) and os.path.isfile(value):
            parts.append(hashlib.sha256(Path(value).read_bytes()).hexdigest())
    return "|".join(parts)
