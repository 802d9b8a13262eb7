"""The command `steptime reversible`."""

from collections.abc import Sequence
from typing import Annotated

import typer

from steptime.cli.models import ModelFormats
from steptime.cli.options import CATALOG, OUTPUT, SET, Output, count, grouped, option, read_system
from steptime.cli.output import patience
from steptime.errors import InputError, UnknownName
from steptime.units import count as read_count

STACKS, MIXING, CACHE = "Stacks", "Mixing", "Cache"
TOPICS = ("stacks", "mixing", "sboxes", "cache")
WORDS = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[stacks|mixing|sboxes|cache] ...",
        help="stacks (the default, needs PyTorch): memory, FLOP, time and gradient error of plain, checkpointed and reversible "
        "stacks. mixing: rounds until each output bit depends on each input bit, for ciphers and networks. "
        "sboxes NAME (present, aes, or values separated by commas): differences and linear approximations of an S-box. "
        "cache MODEL[,MODEL...] SYSTEM: when to keep a KV cache, and when to recompute it.",
        show_default=False,
    ),
]


@grouped
def reversible(
    ctx: typer.Context,
    formats: ModelFormats,
    output: Output,
    words: WORDS = None,
    depth: Annotated[int, count("--depth", "Number of blocks of the deepest stack.", STACKS)] = 64,
    width: Annotated[int, count("--width", "Width of the activations, both streams together.", STACKS)] = 1024,
    rows: Annotated[int, count("--rows", "Rows of the input.", STACKS)] = 64,
    dtype: Annotated[str, option("Number format: float64, float32 or bfloat16.", STACKS)] = "float32",
    device: Annotated[str | None, option("Device: cpu or cuda.", STACKS, show_default="a GPU where there is one")] = None,
    repeats: Annotated[int, count("--repeats", "Repetitions of each measurement; the median is shown.", STACKS)] = 3,
    samples: Annotated[int, count("--samples", "Number of block pairs that differ in one bit.", MIXING)] = 4096,
    context: Annotated[str, option("Contexts in tokens, separated by commas (k is 1,000).", CACHE)] = "8k,128k",
    set_: SET = None,
    catalog: CATALOG = None,
    seed: Annotated[int, count("--seed", "Seed of random weights, keys and blocks.", OUTPUT)] = 0,
) -> None:
    """Trade memory for arithmetic: networks undone instead of stored, ciphers that mix alike, caches that do the reverse.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    topic, arguments = _topic(words or [])
    needs = {
        f"stacks, not {topic}": (topic == "stacks", "depth width rows dtype device repeats"),
        f"mixing, not {topic}": (topic == "mixing", "samples"),
        f"cache, not {topic}": (topic == "cache", "context weights experts kv set_ catalog"),
        f"stacks or mixing, not {topic}": (topic in ("stacks", "mixing"), "seed"),
    }
    output.check(ctx, needs)
    if topic == "stacks":
        from steptime.reversible.reversible_stacks import measure_stacks

        with patience("Measuring stacks of several depths ..."):
            stacks = measure_stacks(depth=depth, width=width, rows=rows, dtype=dtype, device=device, repeats=repeats, seed=seed)
        output.print(stacks, "reversible_view.stacks_view")
    elif topic == "mixing":
        from steptime.reversible.avalanche import mixing

        with patience("Mixing, and training a small network ..."):
            shares = mixing(samples=samples, seed=seed)
        output.print(shares, "reversible_view.mixing_view")
    elif topic == "sboxes":
        from steptime.reversible.sboxes import sbox_card

        sbox = arguments[0] if arguments else "present"
        values = [_value(text.strip()) for text in sbox.split(",")] if "," in sbox else sbox
        output.print(sbox_card(values), "reversible_view.sbox_view")
    else:
        from steptime.describe.kv_tradeoff import REVERSIBLE, cache_trade

        system = read_system(arguments[1], set_, catalog)
        models = [formats.read_model(name.strip(), catalog) for name in arguments[0].split(",")]
        trade = cache_trade(models, system, [read_count(text.strip(), "--context") for text in context.split(",")])
        # Only the trade of a single cache has the answers of the question.
        output.print(trade, "reversible_view.cache_view", summary=REVERSIBLE.read_result if len(trade.caches) == 1 else None)


def _topic(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the topic, stacks by default, and its words; raise InputError for words too many or too few."""
    topic, *arguments = words or ["stacks"]
    if topic not in TOPICS:
        raise UnknownName("topic", topic, TOPICS, "Known: " + ", ".join(TOPICS) + ".")
    word_limits = {"stacks": (0, 0), "mixing": (0, 0), "sboxes": (0, 1), "cache": (2, 2)}[topic]
    if not word_limits[0] <= len(arguments) <= word_limits[1]:
        needs = {
            "sboxes": "takes one S-box: present, aes, or values with commas between",
            "cache": "takes a model, or several with commas between, and a system",
        }.get(topic, "takes no words behind it")
        raise InputError(f"`steptime reversible {topic}` {needs}; `steptime reversible --help` has examples")
    return topic, arguments


def _value(text: str) -> int:
    """Return a whole number such as 12 or 0xc."""
    try:
        return int(text, 16) if text.startswith("0x") else int(text)
    except ValueError:
        raise InputError(f"an S-box is whole numbers such as 12 or 0xc with commas between, not {text!r}") from None
