"""Tools of an assistant: each question with the schema of its arguments, and its answer to a call as plain data.

Schemas follow from the declarations of the questions. `reply` answers a call in full; `mcp_server` shortens the answer.
"""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from functools import cache
from typing import Any, Final

import numpy as np

from steptime.catalog.data_files import files, folded, read_file
from steptime.errors import ConfigError, InputError, RangeError, UnknownName, one_line, short_repr
from steptime.hardware.rental_prices import has_rent, kind_in_words
from steptime.hardware.system import Rent
from steptime.models.model import Model
from steptime.models.model_loading import load_model
from steptime.physics.engine import IDEAL
from steptime.questions.declaration import (
    COUNT,
    NUMBER,
    RENT,
    SWITCH,
    TEXT,
    TEXTS,
    Answer,
    Input,
    Question,
    bind,
    count,
    inputs_from,
    question_of_result,
    read_value,
    text,
)
from steptime.questions.plan_question import answers_from, bind_plan
from steptime.questions.plan_question import solve as solve_plan
from steptime.questions.registry import HOMES, find_input, find_question
from steptime.questions.step_question import with_layout
from steptime.questions.subject import FORMATS, read_machine
from steptime.result_base import Result, plain
from steptime.sweeps.compare_question import several_names
from steptime.units import HOUR
from steptime.web.board import LONGEST
from steptime.web.page_subject import catalogue_file
from steptime.web.question_requests import ENTRIES, FILES, LISTS, NOT_ENTRIES, check_request, entry_folder

# Bytes of an answer without the argument full.
SHORT: Final = 4_000
# Rows of a call of validate, and requests of a simulation.
MOST_ROWS: Final = 1_000
MOST_REQUESTS: Final = 200_000
FULL, FIGURES = "full", "figures"
KINDS: Final = ("models", "systems", "engines", "stacks", "laws")
JSON_TYPES: Final[Mapping[str, Any]] = {
    COUNT: ["integer", "string"],
    NUMBER: ["number", "string"],
    TEXT: ["string", "number"],
    RENT: ["string", "number"],
    SWITCH: "boolean",
    TEXTS: "array",
}


# --- questions that exist only as tools ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Place:
    """A part of the lecture."""

    section: Any = count(None, "section of the lecture, from 1", default_words="the list of sections")
    card: Any = count(None, "question card, from 1, with its answer", default_words="no card")


def _solve_lecture(values: Mapping[str, Any]) -> Any:
    from steptime.lecture import lecture_content

    place = bind(_Place, values, "lecture")
    if place.section is not None and place.card is not None:
        raise RangeError("card: cannot be given together with section; leave one of the two out")
    if place.card is None:
        return lecture_content.contents() if place.section is None else lecture_content.section(place.section)
    every = lecture_content.cards()
    if place.card > len(every):
        raise RangeError(f"card: must be from 1 to {len(every)}, got {place.card:,}")
    return every[place.card - 1]


@dataclass(frozen=True, kw_only=True)
class _Names:
    """Names of the catalogue."""

    kind: str = text(MISSING, "kind of entry; stacks are training engines", choices=KINDS)
    like: str | None = text(None, "part of a name, such as qwen3", default_words="all names")


@dataclass(frozen=True, kw_only=True)
class _Runs:
    """Measured runs."""

    runs: Any = text(
        MISSING,
        "CSV text of measured serving runs, with the columns id, model, system, engine, input_tokens, output_tokens, "
        "concurrency, tp, pp, dp, ep, weight_dtype, expert_dtype, tpot_s or ttft_s",
    )


def _ask_nothing(values: Mapping[str, Any]) -> Any:
    raise InputError(f"no result for {short_repr(values)}")


LECTURE: Final = question_of_result(
    "lecture",
    "the lecture behind the tool: sections with formula and a verdict on each number, or a question card",
    inputs=inputs_from(_Place),
    solve=_solve_lecture,
    answers={},
)
VALIDATE: Final = question_of_result(
    "validate",
    "predictions against your measured runs: median error, bias and the share of runs inside the 90 % range",
    inputs=inputs_from(_Runs),
    solve=_ask_nothing,
    answers={},
)
CATALOGUE: Final = question_of_result(
    "catalogue",
    "names of models, systems, serving engines, training stacks and scaling laws",
    inputs=inputs_from(_Names),
    solve=_ask_nothing,
    answers={},
)


@cache
def questions() -> Mapping[str, Question]:
    """Return the questions that are tools.

    Returns:
        Questions by name of the tool: those of the registry, then those of this file.
    """
    return {name: find_question(name) for name in HOMES} | {
        question.name: question for question in (LECTURE, VALIDATE, CATALOGUE)
    }


# --- schemas -------------------------------------------------------------------------------------------------------------


def input_schema(question: Question) -> dict[str, Any]:
    """Return the JSON schema of the arguments of a tool.

    Args:
        question: The question.

    Returns:
        Schema with one property per declared input that names no file, `figures` where the machine has inputs, and `full`.
    """
    properties = {
        name: _property(question, name, declared)
        for name, declared in question.inputs.items()
        if name not in FILES and not _is_figure(name)
    }
    if question.figures:
        properties[FIGURES] = {
            "type": "object",
            "description": "Changed figures of the machine by path, such as chip.hbm.bandwidth: 8 TB/s; scale_up.bandwidth; "
            "chip.peak.bf16. Also arch.* (fields of the model), times.bandwidth, times.flops, times.capacity, times.link.",
            "additionalProperties": {"type": ["number", "string"]},
        }
    properties[FULL] = {
        "type": "boolean", "default": False, "description": f"All figures and notes, in place of at most {SHORT:,} bytes.",
    }  # fmt: skip
    return {"type": "object", "properties": properties, "required": list(question.needs), "additionalProperties": False}


def _is_figure(name: str) -> bool:
    return "." in name or name == "within"


def _property(question: Question, name: str, declared: Input) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": JSON_TYPES[declared.kind], "description": declared.help()}
    if declared.kind == TEXTS:
        schema["items"] = {"type": "string"}
    if declared.choices:
        schema |= {"type": "string", "enum": list(declared.choices)}
    bounds = {"minimum": declared.minimum, "maximum": declared.maximum}
    schema |= {bound: value for bound, value in bounds.items() if value is not None and declared.kind in (COUNT, NUMBER)}
    if name in ENTRIES:
        alternatives = "".join(f", or {value}" for value in NOT_ENTRIES.get(name, ()))
        kind = entry_folder(question, name)
        schema |= {"type": "string", "description": f"{name.replace('_', ' ').capitalize()}: name in {kind}{alternatives}."}
        if _takes_config(question, name):
            schema["type"] = ["string", "object"]
            schema["description"] = f"Model: name in {kind}, or the content of a config.json."
    if declared.default_words:
        schema["description"] += f" Default: {declared.default_words}."
    if declared.default not in (None, (), "") and not declared.required:
        schema["default"] = declared.default
    return schema


def _takes_config(question: Question, name: str) -> bool:
    # Prices belong to a released model.
    return name == "model" and question.name != "prices"


def tools() -> list[dict[str, Any]]:
    """Return the tools of the server.

    Returns:
        Name, description and input schema of each.
    """
    return [
        {"name": name, "description": _sentence(question.meaning), "inputSchema": input_schema(question)}
        for name, question in questions().items()
    ]


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


# --- calls ---------------------------------------------------------------------------------------------------------------


def reply(tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a call in full.

    Args:
        tool: Name of the tool.
        arguments: Its arguments; `full` has no effect here.

    Returns:
        Figures, rows and notes as plain data.

    Raises:
        InputError: An argument is wrong; the message names the nearest valid choice.

    >>> answer = reply("step", {"model": "llama-3.1-8b", "system": "hgx-h100", "batch": 64, "engine": "ideal"})
    >>> round(answer["figures"]["time"]["value"] * 1e3, 2), answer["figures"]["time"]["unit"]
    (14.74, 's')
    """
    every = questions()
    if tool not in every:
        raise UnknownName("tool", tool, every, f"Known: {', '.join(every)}.")
    question = every[tool]
    values = _checked(question, arguments)
    answer = {"question": tool, **READERS.get(tool, _read_question)(question, values)}
    command = _command(question, arguments)
    return plain(answer | ({"command": command} if command else {}))  # type: ignore[no-any-return]


def _checked(question: Question, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked inputs of a question: a pasted config as a model, names as paths of catalogue files."""
    values = {name: value for name, value in arguments.items() if name != FULL}
    figures = values.pop(FIGURES, None)
    if figures is not None:
        if not question.figures:
            raise UnknownName(f"input of {question.name}", FIGURES, question.inputs)
        if not isinstance(figures, Mapping):
            raise RangeError(f"{FIGURES}: must be an object of paths and values, got {short_repr(figures)}")
        values |= figures
    if question is VALIDATE:
        return _checked_runs(values)
    config = _config(question, values)
    if config is not None:
        # A name passes the check in place of the config, which replaces it.
        values["model"] = next(iter(files("models")))
    checked = check_request(question, values)
    for name in figures or {}:
        # A figure may be a text with its unit.
        checked[name] = read_value(name, checked[name], find_input(question, name, checked))
    if config is not None:
        formats = {name: checked.pop(name) for name in FORMATS if name in checked}
        checked["model"] = _pasted_model(config, formats)
    if (requests := checked.get("requests")) is not None and requests > MOST_REQUESTS:
        raise RangeError(f"requests: must be at most {MOST_REQUESTS:,} here, got {short_repr(requests)}")
    return with_layout(question, checked)


def _config(question: Question, values: Mapping[str, Any]) -> Any:
    """Return the pasted config of a model; None for a name."""
    value = values.get("model")
    if not _takes_config(question, "model") or "model" not in question.inputs:
        return None
    if isinstance(value, str) and value.lstrip().startswith("{"):
        if len(value) > LONGEST:
            raise RangeError(f"model: a config must have at most {LONGEST:,} characters, got {len(value):,}")
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise InputError(f"model: the config is not JSON: {one_line(str(error))[:200]}") from None
    return value if isinstance(value, Mapping) else None


def _pasted_model(config: Mapping[str, Any], formats: Mapping[str, Any]) -> Model:
    # A file of the catalogue has the config under "config".
    fields = config.get("config", config)
    if not isinstance(fields, Mapping):
        raise ConfigError(f"model: config must be an object, got {short_repr(fields)}")
    try:
        if len(json.dumps(fields)) > LONGEST:
            raise RangeError(f"model: a config must have at most {LONGEST:,} characters")
        return load_model(dict(fields), **formats)
    except RecursionError:
        raise ConfigError("model: the config is nested too deeply") from None


def _checked_runs(values: Mapping[str, Any]) -> dict[str, Any]:
    checked = check_request(VALIDATE, {name: value for name, value in values.items() if name != "runs"} | {"runs": "csv"})
    table = values.get("runs")
    if not isinstance(table, str) or len(table) > LONGEST:
        raise RangeError(f"runs: must be CSV text of at most {LONGEST:,} characters, got {short_repr(table)}")
    try:
        rows = list(csv.DictReader(io.StringIO(table.strip()), strict=True))
    except csv.Error as error:
        raise InputError(f"runs: is not CSV: {one_line(str(error))}") from None
    if len(rows) > MOST_ROWS:
        raise RangeError(f"runs: must have at most {MOST_ROWS:,} rows, got {len(rows):,}")
    for number, row in enumerate(rows):
        if None in row or None in row.values():
            raise InputError(f"runs: row {number} has another number of cells than the header")
        # Names are those of the catalogue; other cells are numbers or words that name no file.
        for name, kind in (("model", "models"), ("system", "systems")):
            if name in row:
                row[name] = str(catalogue_file(kind, row[name]))
    return checked | {"runs": rows}


# --- answers -------------------------------------------------------------------------------------------------------------


def _read_question(question: Question, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return figures and notes of a question of the registry."""
    if question.name == "plan":
        result: Any = solve_plan(values, diagnostics=False)
        _, model, system, _, _ = bind_plan(values)
        answers = answers_from(result, model, system)
        # The evidence for the layout grades its times and rates.
        grades = dict.fromkeys(("s", "tok/s", "requests/s"), result.evidence)
    else:
        assert question.solve is not None
        result = question.solve(values)
        answers = dict(question.ask(values, frozenset()) if question.name == "step" else question.read_result(result))
        grades = {}
    rent = _rent(question, values)
    if rent is not None:
        grades["USD"] = rent.grade
    title, summary = result.headline() if isinstance(result, Result) else ("", {})
    if not answers.get("fits", True):
        title = f"Does not fit: needs {float(answers['memory_share']):.3g} times the memory of a chip. {title}"
    basis = {
        "engine": getattr(result, "engine", None),
        "layout_evidence": getattr(result, "evidence", None) or None,
        "rent": None if rent is None else _rent_words(rent),
        "range": "90 %, from the errors of measured runs" if question.bands else None,
    }
    return {
        "answer": answers["reason"] if set(answers) == {"reason"} else title,
        FIGURES: dict(_figures(question, answers, grades)),
        "basis": {name: value for name, value in basis.items() if isinstance(value, str | dict)},
        "notes": list(_notes(result)),
        "summary": summary,
        "result": result.to_dict() if isinstance(result, Result) else plain(result),
    }


def _figures(question: Question, answers: Mapping[str, Any], grades: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Yield figures with unit, range and grade; unknown ones are left out."""
    ends = {end for pair in question.bands.values() for end in pair}
    for name, value in answers.items():
        if name in ends or _is_unknown(value):
            continue
        declared = question.answers.get(name, Answer())
        figure: dict[str, Any] = {"value": _rounded(value), "unit": declared.unit, "meaning": declared.meaning}
        if name in question.bands:
            low, high = (answers.get(end) for end in question.bands[name])
            if not _is_unknown(low) and not _is_unknown(high):
                figure["range"] = [_rounded(low), _rounded(high)]
        grade = grades.get("USD" if declared.unit.startswith("USD") else declared.unit)
        if grade and not declared.text:
            figure["grade"] = grade
        yield name, {key: item for key, item in figure.items() if item != ""}


def _is_unknown(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float | np.floating) and not np.isfinite(value))


def _rounded(value: Any) -> Any:
    value = plain(value)
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _rent(question: Question, values: Mapping[str, Any]) -> Rent | None:
    """Return the rent of a chip of the machine of a question; None without a machine."""
    if "rent" not in question.inputs or values.get("system") is None:
        return None
    try:
        return read_machine(values).rent
    except InputError:
        # A budget within a system may name other inputs than a machine has.
        return None


def _rent_words(rent: Rent) -> dict[str, Any]:
    if not has_rent(rent):
        return {"value": None, "kind": "not known"}
    return {
        "value": _rounded(float(np.asarray(rent.typical).flat[0]) * HOUR), "unit": "USD per chip-hour",
        "kind": kind_in_words(rent), "grade": rent.grade, "date": rent.date, "source": rent.url,
    }  # fmt: skip


def _notes(result: Any) -> Iterator[str]:
    """Yield the notes of a result, each kind with its meaning."""
    kinds = {
        "notes": "", "warnings": "", "distance": "differs from measured runs: ",
        "interval_coverage": "measured times per token inside their range: ",
    }  # fmt: skip
    for name, meaning in kinds.items():
        value = getattr(result, name, ())
        yield from (f"{meaning}{note}" for note in ([value] if isinstance(value, str) else value) if note)


def _read_pairs(question: Question, values: Mapping[str, Any]) -> dict[str, Any]:
    assert question.solve is not None
    ranking = question.solve(values)
    rows = [
        {
            "place": standing.place,
            "model": standing.model,
            "system": standing.system,
            "usd_per_million_output_tokens": _rounded(standing.usd_per_million_output_tokens),
            "range": None if standing.cost_range is None else [_rounded(float(end)) for end in standing.cost_range],
            "grade": standing.rent.grade,
            "rent": kind_in_words(standing.rent),
            "tokens_per_second_per_user": _rounded(standing.tokens_per_second_per_user),
            "ttft_s": _rounded(standing.ttft),
            "tokens_per_second_per_chip": _rounded(standing.tokens_per_second_per_chip),
            "chips": standing.chips,
            "layout": standing.layout_text,
            "evidence": standing.evidence,
            **(
                {
                    "usd_per_month": _rounded(standing.usd_per_month),
                    "replicas": standing.replicas,
                    "hosts": standing.hosts,
                    "utilisation": _rounded(standing.utilisation),
                }
                if standing.replicas
                else {}
            ),
            **({} if ranking.sessions is None else {"hit_share": _rounded(standing.hit_share), "hits": standing.hits_text}),
        }
        if standing.feasible
        else {"model": standing.model, "system": standing.system, "reason": standing.reason}
        for standing in ranking.standings
    ]
    return {
        "answer": ranking.text,
        "unit": f"USD of rent per million output tokens{' at full load, and per month of the fleet' * ranking.is_fleet}, with "
        "the 90 % range; grade of the rent",
        "rows": rows, "notes": list(ranking.notes), "flips": list(ranking.flips), "result": ranking.to_dict(),
    }  # fmt: skip


def _read_lecture(question: Question, values: Mapping[str, Any]) -> dict[str, Any]:
    assert question.solve is not None
    part = question.solve(values)
    if hasattr(part, "statements"):
        return {
            "answer": f"Section {part.number}: {part.title}", "text": part.summary, "formula": part.formula,
            "symbols": dict(part.symbols), "fails": part.fails, "numbers": [_number(item) for item in part.statements],
        }  # fmt: skip
    if hasattr(part, "question"):
        return {
            "answer": part.question, "text": part.answer, "watch": part.watch, "section": part.section,
            "numbers": [_number(part.statement)],
        }  # fmt: skip
    return {"answer": part.headline()[0], "rows": [f"{title.number}. {title.title}" for title in part.sections]}


def _number(statement: Any) -> dict[str, Any]:
    number = {
        "name": statement.name, "stated": statement.stated, "computed": [_rounded(value) for value in statement.computed],
        "unit": statement.unit, "grade": statement.computed_verdict, "reason": statement.reason, "source": statement.source,
    }  # fmt: skip
    return {name: value for name, value in number.items() if value != ""}


def _read_runs(_: Question, values: Mapping[str, Any]) -> dict[str, Any]:
    from steptime.validation.validate_api import validate

    validation = validate(values["runs"])
    title, summary = validation.headline()
    return {
        "answer": title,
        "rows": [f"{name}: {words}" for name, words in summary.items()],
        "notes": [*validation.doubtful, *validation.notes],
        "result": validation.to_dict(),
    }


def _read_names(_: Question, values: Mapping[str, Any]) -> dict[str, Any]:
    names = bind(_Names, values, "catalogue")
    every = sorted(files(names.kind)) + ([IDEAL.name] if names.kind == "engines" else [])
    part = folded(names.like or "")
    matches = [name for name in every if part in folded(name)]
    if not matches:
        raise UnknownName(names.kind.removesuffix("s"), names.like or "", every)
    answer: dict[str, Any] = {"answer": f"{len(matches)} of {len(every)} {names.kind}", "names": matches}
    if len(matches) == 1 and matches[0] != IDEAL.name:
        answer["title"] = str(read_file(files(names.kind)[matches[0]]).get("title", ""))
    return answer


READERS: Final[Mapping[str, Callable[[Question, Mapping[str, Any]], dict[str, Any]]]] = {
    "compare": _read_pairs,
    "lecture": _read_lecture,
    "validate": _read_runs,
    "catalogue": _read_names,
}


def _command(question: Question, arguments: Mapping[str, Any]) -> str:
    """Return the command that gives the same answer, or "" without such a command."""
    figures = arguments.get(FIGURES) or {}
    if question in (VALIDATE, CATALOGUE) or any(name.startswith(("arch.", "times.", "within")) for name in figures):
        return ""
    words, options = ["steptime", question.name], []
    for name, value in arguments.items():
        if name in (FULL, FIGURES) or value is None or value is False:
            continue
        declared, option = question.inputs[name], f"--{name.replace('_', '-')}"
        if name in LISTS and declared.kind == TEXTS:
            words.append(",".join(several_names(value)))
        elif declared.positional or (question is LECTURE and name == "section"):
            words.append("config.json" if isinstance(value, Mapping) or str(value).lstrip().startswith("{") else str(value))
        elif declared.kind == SWITCH:
            options.append(option)
        else:
            several = value if isinstance(value, list) else [value]
            options += [word for item in several for word in (option, f"{item:.12g}" if isinstance(item, float) else str(item))]
    options += [word for path, value in figures.items() for word in ("--set", f"{path}={value}")]
    return "" if question is LECTURE and options else shlex.join([*words, *options])
