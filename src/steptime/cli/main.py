"""The command line: it reads words, calls the library and prints the result. No formula lives here."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from steptime.cli.output import drop, prepare, print_json, say, unwritten
from steptime.errors import Impossible, InputError, did_you_mean, short_repr

ANSWERED, IMPOSSIBLE, WRONG, INTERRUPTED = 0, 1, 2, 130
# Commands that share the module of another.
MODULES = {
    "anchors": "validate", "calibrate": "validate", "rl": "budget", "laws": "budget", "systems": "models", "engines": "models",
    "context": "compare", "design": "sweep", "sensitivity": "sweep", "roofline": "lecture", "web": "lecture",
    "mcp": "lecture", "fleet": "plan", "predictor": "step", "watch": "validate", "reversible": "lecture",
}  # fmt: skip
OPEN = ("sweep", "design", "sensitivity")  # commands that take the options of others too
FREE: dict[str, Any] = {"ignore_unknown_options": True, "allow_interspersed_args": True}
NOT_A_NUMBER = re.compile(r"\AInvalid value for '([\w-]+)'[^:]*: ('.*') is not a valid (int|float)\w*")
UNDERSTOOD: Any = typer.BadParameter.__base__  # what typer raises for words that it cannot read

EXAMPLES: dict[str, tuple[str, ...]] = {
    "plan": (
        "plan qwen3-235b-a22b hgx-b200 --input 4k --output 1k --speed 40 --launch vllm",
        "plan deepseek-v3 gb200-nvl72 --input 8k --output 1k --speed 50 --csv front.csv",
        "plan llama-3.1-70b hgx-h200 --weights fp8 --speed 40 --anchor vllm-result.json,tp=4",
        "plan deepseek-v3 hgx-h200 --chips 16 --prefill-system hgx-b200 --input 8k --output 1k --speed 20 --ttft 4",
    ),
    "compare": (
        "compare llama-3.3-70b --input 2k --output 500 --speed 40 --ttft 1",
        "compare deepseek-v3,kimi-k2 hgx-b200,gb200-nvl72 --speed 30 --rent ondemand",
        "compare qwen3-32b --vendor NVIDIA,AMD --year 2023.. --chips any --csv table.csv",
        "compare train llama-3.1-70b hgx-h100,hgx-b200,gb200-nvl72 --seq 8192 --batch 2048 --tokens 15T --deadline 60d",
    ),
    "sweep": (
        "sweep step llama-3.3-70b hgx-h100 --tp 8 --over batch=1:4096:log2 --over context=1k,8k,64k --plot cost.png",
        "sweep plan llama-3.3-70b --over system=hgx-h100,hgx-b200 --over speed=20:80:4 --input 2k --out plans.xlsx",
        "sweep step deepseek-v3 gb200-nvl72 --dp 72 --ep 72 --batch 4k --over chip.hbm.bandwidth=4TB/s:32TB/s:9",
        "sweep simulate llama-3.1-8b hgx-h100 --over rate=5:40:8 --input 512 --output 128",
        "sweep train llama-3.1-8b hgx-h100 --over chips=64:512:log2 --batch 1024 --tokens 1T --anchor runs.csv",
        "sweep blackboard.drain_seconds --over bandwidth=1TB/s:20TB/s:20log --capacity 80GB --out drain.xlsx",
    ),
    "design": (
        "design step llama-3.3-70b hgx-h100 --tp 8 --batch 64 --over times.bandwidth=0.5:5:46 --within power",
        "design deepseek-v3 gb200-nvl72 --over arch.attention=grouped,latent --arch.equal total --input 128k --cached 0.98",
        "design step llama-3.3-70b hgx-b200 --tp 2 --over arch.kv_heads=2,4,8 --over batch=1:256:log2 --plot front.svg",
        "design train llama-3.1-8b hgx-h100 --batch 512 --tokens 1T --over chips=64,128,256 --over times.flops=1,2",
    ),
    "sensitivity": (
        "sensitivity step deepseek-v3 gb200-nvl72 --dp 72 --ep 72 --batch 4k --sobol --plot tornado.png",
        "sensitivity plan llama-3.3-70b hgx-h100 --speed 40 --vary input=1k:4k",
        "sensitivity step llama-3.3-70b hgx-h100 --tp 8 --batch 256 --answer time --vary memory_efficiency=0.7:0.9",
        "sensitivity blackboard.cost_per_token --chips 72 --batch 2000 --vary seconds=10ms:30ms --vary rent=1.5USD/h:3USD/h",
    ),
    "reversible": (
        "reversible cache deepseek-v3,llama-3.3-70b hgx-h200 --context 8k,128k",
        "reversible mixing --samples 10k",
        "reversible sboxes aes --csv aes.csv",
        "reversible --depth 64 --width 1024",
    ),
    "step": (
        "step deepseek-v3 gb200-nvl72 --batch 8192 --context 4096 --dp 72 --ep 72 --explain",
        "step llama-3.3-70b hgx-h100 --phase prefill --tokens 8k --tp 8",
        "step llama-3.1-70b hgx-h200 --batch 64 --tp 4 --anchor runs.csv",
    ),
    "prices": (
        "prices deepseek-v3 --mix 4096:1024:0.5",
        "prices openai/gpt-6-sol --read --lecture",
        "prices anthropic/claude-opus-4-6 --read --date 2026-03-01 --margin 1.2..7",
        "prices deepseek-v3 gb200-nvl72 --target-margin 2",
        "prices deepseek-v3 --self-host hgx-h200 --tokens-per-day 5G --chips 16 --spare 1",
        "prices glm-5.2 --history",
    ),
    "simulate": (
        "simulate llama-3.1-8b hgx-h100 --rate 20 --input 512 --output 128 --ttft 0.2",
        "simulate llama-3.1-8b hgx-h100 --find-rate --ttft 0.5 --speed 50",
        "simulate llama-3.3-70b hgx-h100 --tp 4 --weights fp8 --rate 20 --ttft 1 --speed 30 --find-replicas",
        "simulate llama-3.1-70b hgx-h100 --tp 4 --concurrency 64 --anchor runs.csv",
        "simulate qwen3-32b hgx-h200 --tp 2 --replicas 2 --prefill-replicas 2 --trace requests.csv",
    ),
    "budget": (
        "budget --match-quality 100B@200T --tokens-served 50M/s --lifetime 60d",
        "budget --match-quality llama-3.1-8b@15T --tokens-served 200T --lifetime 365d --serving-system gb200-nvl72 --speed 50",
        "budget --usd 100M --tokens-served 5M/s --lifetime 180d --law epoch,hoffmann --discard 0.3 --plot bill.png",
        "budget --compute 1e26 --experts 32 --rl-share 0.3",
    ),
    "rl": (
        "rl qwen3-30b-a3b hgx-h100 --chips 32 --tp 2 --rollouts 2048 --output 3200 --longest 4096",
        "rl llama-3.1-70b hgx-h200 --chips 256 --rollouts 1024 --output 4k --longest 32k --off-policy",
    ),
    "laws": (
        "laws",
        "laws epoch",
        "laws --params 70B --tokens 15T",
        "laws --moe 37B --tokens 14.8T --system gb200-nvl72 --plot experts.svg",
    ),
    "train": (
        "train llama-3-70b hgx-h100 --chips 512 --seq 8192 --batch 1024 --tokens 15T",
        "train deepseek-v3 hgx-h800 --chips 2048 --seq 4096 --batch 15360 --dtype fp8 --tokens 14.8T --ramp 469B:3072",
        "train llama-3.1-405b hgx-h100 --chips 1024 --seq 8192 --batch 1024 --tp 8 --pp 8 --vpp 8 --scaling",
        "train llama-3-8b hgx-h100 --chips 64 --batch 256 --engine torchtitan --launch torchtitan",
        "train llama-3-8b hgx-h100 --chips 64 --batch 256 --anchor training-runs.csv",
        "train llama-2-7b rtx-4090-8 --chips 8 --batch 16 --task lora",
    ),
    "lecture": ("lecture", "lecture 3", "lecture --check", "lecture --quiz"),
    "roofline": (
        "roofline deepseek-v3 gb200-nvl72",
        "roofline llama-3.3-70b hgx-h100 --weights fp8 --context 32k",
    ),
    "context": (
        "context llama-3.3-70b hgx-h200 --speed 30",
        "context deepseek-v3 gb200-nvl72 --context 1M --usd 10 --plot walls.svg",
        "context qwen3-32b hgx-b200 --technique window=1024@5of6+share=2 --technique latent=512 --technique kv=int4",
    ),
    "web": ("web", "web --port 9000 --no-browser", "web --export lecture.html", "web --export site/"),
    "mcp": ("mcp", "mcp --http 8422"),
    "fleet": ("fleet fleet.toml", "fleet fleet.toml --budget 120", "fleet fleet.yaml --json"),
    "predictor": (
        "predictor llama-3.1-8b hgx-h100 --json",
        "predictor qwen3-30b-a3b hgx-h200 --tp 2 --max-batch 64 --json",
        "predictor gpt-oss-20b dgx-spark --engine llama.cpp --weights q8_0 --experts mxfp4 --max-batch 32 --json",
    ),
    "models": (
        "models deepseek-v3",
        "models --like qwen3",
        "models --new path/to/config.json",
        "models --table deepseek-v3 qwen3-235b-a22b kimi-k2 --context 128k",
    ),
    "systems": ("systems", "systems gb200-nvl72", "systems hgx-h100 --toml > mine.toml"),
    "engines": ("engines", "engines vllm"),
    "validate": (
        "validate runs.csv --predictions predicted.csv",
        "validate vllm-result.json --system hgx-h200 --tp 4 --weights fp8",
    ),
    "anchors": (
        "anchors",
        "anchors add vllm-result.json --system hgx-h200 --tp 4 --weights fp8 --name mine",
        "anchors add training-runs.csv",
        "anchors remove mine",
    ),
    "watch": (
        "watch localhost:8000 --model llama-3.1-8b --system hgx-h100 --weights bf16",
        "watch localhost:30000 --model qwen3-32b --system hgx-h200 --tp 2 --weights bf16 --exporter 9105",
        "watch --dashboard board.json",
    ),
    "calibrate": (
        "calibrate runs.csv --prior vllm --name mine --out mine.toml",
        "calibrate results/ --prior vllm --name mine --system hgx-h200 --tp 4 --weights fp8",
    ),
}
# Words that are not commands, and the command line for each of them.
NEAR_COMMANDS: dict[str, str] = {
    "launch": "plan MODEL SYSTEM --launch vllm",
    "serve": "plan MODEL SYSTEM --launch vllm",
    "cost": "plan MODEL SYSTEM",
    "batch": "roofline MODEL SYSTEM",
    "price": "prices MODEL",
    "hardware": "systems",
    "quiz": "lecture --quiz",
    "benchmark": "validate runs.csv",
    "monitor": "watch localhost:8000 --model MODEL --system SYSTEM --weights FORMAT",
}
# Arguments whose values a command lists, with an example.
CATALOGUES = {"model": ("models", "llama-3.3-70b"), "system": ("systems", "hgx-h100")}
# What each command answers, as `steptime --help` lists it: no command is imported for that list.
SUMMARIES: dict[str, str] = {
    "plan": "Find the cheapest deployment of a model on a system within latency limits.",
    "compare": "Compare models and systems: the cheapest plan of each pair, ties, and what would change the order.",
    "sweep": "Run one question for many values of its inputs: tables, files and plots.",
    "design": "Design models and chips that do not exist yet: heads, experts, depth; bandwidth against FLOP/s.",
    "sensitivity": "Find which uncertain input changes an answer most, and what to measure first.",
    "reversible": "Recompute or store: reversible layers save memory, KV caches save FLOP; ciphers show how fast bits mix.",
    "step": "Time one forward pass: decode, prefill, or both, on a layout of your choice.",
    "prices": "Compare API prices with the cost of serving; estimate a model from its price list, or propose prices.",
    "simulate": "Simulate requests one by one: queues, percentiles, and the highest rate within limits.",
    "budget": "Find the model size and training tokens with the lowest lifetime cost, for a quality and a traffic.",
    "rl": "Estimate time and rent of one RL step: rollout, log-probabilities, training, weight transfer.",
    "laws": "List scaling laws, show one, predict a model's loss, or compare MoE models with dense ones.",
    "train": "Find the fastest layout of a training run: step time, MFU, memory, days, dollars and failures.",
    "lecture": "Show the notes of the lecture behind the tool: sections with plots, a check of every number, a quiz.",
    "roofline": "Compute the lecture's numbers (R, best batch, L*, price of speed) for a model on one rack or node.",
    "context": "Find the longest context for a speed and a price, and what compressing the cache changes.",
    "web": "Open the lecture as an interactive page, with a workbench; or write it to one HTML file.",
    "mcp": "Serve the questions as tools of an assistant (Model Context Protocol).",
    "fleet": "Place several models with their rates on a stock of chips: the cheapest deployments, or why none is possible.",
    "predictor": "Compile step times into a table that answers in microseconds, for simulators of engines; serve it locally.",
    "models": "List the models, compare some, or show one.",
    "systems": "List the systems, or show one: rates, links, rent, and the source of each figure.",
    "engines": "List the serving engines and the training stacks, or show the constants of one.",
    "validate": "Compare predictions with measured runs: error, bias, and the share of runs inside the 90 % range.",
    "anchors": "Keep your measured runs; plan, step, simulate and train correct their predictions by them.",
    "watch": "Compare a running vLLM or SGLang server with its prediction: TPOT, TTFT, throughput, cost, and what drifted.",
    "calibrate": "Fit an engine's physical constants to your own measured runs, with a shipped engine as prior.",
}


def app_for(words: Sequence[str] | None = None) -> typer.Typer:
    """Return the command line.

    Args:
        words: what was typed. If the first word names a command, only that command is imported; otherwise commands are
            listed without being imported. None: all commands.

    Returns:
        The application.
    """
    app = typer.Typer(
        name="steptime",
        help="The arithmetic of serving large language models: step time, latency, throughput and dollars per token.",
        no_args_is_help=True, add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog="Example:\n\n"
        "steptime plan deepseek-ai/DeepSeek-V3 gb200-nvl72 --input 8192 --output 1024 --speed 50 --ttft 2\n\n"
        "Exit codes: 0 an answer; 1 limits that nothing meets, a model that does not fit, or a "
        "simulated queue that grows; 2 wrong input; 130 interrupted.",
    )  # fmt: skip
    command_names = words[:1] if words and words[0] in EXAMPLES else ()
    for name in command_names or EXAMPLES:
        is_listed_only = words is not None and not command_names
        module = None if is_listed_only else import_module(f"steptime.cli.{MODULES.get(name, name)}")
        command = _stub if module is None else getattr(module, name)
        # A command that reads a file shows its keys.
        summary = "\n\n".join(filter(None, (SUMMARIES[name], getattr(module, f"{name.upper()}_FILE", ""))))
        notes = _mcp_notes() if name == "mcp" and module is not None else ()
        epilog = "\n\n".join([*notes, "Examples:", *(f"steptime {example}" for example in EXAMPLES[name])])
        app.command(name, cls=StrictCommand, help=summary, epilog=epilog, context_settings=FREE if name in OPEN else {})(
            command
        )
    app.callback(invoke_without_command=True)(_version)
    return app


class StrictCommand(TyperCommand):
    """A command that refuses an option of one value that is given twice, where the last would win silently."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of a command line.

        Args:
            ctx: context of typer.
            args: the words.

        Returns:
            Words that are not parsed.

        Raises:
            InputError: if an option that takes one value has several.
        """
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for option in order:
            if order.count(option) > 1 and not getattr(option, "multiple", True) and not getattr(option, "is_flag", False):
                raise InputError(f"{option.opts[0]}: takes one value, got {order.count(option)}; keep one of them")
        return super().parse_args(ctx, args)


def _mcp_notes() -> tuple[str, ...]:
    """Return the tools of `steptime mcp`, how a client starts it, and its page."""
    from steptime.web.mcp_tools import questions

    return (
        f"Tools: {', '.join(questions())}.",
        "A client starts the server by itself, with these settings:",
        '{"mcpServers": {"steptime": {"command": "steptime", "args": ["mcp"]}}}',
        "Schemas, resources and limits: docs/mcp.md.",
    )


def _import_help() -> None:
    """Import what writes help without rich's Markdown and tracebacks: typer imports both, a third of the time of `--help`."""
    unused = [name for name in ("Markdown", "Traceback") if f"rich.{name.lower()}" not in sys.modules]
    for name in unused:
        module = sys.modules[f"rich.{name.lower()}"] = ModuleType(f"rich.{name.lower()}")
        setattr(module, name, None)
    import_module("typer.rich_utils")
    for name in unused:
        del sys.modules[f"rich.{name.lower()}"]


def _stub() -> None:
    """Stand for a command in the list of commands."""


def _version(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"steptime {installed('steptime')}")
        raise typer.Exit


def main() -> None:
    """Run the command line and leave with its exit code."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # no product here is large, and threads cost time and forbid copies
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # else all packages are searched for some
    try:
        code = _answered()
    except KeyboardInterrupt:
        code = INTERRUPTED
    write_error = unwritten() if sys.stdout is not None else ""
    if write_error:
        say(f"steptime: {write_error}")
        code = WRONG
    if code:
        raise SystemExit(code)


def _answered() -> int:
    """Run the command line; wrong input, and a place that takes no answer, get one message and exit code 2."""
    try:
        prepare()
        words = sys.argv[1:]
        # `compare train MODEL SYSTEM,SYSTEM` is the question of `train` on several systems.
        if words[:2] == ["compare", "train"]:
            words = words[1:]
            if not any(word in words for word in ("--help", "-h")) and _lacks_systems(words[1:]):
                raise InputError(
                    "compare train needs the systems, since it has no default: compare train MODEL SYSTEM,SYSTEM, such as "
                    "compare train llama-3.1-70b hgx-h100,hgx-b200; its options are those of `steptime train --help`"
                )
        if not words or not {"--help", "-h"}.isdisjoint(words):
            _import_help()
        return app_for(words)(args=words, prog_name="steptime", standalone_mode=False) or ANSWERED
    except InputError as problem:
        return _refused(problem)
    except UNDERSTOOD as problem:
        return _misread(problem)
    except typer.Abort:
        return INTERRUPTED
    except SystemExit as leaving:  # typer leaves with 1 where the reader of a pipe has gone
        return ANSWERED if isinstance(leaving.__context__, BrokenPipeError) else int(leaving.code or 0)
    except BrokenPipeError:
        drop()
        return ANSWERED
    except OSError as problem:
        drop()
        say(f"steptime: {problem.filename or 'cannot print'}: {problem.strerror or problem}")
        return WRONG
    except MemoryError:
        say("steptime: there is not enough memory for that many; ask for fewer")
        return WRONG


def _lacks_systems(words: list[str]) -> bool:
    """Return whether a model stands alone: an option follows it, or nothing."""
    return bool(words) and not words[0].startswith("-") and (len(words) == 1 or words[1].startswith("-"))


def _refused(problem: InputError) -> int:
    """Print the error of the input, under --json also as JSON."""
    if "--json" in sys.argv and sys.stdout is not None:
        try:
            from steptime.result_base import problem as as_data

            print_json(as_data(problem))
        except OSError as error:
            # The message still goes to standard error.
            drop()
            say(f"steptime: cannot print: {error.strerror or error}")
            return WRONG
    say(f"steptime: {_with_option(str(problem))}")
    return IMPOSSIBLE if isinstance(problem, Impossible) else WRONG


# An input with its option behind it in parentheses.
# An input with its number, as the library writes it: tp=7. Settings behind a file keep their form: --anchor FILE,tp=7.
WITH_NUMBER = re.compile(r"(?<!,)\b([a-z]+)=(\d[\dx,]*)")
# Options whose input or text has another name in messages of the library.
RENAMED_OPTIONS = {"change": "--set", "axis": "--over", "vary": "--vary", "aims": "--aim"}
NAMED_TWICE = re.compile(r"\b([a-z][a-z_]*)((?: too)?) \((--[a-z-]+)\)")


def _with_option(message: str) -> str:
    """Return a message with options in place of inputs: at its beginning, and where the option follows in parentheses."""
    typed = {word.partition("=")[0] for word in sys.argv if word.startswith("--")}
    message = WITH_NUMBER.sub(lambda size: f"--{size[1]} {size[2]}" if f"--{size[1]}" in typed else size[0], message)
    message = NAMED_TWICE.sub(_option_alone, message)
    for option in typed:
        # An input of several words.
        words = option.strip("-").replace("-", " ")
        if " " in words and message.startswith(f"{words} "):
            return option + message.removeprefix(words)
        # A refusal within another sentence: "every point is refused: within: must be ...".
        message = message.replace(f": {words}: ", f": {option}: ")
    name, _, remainder = message.partition(" ")
    plain = name.rstrip(":")
    option = RENAMED_OPTIONS.get(plain, f"--{plain.replace('_', '-')}")
    return f"{option}{name[len(plain) :]} {remainder}" if option in typed or plain in RENAMED_OPTIONS else message


def _option_alone(match: re.Match[str]) -> str:
    """Return the option without the input of the same name in front of it."""
    name, too, option = match.groups()
    return f"{option}{too}" if option == f"--{name.replace('_', '-')}" else match[0]


def _misread(problem: Any) -> int:
    """Say which words of the command line cannot be read."""
    context = getattr(problem, "ctx", None)
    if type(problem).__name__ == "NoArgsIsHelpError":  # the help was asked for by silence
        words = problem.format_message()
        if words:
            sys.stdout.write(words + "\n")
        return ANSWERED
    first_word = sys.argv[1] if sys.argv[1:] else ""
    if first_word in NEAR_COMMANDS:
        return _refused(InputError(f"No such command {first_word!r}; use `steptime {NEAR_COMMANDS[first_word]}`"))
    command_name = first_word if first_word in EXAMPLES else ""
    command = context.command_path if context is not None else f"steptime {command_name}".rstrip()
    words = NOT_A_NUMBER.sub(_with_value, " ".join(problem.format_message().split()).rstrip("."))
    subject = next((name for name in CATALOGUES if f"argument '{name}" in words.casefold()), "")
    words, listed = UNKNOWN_COMMAND.sub(_with_nearest, words), "options" if command_name else "commands"
    words = EXTRA_WORDS.sub(_with_place, words)
    choices = f"`steptime {CATALOGUES[subject][0]}` lists them, such as {CATALOGUES[subject][1]}; " if subject else ""
    ending = "" if words.endswith("?") else ";"
    return _refused(InputError(f"{words}{ending} {choices}`{command} --help` lists all {listed}"))


def _with_nearest(match: re.Match[str]) -> str:
    """Return the nearest choices of a misspelt command or option, without a second sentence."""
    names = [name.strip(" '") for name in match[2].split(",")]
    typed = match[1].rpartition(" ")[2].strip("'")
    if typed == "--chips" and OWN_LAYOUT.intersection(sys.argv[1:2]):
        return f"{match[1]}; the layout sets the chips, such as --tp 4"
    near = dict.fromkeys([*did_you_mean(typed, names), *names])
    return f"{match[1]}; did you mean {' or '.join(near)}?"


# Words that no argument takes.
EXTRA_WORDS = re.compile(r"Got unexpected extra argument(?:s|\(s\))? \((.+)\)")


def _with_place(match: re.Match[str]) -> str:
    """Say after which word an extra one stands, and how several values of one input are written."""
    extra = match[1]
    before = next((first for first, second in pairwise(sys.argv) if second == extra.split()[0]), "")
    if before.startswith("--") and "=" not in before:
        return match[0]
    option = next((first for first, second in pairwise(sys.argv) if second == before and first.startswith("--")), "")
    if option or before.startswith("--"):
        name = option or before.partition("=")[0]
        return f"{name} takes one word, so that {short_repr(extra)} is left over; write it without blanks or in quotes"
    if [before] == sys.argv[1:2]:
        return f"{short_repr(extra)} is left over; {before} takes options only"
    joined = f"{before} {extra}".replace(" ", ",")
    return f"{short_repr(extra)} is left over; where a question takes several values, they are joined by commas: {joined}"


# Commands that take a layout in place of a number of chips.
OWN_LAYOUT = {"step", "simulate"}
# A misspelt command or option, and the choices of click.
UNKNOWN_COMMAND = re.compile(
    r"(No such (?:command|option):? '?[^ '.]+'?)[. ]+(?:\(Possible options: |Did you mean )([^)?]+)[)?]*"
)


def _with_value(match: re.Match[str]) -> str:
    """Say which value is no number, as it was typed."""
    return f"{match[1]} takes a {'whole ' if match[3] == 'int' else ''}number without a unit, not {match[2]}"


if __name__ == "__main__":
    main()
