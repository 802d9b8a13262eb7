"""Turns the pixels of an image or the seconds of a recording into rows and tokens.

Every family scales and cuts images by its own rule, which is that of its processor in transformers or in its
repository. A rule is a function with the settings of that processor. Its `Cut` gives the sequences and rows in the
tower and the tokens in the prompt. The tokens are those that the processor writes in place of an image: patches after
merging, and marks between rows and tiles. The one or two marks that a chat template puts around an image are not
included.

If no config.json has the settings, those of the published preprocessor are used, and `settings` says so.
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

# Pixels: the longest side of a JPEG.
LONGEST_SIDE: Final = 65_536
# Images or recordings of one prompt.
MOST_MEDIA: Final = 10_000
# Seconds: one day.
LONGEST_RECORDING: Final = 86_400.0
# Sampling rate [1/s].
SAMPLES: Final = 16_000
# Samples in one spectrum of sound, and from one spectrum to the next.
FRAME, HOP = 320, 160
IMAGE: Final = re.compile(r"(\d{1,12})[x×](\d{1,12})(?:\*(\d{1,12}))?")
RECORDING: Final = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)(?:s| s)?(?:\*(\d{1,12}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Medium:
    """Images or recordings of one size.

    There are `count` images of `width` by `height` [pixels], or `count` recordings of `seconds` [s].
    """

    kind: str
    count: int = 1
    width: int = 0
    height: int = 0
    seconds: float = 0.0

    @property
    def size_text(self) -> str:
        """Size as the user writes it."""
        return f"{self.width}x{self.height}" if self.kind == "image" else f"{self.seconds:g} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The rows of an image or a recording in the tower, and its prompt tokens.

    `sequences` are pairs of count and rows.
    """

    sequences: tuple[tuple[int, int], ...]
    tokens: int

    @property
    def rows(self) -> int:
        """Rows of all sequences: patches of an image, frames of sound."""
        return sum(count * rows for count, rows in self.sequences)


def single_sequence(rows: int, tokens: int) -> Cut:
    """Return a cut of one sequence.

    Args:
        rows: Rows in the tower.
        tokens: Tokens of the prompt.

    Returns:
        The cut.
    """
    return Cut(sequences=((1, rows),), tokens=tokens)


@dataclass(frozen=True, slots=True)
class Rule:
    """How a processor cuts an image or a recording.

    how: function of this module. sizes: its settings. settings: these in words.
    """

    how: Callable[..., Cut]
    sizes: tuple[tuple[str, float | str], ...]
    settings: str

    def cut(self, medium: Medium) -> Cut:
        """Return the rows and tokens of one image or recording.

        Args:
            medium: The image or recording.

        Returns:
            The cut.

        Raises:
            RangeError: The processor refuses it.
        """
        return self.how(medium, **dict(self.sizes))


def rule(how: Callable[..., Cut], settings: str = "", **sizes: float | str) -> Rule:
    """Return a rule with its settings.

    Args:
        how: Function of this module.
        settings: The settings in words.
        sizes: Keyword arguments of the function.

    Returns:
        The rule.
    """
    return Rule(how, tuple(sizes.items()), settings)


def read_images(texts: str | Iterable[str]) -> tuple[Medium, ...]:
    """Return images from texts.

    Args:
        texts: WIDTHxHEIGHT [pixels], or WIDTHxHEIGHT*COUNT; one or several.

    Returns:
        One medium per text.

    Raises:
        RangeError: A text is malformed, or a size or count is out of range.

    >>> [(medium.size_text, medium.count) for medium in read_images(["1024x768*4", "512x512"])]
    [('1024x768', 4), ('512x512', 1)]
    """
    media = tuple(_image(text) for text in _texts(texts))
    return _check_count(media, "images")


def read_recordings(texts: str | Iterable[str]) -> tuple[Medium, ...]:
    """Return recordings from texts.

    Args:
        texts: SECONDS, or SECONDS*COUNT; one or several.

    Returns:
        One medium per text.

    Raises:
        RangeError: A text is malformed, or a length or count is out of range.

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
            f"image: must be WIDTHxHEIGHT in pixels, such as 1024x768, or 1024x768*4 for four, got {short_repr(text)}"
        )
    width, height, count = int(match[1]), int(match[2]), int(match[3] or 1)
    if not 1 <= min(width, height) <= max(width, height) <= LONGEST_SIDE:
        raise RangeError(f"image: sides must be 1 to {LONGEST_SIDE:,} pixels, got {short_repr(text)}")
    return Medium(kind="image", count=_media_count(count, text), width=width, height=height)


def _recording(text: str) -> Medium:
    match = RECORDING.fullmatch(text.strip().lower()) if isinstance(text, str) else None
    if match is None:
        raise RangeError(f"audio: must be a length in seconds, such as 30, or 30*2 for two, got {short_repr(text)}")
    seconds, count = float(match[1]), int(match[2] or 1)
    if not 0 < seconds <= LONGEST_RECORDING:
        raise RangeError(f"audio: must be more than 0 and at most {LONGEST_RECORDING:,.0f} seconds, got {short_repr(text)}")
    return Medium(kind="audio", count=_media_count(count, text), seconds=seconds)


def _media_count(count: int, text: str) -> int:
    if not 1 <= count <= MOST_MEDIA:
        raise RangeError(f"count: must be 1 to {MOST_MEDIA:,} per size, got {short_repr(text)}")
    return count


def _check_count(media: tuple[Medium, ...], noun: str) -> tuple[Medium, ...]:
    total = sum(medium.count for medium in media)
    if total > MOST_MEDIA:
        raise RangeError(f"{noun}: must be at most {MOST_MEDIA:,} in a prompt, got {total:,}")
    return media


def resized(medium: Medium, *, patch: int, merge: int, min_pixels: int, max_pixels: int, widest: float = 200.0) -> Cut:
    r"""Cut an image as Qwen2-VL and later models, and MiniMax-M3, do.

    Sides are rounded to multiples of $f$ = patch x merge. Above `max_pixels` or below `min_pixels` the image is scaled by
    $\sqrt{hw/\text{bound}}$ with its aspect ratio.

    Args:
        medium: The image.
        patch: Pixels on a side of a patch.
        merge: Patches on a side that become one token.
        min_pixels: Fewest pixels after scaling.
        max_pixels: Most pixels after scaling.
        widest: Largest ratio of the sides.

    Returns:
        The cut.

    Raises:
        RangeError: The image is too long for the processor.

    References:
        `smart_resize` of transformers, qwen2_vl/image_processing_qwen2_vl.py.
    """
    height, width, f = medium.height, medium.width, patch * merge
    if max(height, width) / min(height, width) > widest:
        raise RangeError(f"image: the processor accepts aspect ratios up to {widest:g}, got {medium.size_text}")
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
    """Cut an image as Pixtral and Mistral 3 do.

    The image is shrunk to a longest edge. Each group of merged patches becomes a token, and one more token ends each row.

    Args:
        medium: The image.
        patch: Pixels on a side of a patch.
        merge: Patches on a side that become one token.
        longest: Longest edge [pixels].

    Returns:
        The cut.

    References:
        `get_resize_output_image_size` of transformers, pixtral/image_processing_pixtral.py; rows:
        pixtral/processing_pixtral.py.
    """
    shrunk = max(medium.height / longest, medium.width / longest, 1.0)
    sides = (math.floor(side / shrunk) if shrunk > 1 else side for side in (medium.height, medium.width))
    tall, wide = ((side - 1) // (patch * merge) + 1 for side in sides)
    return single_sequence(tall * wide * merge**2, tall * (wide + 1))


def native(medium: Medium, *, patch: int, merge: int, max_patches: int, max_side: int) -> Cut:
    """Cut an image as MoonViT of Kimi does.

    The image is shrunk, never enlarged, to the limits on patches, and then padded to groups of merged patches.

    Args:
        medium: The image.
        patch: Pixels on a side of a patch.
        merge: Patches on a side that become one token.
        max_patches: Most patches of an image.
        max_side: Most patches on a side.

    Returns:
        The cut.

    References:
        `navit_resize` of transformers, kimi_k25/image_processing_kimi_k25.py.
    """
    height, width = medium.height, medium.width

    # Count whole patches, at least one, as the processor does.
    patches = max(1.0, height // patch) * max(1.0, width // patch)
    side = max_side * patch
    scale = min(1.0, math.sqrt(max_patches / patches), side / height, side / width)
    f = patch * merge
    tall, wide = (math.ceil(min(max(1, int(edge * scale)), side) / f) for edge in (height, width))
    return single_sequence(tall * wide * merge**2, tall * wide)


def square(_: Medium, *, side: int, patch: int, tokens: int) -> Cut:
    """Cut an image as Gemma 3 does: one square, a fixed number of tokens.

    Args:
        _: The image; its size does not matter.
        side: Pixels on a side of the square.
        patch: Pixels on a side of a patch.
        tokens: Tokens after pooling.

    Returns:
        The cut.
    """
    return single_sequence((side // patch) ** 2, tokens)


def pooled(medium: Medium, *, patch: int, pool: int, max_tokens: int, merged: bool = False) -> Cut:
    """Cut an image as Gemma 4 does.

    The image is scaled up or down to the most patches that give at most `max_tokens` tokens.

    Args:
        medium: The image.
        patch: Pixels on a side of a patch.
        pool: Patches on a side that become one token.
        max_tokens: Most tokens of an image.
        merged: Whether the tower reads patches that are already pooled.

    Returns:
        The cut.

    References:
        `get_aspect_ratio_preserving_size` of transformers, gemma4/image_processing_gemma4.py.
    """
    height, width, side = medium.height, medium.width, pool * patch
    scale = math.sqrt(max_tokens * side**2 / (height * width))
    tall, wide = (math.floor(scale * edge / side) for edge in (height, width))
    # A very long image gets one row or column of tokens.
    if not tall:
        tall, wide = 1, min(width // height, max_tokens)
    elif not wide:
        tall, wide = min(height // width, max_tokens), 1
    return single_sequence(tall * wide * (1 if merged else pool**2), tall * wide)


def tiles(medium: Medium, *, side: int, patch: int, shuffled: int, max_tiles: int) -> Cut:
    """Cut an image as Llama 4 does.

    The image is put on the best canvas of tiles. With several tiles, the whole image is added in one more tile. Each
    tile is a sequence of its patches and a class token, and becomes one token per `shuffled` patches. The prompt has a
    mark after every tile, one before the whole image, and one at each end.

    Args:
        medium: The image.
        side: Pixels on a side of a tile.
        patch: Pixels on a side of a patch.
        shuffled: Patches that become one token.
        max_tiles: Most tiles of a canvas.

    Returns:
        The cut.

    References:
        `get_best_fit` of transformers, llama4/image_processing_llama4.py; marks: `_prompt_split_image` of
        processing_llama4.py.
    """
    down, across = best_canvas(Fraction(medium.height, side), Fraction(medium.width, side), max_tiles)
    parts, patches = down * across, (side // patch) ** 2
    several = parts > 1
    marks = 3 + several * parts
    return Cut(sequences=((parts + several, patches + 1),), tokens=(parts + several) * (patches // shuffled) + marks)


@cache
def canvases(max_tiles: int) -> tuple[tuple[int, int], ...]:
    """Return the possible canvases of tiles.

    Args:
        max_tiles: Most tiles of a canvas.

    Returns:
        Pairs of tiles down and across.

    >>> canvases(3)
    ((1, 1), (1, 2), (1, 3), (2, 1), (3, 1))
    """
    return tuple((down, across) for down in range(1, max_tiles + 1) for across in range(1, max_tiles // down + 1))


def best_canvas(height: Fraction | int, width: Fraction | int, max_tiles: int) -> tuple[int, int]:
    """Return the canvas of tiles for an image.

    It is the canvas with the smallest enlargement, or, if all shrink the image, the smallest reduction. Equal canvases are
    decided by the fewest tiles.

    Args:
        height: Height of the image [tiles], exact.
        width: Width of the image [tiles], exact.
        max_tiles: Most tiles of a canvas.

    Returns:
        Tiles down and across.

    >>> best_canvas(Fraction(3, 2), Fraction(3, 2), 16), best_canvas(Fraction(900, 336), Fraction(2700, 336), 16)
    ((2, 2), (2, 6))
    """
    scales = {canvas: min(Fraction(canvas[0]) / height, Fraction(canvas[1]) / width) for canvas in canvases(max_tiles)}
    growing = [scale for scale in scales.values() if scale >= 1]
    best_scale = min(growing) if growing else max(scales.values())
    return min((canvas for canvas, scale in scales.items() if scale == best_scale), key=math.prod)


def crops(medium: Medium, *, side: int, crop: int, patch: int, largest: int = 3024) -> Cut:
    """Cut an image as Step3 does: one square view, and crops of large or long images.

    The window of the crops is the short side of long images. Each side is rounded to whole windows, upwards if more
    than a fifth of a window is left. Four by four patches become a token. Each view has a mark at both ends. Each line
    of crops except the last has a mark after it.

    Args:
        medium: The image.
        side: Pixels on a side of the view.
        crop: Pixels on a side of a crop.
        patch: Pixels on a side of a patch.
        largest: Longest side before cutting [pixels].

    Returns:
        The cut.

    References:
        `_plan_patches` of transformers, step3p7/image_processing_step3p7.py.
    """
    down, across = crop_grid(medium.width, medium.height, side=side, crop=crop, largest=largest)
    sequences = tuple((count, (side // patch) ** 2) for count, side in ((1, side), (down * across, crop)) if count)
    tokens = sum(count * (math.ceil(math.sqrt(rows) / 4) ** 2 + 2) for count, rows in sequences)
    return Cut(sequences=sequences, tokens=tokens + max(0, down - 1))


def crop_grid(width: int, height: int, *, side: int, crop: int, largest: int) -> tuple[int, int]:
    """Return the number of crops of an image, in addition to its whole view.

    Args:
        width: Width of the image [pixels].
        height: Height of the image [pixels].
        side: Pixels on a side of the view.
        crop: Pixels on a side of a crop.
        largest: Longest side before cutting [pixels].

    Returns:
        Crops down and across; (0, 0) for small images.

    >>> [crop_grid(*size, side=728, crop=504, largest=3024) for size in ((700, 700), (700, 300), (1024, 1024), (4000, 500))]
    [(0, 0), (1, 3), (2, 2), (1, 8)]
    """
    # The processor pads thin images to a square.
    if min(width, height) < 32 and max(width, height) > 4 * min(width, height):
        width = height = max(width, height)
    if max(width, height) > largest:
        scale = largest / max(width, height)
        width, height = int(width * scale), int(height * scale)
    short, long = min(width, height), max(width, height)
    if long <= 1.5 * short and long <= side:
        return 0, 0

    # Long images are cut by their short side.
    window = short if long <= side else min(short, crop) if long > 4 * short else crop
    down, across = (edge // window + (edge % window > 0.2 * window) if edge >= window else 1 for edge in (height, width))
    return down, across


def lines(medium: Medium, *, patch: int, height: int, width: int) -> Cut:
    """Cut an image as Fuyu does.

    The image is shrunk to a screen. Each patch is a token, and one more token ends each line of patches.

    Args:
        medium: The image.
        patch: Pixels on a side of a patch.
        height: Height of the screen [pixels].
        width: Width of the screen [pixels].

    Returns:
        The cut.
    """
    scale = min(1.0, height / medium.height, width / medium.width)
    tall, wide = (max(1, math.ceil(int(side * scale) / patch)) for side in (medium.height, medium.width))
    return single_sequence(tall * wide, tall * (wide + 1))


def frames(medium: Medium, *, longest: float = 30.0, max_tokens: int = 750) -> Cut:
    """Cut a recording as Gemma 4 does.

    There is one spectrum per 10 ms. Two convolutions of stride 2 keep one in four as a row and a token. The processor
    cuts off a recording after `longest`; steptime refuses it.

    Args:
        medium: The recording.
        longest: Longest recording [s].
        max_tokens: Most tokens of a recording.

    Returns:
        The cut.

    Raises:
        RangeError: The recording is too long, or shorter than one spectrum.

    References:
        `_compute_audio_num_tokens` of transformers, gemma4/processing_gemma4.py.
    """
    _check_length(medium, longest)
    rows = (round(medium.seconds * SAMPLES) + FRAME // 2 - (FRAME + 1)) // HOP + 1
    # Two convolutions with kernel 3, stride 2 and padding 1.
    for _ in range(2):
        rows = (rows + 2 - 3) // 2 + 1
    if rows < 1:
        raise RangeError(f"audio: must be at least one spectrum of {1000 * FRAME / SAMPLES:g} ms, got {medium.size_text}")
    return single_sequence(min(rows, max_tokens), min(rows, max_tokens))


def padded(medium: Medium, *, tokens: int, reduced: int, longest: float = 30.0) -> Cut:
    """Cut a recording as Gemma 3n does: a fixed number of tokens.

    Args:
        medium: The recording.
        tokens: Tokens of any recording.
        reduced: Rows per token.
        longest: Longest recording [s].

    Returns:
        The cut.

    Raises:
        RangeError: The recording is too long.
    """
    _check_length(medium, longest)
    rows = math.ceil(medium.seconds * SAMPLES / HOP / 4)
    return single_sequence(min(rows, tokens * reduced), tokens)


def samples(medium: Medium, *, samples: int, longest: float = 30.0) -> Cut:
    """Cut a recording as Gemma 4 does without a tower for sound.

    Args:
        medium: The recording.
        samples: Samples per token.
        longest: Longest recording [s].

    Returns:
        The cut.

    Raises:
        RangeError: The recording is too long.
    """
    _check_length(medium, longest)
    rows = math.ceil(medium.seconds * SAMPLES / samples)
    return single_sequence(rows, rows)


def untimed(_: Medium, *, reason: str) -> Cut:
    """Refuse an image for a tower whose parameters are counted but not its time.

    Args:
        _: The image.
        reason: Why the time is not modelled.

    Returns:
        Nothing; it always raises.

    Raises:
        RangeError: Always, with the reason.
    """
    raise RangeError(reason)


def _check_length(medium: Medium, longest: float) -> None:
    if medium.seconds > longest:
        raise RangeError(
            f"audio: the processor accepts at most {longest:g} seconds per recording, got {medium.size_text}; split the "
            f"recording, such as {longest:g}*2"
        )
