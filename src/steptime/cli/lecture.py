"""The commands `steptime lecture`, `roofline`, `reversible`, `web` and `mcp`: the lecture, on real models, as a page; tools."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from steptime.cli.models import ModelFormats
from steptime.cli.options import CATALOG, OUTPUT, SET, Output, count, grouped, option, read_system, typed_with_changes
from steptime.cli.output import check_outputs, make_console, patience
from steptime.errors import InputError, UnknownName
from steptime.lecture.pair_roofline import ROOFLINE, RooflineInputs, solve
from steptime.units import count as read_count

if TYPE_CHECKING:
    from steptime.lecture.lecture_content import Card

# Panels of `--help`.
ACTION, HOW = "Actions", "Server"
# Endings of files that are no page.
FILE_ENDINGS = (".txt", ".md", ".pdf", ".json", ".csv", ".svg", ".png", ".zip", ".htm")
HOST_NAME = re.compile(r"(\*\.)?[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|\[[0-9a-fA-F:.]{2,45}\]")


@grouped
def lecture(
    ctx: typer.Context,
    output: Output,
    section: Annotated[
        int | None, typer.Argument(help="Section to show, 1 to 18. Without it: the list of sections.", show_default=False)
    ] = None,
    check: Annotated[
        bool,
        option(
            "Compute all verdicts again and list the numbers that do not hold; exit code 1 if a verdict changed.",
            ACTION,
            "--check",
        ),
    ] = False,
    quiz: Annotated[bool, option("Ask you the question cards, all or those of the section.", ACTION, "--quiz")] = False,
) -> None:
    """Show the lecture behind the tool: sections with plots, a verdict on every number, question cards.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    from steptime.errors import RangeError
    from steptime.lecture import lecture_content

    if check and (quiz or section is not None):
        raise RangeError("--check is of the whole lecture; leave out the section and --quiz")
    if quiz and output.json:
        raise RangeError("--quiz asks in words; leave out --json")
    needs = {
        "the list or --check": (not quiz and section is None, "csv"),
        "text, not --json or --quiz": (not (output.json or quiz), "full"),
    }
    output.check(ctx, needs)
    part = None if section is None else lecture_content.section(section)
    if quiz:
        _quiz(section)
    elif check:
        report = lecture_content.check()
        output.print(report, "lecture_view.check_view")
        raise typer.Exit(int(bool(report.changed)))
    elif part is not None:
        output.print(part, "lecture_view.section_view")
    else:
        output.print(lecture_content.contents(), "lecture_view.lecture_view")


def _quiz(section: int | None) -> None:
    """Ask the cards one by one: a number is judged, an empty line shows the answer, and q or the end of input ends."""
    from steptime.errors import RangeError
    from steptime.lecture.lecture_content import cards

    section_cards = [card for card in cards() if section in (None, card.section)]
    if not section_cards:
        sections = sorted({card.section for card in cards()})
        raise RangeError(f"no card is of section {section}; there are some of {', '.join(map(str, sections))}")
    for number, card in enumerate(section_cards, start=1):
        if not _ask(card, f"{number} of {len(section_cards)}"):
            return


def _ask(card: "Card", place: str) -> bool:
    """Ask one card and show its answer; return whether to go on."""
    from rich.text import Text

    from steptime.cli.views.lecture_view import card_view

    console = make_console()
    console.print(
        Text.assemble((f"Card {card.number} ({place}): ", "bold"), card.question), f"  Number: {card.statement.name}.", sep="\n"
    )
    try:
        answer = input("> ").strip()
    except EOFError:
        return False
    if answer.casefold() in ("q", "quit"):
        return False
    if answer:
        console.print(_judge_answer(card, answer))
    console.print(card_view(card), "", sep="\n")
    return True


def _judge_answer(card: "Card", answer: str) -> str:
    """Say how near an answer is to the stated or computed number."""
    from steptime.errors import UnitError
    from steptime.lecture.lecture_content import FACTOR, HOLDS, WITHIN_FACTOR, verdict
    from steptime.units import parse

    statement = card.statement
    try:
        value = parse(answer, statement.unit if statement.unit in ("s", "B") else "")
    except UnitError:
        return "Not a number; here is the answer."
    grades = {verdict([value], right, tolerance=0.1) for right in (statement.stated, *statement.computed)}
    return "Right." if HOLDS in grades else f"Near: within a factor of {WITHIN_FACTOR:g}." if FACTOR in grades else "No."


@grouped
def roofline(ctx: typer.Context, inputs: RooflineInputs, output: Output, set_: SET = None) -> None:
    """Compute the lecture's numbers for a real model on one scale-up domain, each closed form next to the full model.

    Args:
        ctx: context of typer; the other arguments are options, described by their help.
    """
    output.check(ctx, inputs=[inputs.model, inputs.system])
    board = solve(typed_with_changes(ctx, RooflineInputs, set_))
    output.print(board, "lecture_view.roofline_view", summary=ROOFLINE.read_result)


def web(
    host: Annotated[
        str, option("Address to listen on; any address but loopback opens the page to the network.", HOW)
    ] = "127.0.0.1",
    port: Annotated[int, count("--port", "Port; the next free one where it is taken.", HOW)] = 8421,
    allow_host: Annotated[
        list[str] | None,
        option("Name or address that visitors type, if it differs from --host; repeatable.", HOW, metavar="NAME"),
    ] = None,
    no_browser: Annotated[bool, option("Do not open a browser.", HOW, "--no-browser")] = False,
    export: Annotated[
        str | None,
        option(
            "Write the lecture to one .html file, or the page with precomputed answers to a folder, and end.",
            HOW,
            metavar="PATH",
        ),
    ] = None,
) -> None:
    """Open the lecture as a page, with a workbench of boards for real models and machines.

    Args:
        host: address to listen on; help texts describe all options.
    """
    from steptime.errors import RangeError, install_hint

    if not 1 <= port <= 65_535:
        raise RangeError(f"--port must be from 1 to 65,535, not {port}")
    is_file = export is not None and export.casefold().endswith(".html")
    if is_file:
        check_outputs({"--export": export}, ())
    elif export is not None and Path(export).suffix.casefold() in FILE_ENDINGS and not Path(export).is_dir():
        raise InputError(f"{export}: --export writes one .html file or a folder; name the file {Path(export).stem}.html")
    if export is not None and is_file:
        from steptime.web.lecture_page import export_lecture

        size = export_lecture(export)
        typer.echo(f"{export}: {size / 1e3:,.0f} kB; a browser opens it without a server")
        return
    try:
        import fastapi  # noqa: F401 - whether it is there
        import uvicorn  # noqa: F401
    except ImportError:
        raise InputError(f"the page needs FastAPI and uvicorn: {install_hint('web')}") from None
    if export is not None:
        from steptime.cli.output import patience
        from steptime.web.page_export import export_to

        with patience("computing boards"):
            answer_count = export_to(export)
        typer.echo(f"{answer_count} answers in {export}; serve the folder with any file server")
        return
    from steptime.web.app import serve
    from steptime.web.server import answered_hosts, is_loopback

    allowed = tuple(allow_host or ())
    for name in allowed:
        if not HOST_NAME.fullmatch(name):
            raise InputError(f"--allow-host: must be a host name or an address without a port, got {name!r}")
    if not is_loopback(host):
        answered = ", ".join(answered_hosts(host, allowed))
        typer.echo(
            f"Warning: --host {host} opens the page to the network, without a password. Requests are answered that name "
            f"{answered}; --allow-host NAME adds a name.",
            err=True,
        )
    serve(
        host, port, browse=not no_browser, allowed=allowed,
        announce=lambda address: typer.echo(f"steptime at {address} (Ctrl+C ends it)"),
    )  # fmt: skip


def mcp(
    http: Annotated[
        int | None, count("--http", "Port of loopback HTTP, in place of standard input and output.", HOW, show_default=False)
    ] = None,
) -> None:
    """Serve the questions as tools of an assistant, by the Model Context Protocol.

    An assistant starts `steptime mcp` by itself: {"mcpServers": {"steptime": {"command": "steptime", "args": ["mcp"]}}}.

    Args:
        http: port of loopback HTTP; None: standard input and output.
    """
    from importlib.util import find_spec

    from steptime.errors import InputError, RangeError, install_hint

    if http is not None and not 1 <= http <= 65_535:
        raise RangeError(f"--http must be from 1 to 65,535, not {http}")
    if find_spec("mcp") is None:
        raise InputError(f"steptime mcp needs the SDK of the Model Context Protocol: {install_hint('mcp')}")
    from steptime.web.mcp_server import serve

    serve(http)


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
