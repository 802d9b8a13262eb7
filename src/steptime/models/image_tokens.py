"""From the pixels of an image, or the seconds of a recording, to rows of a tower and tokens of the prompt.

Every family scales and cuts images by a rule of its own, the one of its processor in transformers or in its repository. A rule
is a function with the settings of that processor; its `Cut` says how many sequences of how many rows the tower reads, and how
many tokens the prompt gains. Tokens are those that the processor writes in the place of an image: patches after merging,
and marks between rows and tiles. The one or two marks that a chat template puts around an image are not among them.

Where settings stand in no config.json, those of the published preprocessor are taken, and `settings` says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Final

from steptime.errors import RangeError, expect, short_repr

LONGEST_SIDE: Final = 65_536  # pixels: the longest side that JPEG can hold
MOST_MEDIA: Final = 10_000  # images or recordings of one prompt
LONGEST_RECORDING: Final = 86_400.0  # s
SAMPLES: Final = 16_000  # samples of sound in a second
FRAME, HOP = 320, 160  # samples under one spectrum of sound, and from one to the next
IMAGE: Final = re.compile(r"(\d{1,12})[x×](\d{1,12})(?:\*(\d{1,12}))?")
RECORDING: Final = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)(?:s| s)?(?:\*(\d{1,12}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Medium:
    """Images or recordings of one size: `count` images of width by height [pixels], or recordings of so many seconds [s]."""

    kind: str
    count: int = 1
    width: int = 0
    height: int = 0
    seconds: float = 0.0

    @property
    def size_text(self) -> str:
        """Return the size as it is asked for."""
        return f"{self.width}x{self.height}" if self.kind == "image" else f"{self.seconds:g} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What an image or a recording becomes: `sequences`, as (how many, of how many rows), in the tower, and `tokens`."""

    sequences: tuple[tuple[int, int], ...]
    tokens: int

    @property
    def rows(self) -> int:
        """Rows of all sequences: patches of an image, frames of sound."""
        return sum(count * rows for count, rows in self.sequences)


def single_sequence(rows: int, tokens: int) -> Cut:
    """Return a cut of one sequence."""
    return Cut(sequences=((1, rows),), tokens=tokens)


@dataclass(frozen=True, slots=True)
class Rule:
    """How a processor cuts an image or a recording: a function of this module, its `sizes`, and these in words."""

    how: Callable[..., Cut]
    sizes: tuple[tuple[str, float | str], ...]
    settings: str

    def cut(self, medium: Medium) -> Cut:
        """Return what a tower reads of one image or recording; raise RangeError for one that the processor refuses."""
        return self.how(medium, **dict(self.sizes))


def rule(how: Callable[..., Cut], settings: str = "", **sizes: float | str) -> Rule:
    """Return a rule with its sizes."""
    return Rule(how, tuple(sizes.items()), settings)


def read_images(texts: str | Iterable[str]) -> tuple[Medium, ...]:
    """Return the images that are asked for as WIDTHxHEIGHT [pixels], or WIDTHxHEIGHT*COUNT.

    >>> [(medium.size_text, medium.count) for medium in read_images(["1024x768*4", "512x512"])]
    [('1024x768', 4), ('512x512', 1)]
    """
    media = tuple(_image(text) for text in _texts(texts))
    return _check_count(media, "images")


def read_recordings(texts: str | Iterable[str]) -> tuple[Medium, ...]:
    """Return the recordings that are asked for as SECONDS, or SECONDS*COUNT.

    >>> [(medium.size_text, medium.count) for medium in read_recordings(["30", "12.5*2"])]
    [('30 s', 1), ('12.5 s', 2)]
    """
    media = tuple(_recording(text) for text in _texts(texts))
    return _check_count(media, "recordings")


def _texts(texts: str | Iterable[str]) -> tuple[str, ...]:
    several: object = (texts,) if isinstance(texts, str) else texts
    expect("images and recordings", several, (tuple, list), "a text such as '1024x768', or several")
    for text in (texts,) if isinstance(texts, str) else texts:
        expect("an image or a recording", text, str, "a text such as '1024x768' or '30'")
    return (texts,) if isinstance(texts, str) else tuple(texts)


def _image(text: str) -> Medium:
    match = IMAGE.fullmatch(text.strip().lower()) if isinstance(text, str) else None
    if match is None:
        raise RangeError(
            f"an image is WIDTHxHEIGHT in pixels, such as 1024x768, or 1024x768*4 for four, not {short_repr(text)}"
        )
    width, height, count = int(match[1]), int(match[2]), int(match[3] or 1)
    if not 1 <= min(width, height) <= max(width, height) <= LONGEST_SIDE:
        raise RangeError(f"the sides of an image are 1 to {LONGEST_SIDE:,} pixels, not {short_repr(text)}")
    return Medium(kind="image", count=_media_count(count, text), width=width, height=height)


def _recording(text: str) -> Medium:
    match = RECORDING.fullmatch(text.strip().lower()) if isinstance(text, str) else None
    if match is None:
        raise RangeError(f"a recording is its length in seconds, such as 30, or 30*2 for two, not {short_repr(text)}")
    seconds, count = float(match[1]), int(match[2] or 1)
    if not 0 < seconds <= LONGEST_RECORDING:
        raise RangeError(f"a recording lasts more than 0 and at most {LONGEST_RECORDING:,.0f} seconds, not {short_repr(text)}")
    return Medium(kind="audio", count=_media_count(count, text), seconds=seconds)


def _media_count(count: int, text: str) -> int:
    if not 1 <= count <= MOST_MEDIA:
        raise RangeError(f"a prompt holds 1 to {MOST_MEDIA:,} of one size, not {short_repr(text)}")
    return count


def _check_count(media: tuple[Medium, ...], noun: str) -> tuple[Medium, ...]:
    total = sum(medium.count for medium in media)
    if total > MOST_MEDIA:
        raise RangeError(f"a prompt holds at most {MOST_MEDIA:,} {noun}, not {total:,}")
    return media


def resized(medium: Medium, *, patch: int, merge: int, min_pixels: int, max_pixels: int, widest: float = 200.0) -> Cut:
    r"""Qwen2-VL and its heirs, MiniMax-M3: sides rounded to patches that merge, pixels kept between two bounds.

    Sides are multiples of $f$ = patch x merge. Above `max_pixels` or below `min_pixels` [pixels] the image is scaled by
    $\sqrt{hw/\text{bound}}$ with its aspect kept. `smart_resize` of transformers, qwen2_vl/image_processing_qwen2_vl.py.
    """
    height, width, f = medium.height, medium.width, patch * merge
    if max(height, width) / min(height, width) > widest:
        raise RangeError(f"the processor takes images of an aspect up to {widest:g}, not {medium.size_text}")
    tall, wide = round(height / f) * f, round(width / f) * f
    if tall * wide > max_pixels:
        shrunk = math.sqrt(height * width / max_pixels)
        tall, wide = (max(f, math.floor(side / shrunk / f) * f) for side in (height, width))
    elif tall * wide < min_pixels:
        grown = math.sqrt(min_pixels / (height * width))
        tall, wide = (math.ceil(side * grown / f) * f for side in (height, width))
    rows = (tall // patch) * (wide // patch)
    return single_sequence(rows, rows // merge**2)


def longest_edge(medium: Medium, *, patch: int, merge: int, longest: int) -> Cut:
    """Pixtral and Mistral 3: shrunk to a longest edge [pixels], a token for merged patches, and one that ends each row of them.

    `get_resize_output_image_size` of transformers, pixtral/image_processing_pixtral.py; rows: pixtral/processing_pixtral.py.
    """
    shrunk = max(medium.height / longest, medium.width / longest, 1.0)
    sides = (math.floor(side / shrunk) if shrunk > 1 else side for side in (medium.height, medium.width))
    tall, wide = ((side - 1) // (patch * merge) + 1 for side in sides)
    return single_sequence(tall * wide * merge**2, tall * (wide + 1))


def native(medium: Medium, *, patch: int, merge: int, max_patches: int, max_side: int) -> Cut:
    """MoonViT of Kimi: shrunk, never grown, to so many patches in all and on a side, then padded to patches that merge.

    `navit_resize` of transformers, kimi_k25/image_processing_kimi_k25.py.
    """
    height, width = medium.height, medium.width
    patches = max(1.0, height // patch) * max(1.0, width // patch)
    side = max_side * patch
    scale = min(1.0, math.sqrt(max_patches / patches), side / height, side / width)
    f = patch * merge
    tall, wide = (math.ceil(min(max(1, int(edge * scale)), side) / f) for edge in (height, width))
    return single_sequence(tall * wide * merge**2, tall * wide)


def square(_: Medium, *, side: int, patch: int, tokens: int) -> Cut:
    """Gemma 3: every image is scaled to one square, whatever its aspect, and pooled to a fixed number of tokens."""
    return single_sequence((side // patch) ** 2, tokens)


def pooled(medium: Medium, *, patch: int, pool: int, max_tokens: int, merged: bool = False) -> Cut:
    """Gemma 4: scaled, up or down, to the most patches of which `pool` x `pool` become one of at most `max_tokens` tokens.

    `get_aspect_ratio_preserving_size` of transformers, gemma4/image_processing_gemma4.py. `merged`: the tower reads patches
    that are pooled already.
    """
    height, width, side = medium.height, medium.width, pool * patch
    scale = math.sqrt(max_tokens * side**2 / (height * width))
    tall, wide = (math.floor(scale * edge / side) for edge in (height, width))
    if not tall:
        tall, wide = 1, min(width // height, max_tokens)
    elif not wide:
        tall, wide = min(height // width, max_tokens), 1
    return single_sequence(tall * wide * (1 if merged else pool**2), tall * wide)


def tiles(medium: Medium, *, side: int, patch: int, shuffled: int, max_tiles: int) -> Cut:
    """Llama 4: a canvas of tiles that fits the image best, and the whole image once more in one tile where there are several.

    Each tile is a sequence of its patches and a class token, and becomes a token for `shuffled` patches. The prompt gains a
    mark behind every tile, one before the whole image, and one at each end.
    `get_best_fit` of transformers, llama4/image_processing_llama4.py; marks: `_prompt_split_image` of processing_llama4.py.
    """
    down, across = best_canvas(Fraction(medium.height, side), Fraction(medium.width, side), max_tiles)
    parts, patches = down * across, (side // patch) ** 2
    several = parts > 1
    marks = 3 + several * parts
    return Cut(sequences=((parts + several, patches + 1),), tokens=(parts + several) * (patches // shuffled) + marks)


@cache
def canvases(max_tiles: int) -> tuple[tuple[int, int], ...]:
    """Return the canvases of at most `max_tiles` tiles, as tiles down and across.

    >>> canvases(3)
    ((1, 1), (1, 2), (1, 3), (2, 1), (3, 1))
    """
    return tuple((down, across) for down in range(1, max_tiles + 1) for across in range(1, max_tiles // down + 1))


def best_canvas(height: Fraction | int, width: Fraction | int, max_tiles: int) -> tuple[int, int]:
    """Return the tiles down and across that an image of height by width [tiles, exact] is put on.

    The canvas that scales it up the least, else down the least; of those that do alike, the one of fewest tiles.

    >>> best_canvas(Fraction(3, 2), Fraction(3, 2), 16), best_canvas(Fraction(900, 336), Fraction(2700, 336), 16)
    ((2, 2), (2, 6))
    """
    scales = {canvas: min(Fraction(canvas[0]) / height, Fraction(canvas[1]) / width) for canvas in canvases(max_tiles)}
    growing = [scale for scale in scales.values() if scale >= 1]
    best_scale = min(growing) if growing else max(scales.values())
    return min((canvas for canvas, scale in scales.items() if scale == best_scale), key=math.prod)


def crops(medium: Medium, *, side: int, crop: int, patch: int, largest: int = 3024) -> Cut:
    """Step3: the whole image in a square of `side`, and crops of `crop` [pixels] where it is large or long.

    The window of the crops is the short side of long images, and each side is rounded to windows, up where more than a fifth
    of one is left. Four patches by four become a token; each view gains a mark at both ends, each line of crops but the last
    one behind it. `_plan_patches` of transformers, step3p7/image_processing_step3p7.py.
    """
    down, across = crop_grid(medium.width, medium.height, side=side, crop=crop, largest=largest)
    sequences = tuple((count, (side // patch) ** 2) for count, side in ((1, side), (down * across, crop)) if count)
    tokens = sum(count * (math.ceil(math.sqrt(rows) / 4) ** 2 + 2) for count, rows in sequences)
    return Cut(sequences=sequences, tokens=tokens + max(0, down - 1))


def crop_grid(width: int, height: int, *, side: int, crop: int, largest: int) -> tuple[int, int]:
    """Return the crops down and across that an image of width by height [pixels] gets beside its whole view.

    >>> [crop_grid(*size, side=728, crop=504, largest=3024) for size in ((700, 700), (700, 300), (1024, 1024), (4000, 500))]
    [(0, 0), (1, 3), (2, 2), (1, 8)]
    """
    if min(width, height) < 32 and max(width, height) > 4 * min(width, height):
        width = height = max(width, height)
    if max(width, height) > largest:
        scale = largest / max(width, height)
        width, height = int(width * scale), int(height * scale)
    short, long = min(width, height), max(width, height)
    if long <= 1.5 * short and long <= side:
        return 0, 0
    window = short if long <= side else min(short, crop) if long > 4 * short else crop
    down, across = (edge // window + (edge % window > 0.2 * window) if edge >= window else 1 for edge in (height, width))
    return down, across


def lines(medium: Medium, *, patch: int, height: int, width: int) -> Cut:
    """Fuyu: shrunk to fit a screen of height by width [pixels], a token for each patch and one that ends each line of them."""
    scale = min(1.0, height / medium.height, width / medium.width)
    tall, wide = (max(1, math.ceil(int(side * scale) / patch)) for side in (medium.height, medium.width))
    return single_sequence(tall * wide, tall * (wide + 1))


def frames(medium: Medium, *, longest: float = 30.0, max_tokens: int = 750) -> Cut:
    """Gemma 4: spectra every 10 ms, of which two convolutions of stride 2 leave one in four: a row and a token each.

    `_compute_audio_num_tokens` of transformers, gemma4/processing_gemma4.py. A longer recording than `longest` [s] is cut off
    by the processor, and refused here.
    """
    _check_length(medium, longest)
    rows = (round(medium.seconds * SAMPLES) + FRAME // 2 - (FRAME + 1)) // HOP + 1
    for _ in range(2):
        rows = (rows + 2 - 3) // 2 + 1
    if rows < 1:
        raise RangeError(f"a recording of {medium.size_text} is shorter than one spectrum of {1000 * FRAME / SAMPLES:g} ms")
    return single_sequence(min(rows, max_tokens), min(rows, max_tokens))


def padded(medium: Medium, *, tokens: int, reduced: int, longest: float = 30.0) -> Cut:
    """Gemma 3n: a recording of any length up to `longest` [s] is a fixed number of tokens, each of `reduced` rows."""
    _check_length(medium, longest)
    rows = math.ceil(medium.seconds * SAMPLES / HOP / 4)
    return single_sequence(min(rows, tokens * reduced), tokens)


def samples(medium: Medium, *, samples: int, longest: float = 30.0) -> Cut:
    """Gemma 4 without a tower for sound: a token for each so many samples."""
    _check_length(medium, longest)
    rows = math.ceil(medium.seconds * SAMPLES / samples)
    return single_sequence(rows, rows)


def untimed(_: Medium, *, reason: str) -> Cut:
    """A tower whose parameters are counted and whose pass is not; `reason` says why."""
    raise RangeError(reason)


def _check_length(medium: Medium, longest: float) -> None:
    if medium.seconds > longest:
        raise RangeError(
            f"the processor hears at most {longest:g} seconds of a recording, not {medium.size_text}; give its parts, "
            f"such as {longest:g}*2"
        )
