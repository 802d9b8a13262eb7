"""The command `steptime reversible`."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steptime.cli.options import CATALOG, CSV, EXPERTS, FULL, JSON, KV, OUTPUT, SET, WEIGHTS, count, option, refuse_idle
from steptime.cli.output import check_outputs, patience, print_result
from steptime.errors import InputError, UnknownName

if TYPE_CHECKING:
    from steptime.result_base import Tabular

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


def reversible(
    ctx: typer.Context,
    words: WORDS = None,
    depth: Annotated[int, count("--depth", "Number of blocks of the deepest stack.", STACKS)] = 64,
    width: Annotated[int, count("--width", "Width of the activations, both streams together.", STACKS)] = 1024,
    rows: Annotated[int, count("--rows", "Rows of the input.", STACKS)] = 64,
    dtype: Annotated[str, option("Number format: float64, float32 or bfloat16.", STACKS)] = "float32",
    device: Annotated[str | None, option("Device: cpu or cuda.", STACKS, show_default="a GPU where there is one")] = None,
    repeats: Annotated[int, count("--repeats", "Repetitions of each measurement; the median is shown.", STACKS)] = 3,
    samples: Annotated[int, count("--samples", "Number of block pairs that differ in one bit.", MIXING)] = 4096,
    context: Annotated[str, option("Contexts in tokens, separated by commas (k is 1,000).", CACHE)] = "8k,128k",
    weights: WEIGHTS = None,
    experts: EXPERTS = None,
    kv: KV = None,
    set_: SET = None,
    catalog: CATALOG = None,
    seed: Annotated[int, count("--seed", "Seed of random weights, keys and blocks.", OUTPUT)] = 0,
    csv: CSV = None,
    full: FULL = False,
    json: JSON = False,
) -> None:
    """Trade memory for arithmetic: networks undone instead of stored, ciphers that mix alike, caches that do the reverse.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    topic, arguments = _topic(words or [])
    refuse_idle(
        ctx,
        {
            f"stacks, not {topic}": (topic == "stacks", "depth width rows dtype device repeats"),
            f"mixing, not {topic}": (topic == "mixing", "samples"),
            f"cache, not {topic}": (topic == "cache", "context weights experts kv set_ catalog"),
            f"stacks or mixing, not {topic}": (topic in ("stacks", "mixing"), "seed"),
            "text, not --json": (not json, "full"),
        },
    )
    check_outputs({"--csv": csv}, [])
    if topic == "stacks":
        table: Tabular = _stacks(
            {"depth": depth, "width": width, "rows": rows, "dtype": dtype, "device": device, "repeats": repeats, "seed": seed}
        )
    elif topic == "mixing":
        table = _mixing(samples, seed)
    elif topic == "sboxes":
        table = _sbox(arguments)
    else:
        table = _cache(arguments, context, {"weights": weights, "experts": experts, "kv": kv}, set_, catalog)
    print_result(table, "reversible_view.result_view", csv=csv, json=json, summary=_summary(table), full=full)


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


def _stacks(settings: dict[str, Any]) -> "Tabular":
    from steptime.reversible.reversible_stacks import measure_stacks

    with patience("Measuring stacks of several depths ..."):
        return measure_stacks(**settings)


def _mixing(samples: int, seed: int) -> "Tabular":
    from steptime.reversible.avalanche import mixing

    with patience("Mixing, and training a small network ..."):
        return mixing(samples=samples, seed=seed)


def _sbox(words: list[str]) -> "Tabular":
    from steptime.reversible.sboxes import sbox_card

    sbox = words[0] if words else "present"
    if "," not in sbox:
        return sbox_card(sbox)
    return sbox_card([_value(text.strip()) for text in sbox.split(",")])


def _value(text: str) -> int:
    """Return a whole number such as 12 or 0xc."""
    try:
        return int(text, 16) if text.startswith("0x") else int(text)
    except ValueError:
        raise InputError(f"an S-box is whole numbers such as 12 or 0xc with commas between, not {text!r}") from None


def _cache(
    words: list[str], context: str, formats: dict[str, str | None], changes: list[str] | None, catalog: str | None
) -> "Tabular":
    from steptime.cli.options import read_model, read_system
    from steptime.describe.kv_tradeoff import cache_trade
    from steptime.units import count as read_count

    system = read_system(words[1], changes, catalog)
    models = [read_model(name.strip(), catalog=catalog, **formats) for name in words[0].split(",")]
    return cache_trade(models, system, [read_count(text.strip(), "--context") for text in context.split(",")])


def _summary(result: "Tabular") -> Callable[[Any], Mapping[str, Any]] | None:
    """Return what reads the answers of the question from a result; None except for the trade of one cache."""
    from steptime.describe.kv_tradeoff import REVERSIBLE, CacheTrade

    return REVERSIBLE.read_result if isinstance(result, CacheTrade) and len(result.caches) == 1 else None
