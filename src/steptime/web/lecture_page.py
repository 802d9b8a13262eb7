"""The lecture page: one HTML file with its text, style, program, closed forms in JavaScript, and tables.

The closed forms are traced from the Python functions, so the page computes them without a server. No formula is
written in JavaScript.
"""

from __future__ import annotations

import base64
import hashlib
import html
import inspect
import json
import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from steptime import blackboard
from steptime.atomic_files import write_text_atomically
from steptime.errors import DataFileError
from steptime.lecture.lecture_content import (
    LECTURE,
    WITHIN_FACTOR,
    Card,
    Statement,
    between,
    cards,
    claims,
    format_claim,
    sections,
)
from steptime.lecture.story import (
    ARITHMETIC,
    CONTEXT,
    LARGE,
    SCALES,
    catalogue_tables,
    chapters,
    closed_form,
    defaults,
    engine_seconds,
    engine_tables,
    evaluate,
    fixed_tables,
    formula_letters,
    glossary,
    measured_runs,
    state,
    write_number,
)
from steptime.sweeps.export import Cell, Untraceable, trace
from steptime.units import counted

FOLDER: Final = Path(__file__).parent / "static" / "lecture"
SCRIPTS: Final = ("state.js", "chart.js", "scenes.js", "page.js")
# Arguments that must be whole numbers in Python, with the values of the lecture.
FIXED: Final[Mapping[str, Mapping[str, int]]] = {
    "distinct_hit": {"experts": 256, "active": 8}, "exchange_bytes": {"experts": 256, "active": 8}
}  # fmt: skip


class Expression(Cell):
    """A number of the page, as the JavaScript that computes it."""

    ufuncs: ClassVar[Mapping[Any, Callable[..., str]]] = dict(Cell.ufuncs) | {
        np.power: "({}**{})".format, np.maximum: "Math.max({},{})".format, np.minimum: "Math.min({},{})".format,
        np.sqrt: "Math.sqrt({})".format, np.exp: "Math.exp({})".format, np.expm1: "Math.expm1({})".format,
        np.log: "Math.log({})".format, np.log1p: "Math.log1p({})".format, np.log2: "Math.log2({})".format,
        np.absolute: "Math.abs({})".format, np.floor: "Math.floor({})".format, np.ceil: "Math.ceil({})".format,
        np.equal: "({}==={})".format, np.not_equal: "({}!=={})".format, np.logical_and: "({}&&{})".format,
        np.logical_or: "({}||{})".format, np.isinf: "(Math.abs({})===Infinity)".format,
    }  # fmt: skip
    condition = "({}?{}:{})"

    @staticmethod
    def literal(number: float, *, is_answer: bool) -> str:  # noqa: ARG004 - as of `Cell`
        """Return a number as JavaScript.

        Args:
            number: The number.
            is_answer: Whether the number is an answer; without effect.

        Returns:
            Text of the number, in brackets if negative.
        """
        if math.isinf(number):
            return "Infinity" if number > 0 else "(-Infinity)"
        text = repr(int(number)) if number == int(number) and abs(number) < 1e15 else repr(number)
        return f"({text})" if number < 0 else text


def javascript_form(name: str) -> str:
    """Return a closed form as a JavaScript function of an object of arguments.

    Args:
        name: Name of the closed form.

    Returns:
        An arrow function.

    Raises:
        Untraceable: The function does something that no formula can express.

    >>> javascript_form("drain_seconds"), javascript_form("optimal_batch")[:61]
    ('({capacity,bandwidth})=>(capacity/bandwidth)', '({machine_balance,sparsity,context=0,balanced_context=Infinit')
    """
    function = closed_form(name)
    if name in ARITHMETIC:
        # Operators take no keywords.
        return f"({{a,b}})=>{trace(partial(function, Expression('a'), Expression('b')), {}, Expression)}"
    fixed = FIXED.get(name, {})
    parameters = {key: parameter for key, parameter in inspect.signature(function).parameters.items() if key not in fixed}
    heads = [
        key
        if parameter.default is parameter.empty
        else f"{key}={Expression.literal(float(parameter.default), is_answer=False)}"
        for key, parameter in parameters.items()
    ]
    # An infinite evenness selects a branch of Python, so it stays a number.
    cells: dict[str, Any] = {key: Expression(key) for key in parameters if key != "evenness"}
    heads = [head for head in heads if not head.startswith("evenness")]
    return f"({{{','.join(heads)}}})=>{trace(function, cells | dict(fixed), Expression)}"


@lru_cache(maxsize=1)
def javascript_forms() -> Mapping[str, str]:
    """Return all closed forms that JavaScript can express.

    Returns:
        Arrow functions by name.
    """
    forms = {}
    for name in (*blackboard.__all__, *ARITHMETIC):
        try:
            forms[name] = javascript_form(name)
        except Untraceable:
            # The page's derived numbers must not use such a function; `page_data` checks this.
            continue
    return forms


def page_data(*, is_live: bool) -> dict[str, Any]:
    """Return the data of the page: state, derived numbers, pictures and tables.

    Args:
        is_live: Whether a server answers.

    Returns:
        Data for JSON.
    """
    names = state()
    pictures = {picture["id"]: picture for chapter in chapters() for picture in chapter["pictures"]}
    steps = [[{key: step[key] for key in step if key != "text"} for step in chapter["steps"]] for chapter in chapters()]
    heads = [{key: chapter.get(key) for key in ("id", "title", "spoken", "guess", "board")} for chapter in chapters()]
    return {
        "live": is_live, "variables": names["variables"], "derived": names["derived"], "defaults": dict(defaults()),
        "model": names["model"], "system": names["system"], **catalogue_tables(), "tables": fixed_tables(),
        "lookups": names["lookups"], "engine": engine_tables(), "runs": measured_runs(),
        "large": LARGE, "scales": SCALES, "pictures": pictures,
        "chapters": [head | {"steps": rows} for head, rows in zip(heads, steps, strict=True)],
    }  # fmt: skip


def lecture_html(*, is_live: bool) -> str:
    """Return the lecture as one HTML page.

    Args:
        is_live: Whether a server answers; otherwise the page allows no request at all.

    Returns:
        The page.
    """
    script, style = _script(is_live=is_live), (FOLDER / "lecture.css").read_text(encoding="utf-8")
    policy = content_policy(script, style, is_live=is_live)
    meta = "" if is_live else f'<meta http-equiv="content-security-policy" content="{policy}">\n'
    numbers = dict(defaults())
    numbers["engine"] = engine_seconds(state()["model"], state()["system"], numbers["batch"], numbers["context"])
    values = evaluate(numbers)
    body = "\n".join(_chapter(chapter, values, is_live=is_live) for chapter in chapters())
    contents = "".join(f'<li><a href="#{chapter["id"]}">{chapter["title"]}</a></li>' for chapter in chapters())
    template = (FOLDER / "lecture.html").read_text(encoding="utf-8")
    parts = {
        "META": meta, "STYLE": style, "SCRIPT": script, "CHAPTERS": body, "CONTENTS": contents, "LECTURE": LECTURE,
        "CLAIMS": _claims(), "COUNT": f"{len(claims())}",
        "WORDS": _glossary(), "WORKBENCH": _workbench(is_live=is_live), "CONTEXT": f"{CONTEXT:,}", "RULE": VERDICT_RULE,
    }  # fmt: skip
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda match: parts[match[1]], template)


def _script(*, is_live: bool) -> str:
    forms = ",\n".join(f"{name}:{text}" for name, text in javascript_forms().items())
    data = json.dumps(page_data(is_live=is_live), separators=(",", ":"), allow_nan=False).replace("</", "<\\/")
    sources = "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS)
    return f'"use strict";\nconst FORMS={{\n{forms}\n}};\nconst DATA={data};\n{sources}'


def content_policy(script: str, style: str, *, is_live: bool) -> str:
    """Return the content security policy of the page.

    Args:
        script: Text of the script.
        style: Text of the style sheet.
        is_live: Whether the page may ask its server.

    Returns:
        The policy, with hashes of script and style.
    """

    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    connect = "; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'" if is_live else ""
    return (
        f"default-src 'none'; script-src 'self' 'sha256-{digest(script)}'; style-src 'self' 'sha256-{digest(style)}'; "
        f"img-src 'self' data: blob:{connect}"
    )


@lru_cache(maxsize=1)
def served_page() -> tuple[bytes, str]:
    """Return the page of the server and its content security policy.

    Returns:
        HTML and policy.
    """
    style = (FOLDER / "lecture.css").read_text(encoding="utf-8")
    return lecture_html(is_live=True).encode(), content_policy(_script(is_live=True), style, is_live=True)


def export_lecture(path: str) -> int:
    """Write the lecture as one HTML file that needs no server.

    Args:
        path: Name of the file.

    Returns:
        Size of the file [B].

    Raises:
        DataFileError: The file cannot be written.
    """
    text = lecture_html(is_live=False)
    try:
        write_text_atomically(path, text)
    except OSError as error:
        raise DataFileError(path, f"cannot be written: {error.strerror or error}") from None
    return len(text.encode())


# --- text -----------------------------------------------------------------------------------------------------------------


def _chapter(chapter: Mapping[str, Any], values: Mapping[str, Any], *, is_live: bool) -> str:
    steps = "".join(
        f'<div class="step" data-step="{index}" id="{chapter["id"]}-{index + 1}">{rich_text(step["text"], values)}'
        f'<p class="formula"><code>{html.escape(step["formula"])}</code>{_letters(step["formula"])}</p></div>'
        for index, step in enumerate(chapter["steps"])
    )
    guess = _guess(chapter) if chapter.get("guess") else ""
    title = 'title="sets the numbers of the whole page"'
    spoken = f'<button type="button" class="spoken" {title}>use the lecture\'s numbers</button>' if chapter["spoken"] else ""
    address = f"{_workbench(is_live=is_live)}#{chapter['board']}"
    board = f'<a class="bench" data-board="{chapter["board"]}" href="{address}">workbench</a>'
    return f"""<section class="chapter" id="{chapter["id"]}" aria-labelledby="{chapter["id"]}-title">
<header><p class="number">{chapter["number"]}</p><h2 id="{chapter["id"]}-title">{chapter["title"]}</h2>
<p class="lead">{inline(chapter["lead"], values)}</p>{guess}</header>
<div class="scroll"><div class="stage"><figure><figcaption></figcaption><div class="picture"></div>
<div class="sliders"></div><fieldset class="views" hidden></fieldset><p class="gap" role="status"></p>
<div class="tools">{spoken}<button type="button" class="table">table</button>{board}</div>
</figure></div><div class="steps">{steps}</div></div>
{_verdicts(chapter)}
</section>"""


def _letters(formula: str) -> str:
    letters = [f"{letter}: {meaning}" for letter, meaning in formula_letters(formula).items()]
    return f"<small>{html.escape('; '.join(letters))}</small>" if letters else ""


def rich_text(text: str, values: Mapping[str, Any]) -> str:
    """Return the paragraphs of a text as HTML.

    Args:
        text: Text with "**bold**", "*emphasis*", "{number}", "[word of the glossary]" and parts that stand only where a
            number is finite and positive, "{?number}...{/}".
        values: Variables and derived numbers.

    Returns:
        HTML.
    """
    return "".join(f"<p>{inline(part, values)}</p>" for part in text.strip().split("\n\n"))


def inline(text: str, values: Mapping[str, Any]) -> str:
    """Return a paragraph as HTML.

    Args:
        text: Text of one paragraph; its no-break spaces stay.
        values: Variables and derived numbers.

    Returns:
        HTML; a variable becomes a slider of one number, a derived number a span.
    """
    marked = html.escape(re.sub("[ \n]+", " ", text.strip()), quote=False)
    marked = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", marked)
    marked = re.sub(r"(?<![\w*])\*(\w[^*]*?)\*", r"<em>\1</em>", marked)
    marked = re.sub(r"\[([^]]+)\]", _term, marked)
    marked = re.sub(r"\{\?(\w+)\}(.*?)\{/\}", partial(_conditional, values), marked)
    return re.sub(r"\{(\w+)\}", partial(_number, values), marked)


def _term(match: re.Match[str]) -> str:
    if match[1] not in glossary():
        raise DataFileError(FOLDER, f"the glossary has no word {match[1]!r}")
    return f'<button type="button" class="term" popovertarget="word-{match[1].replace(" ", "-")}">{match[1]}</button>'


def _conditional(values: Mapping[str, Any], match: re.Match[str]) -> str:
    value = float(values[match[1]])
    hidden = "" if math.isfinite(value) and value > 0 else " hidden"
    return f'<span data-if="{match[1]}"{hidden}>{match[2]}</span>'


def _number(values: Mapping[str, Any], match: re.Match[str]) -> str:
    name = match[1]
    variable = next((number for number in state()["variables"] if number["name"] == name), None)
    number = variable or next(number for number in (*state()["derived"], *state()["lookups"]) if number["name"] == name)
    value = float(values[name])
    words = write_number(value, number.get("unit", ""), number.get("digits", 0))
    if variable is None:
        return f'<output class="num" data-name="{name}">{words}</output>'
    low, high, start = (np.format_float_positional(end, trim="-") for end in (variable["low"], variable["high"], value))
    bounds = f'aria-valuemin="{low}" aria-valuemax="{high}" aria-valuenow="{start}"'
    label = f'aria-label="{variable["label"]}" aria-valuetext="{words}"'
    return f'<span class="drag" role="slider" tabindex="0" data-name="{name}" {label} {bounds}>{words}</span>'


def _guess(chapter: Mapping[str, Any]) -> str:
    guess = chapter["guess"]
    name = f"guess-{chapter['id']}"
    return f"""<div class="guess" data-chapter="{chapter["id"]}"><label for="{name}">Guess first. {guess["question"]}</label>
<div class="try"><input id="{name}" type="range" min="0" max="1000" value="500"><output></output>
<button type="button">reveal</button></div><p class="said" role="status"></p></div>"""


def _verdicts(chapter: Mapping[str, Any]) -> str:
    chapter_sections = [section for section in sections() if section.number in chapter["sections"]]
    rows = [_row(statement) for section in chapter_sections for statement in section.statements]
    questions = [_card(card) for card in cards() if card.number in chapter["cards"]]
    table = f"<table><thead>{HEAD}</thead><tbody>{''.join(rows)}</tbody></table>"
    quiz = f"<h3>Questions</h3>{''.join(questions)}" if questions else ""
    limits = "".join(f"<p>{html.escape(name_chapters(section.fails))}</p>" for section in chapter_sections)
    questions_text = f", and {counted(len(questions), 'question')}" if questions else ""
    summary = f"{len(rows)} numbers of the lecture, computed{questions_text}"
    details = f"<summary>{summary}</summary><p>{VERDICT_RULE}</p>{table}<h3>Where it fails</h3>{limits}{quiz}"
    return f'<details class="verdicts">{details}</details>'


# The rule of `lecture_content.verdict` in words.
VERDICT_RULE: Final = (
    "A number holds if the computed one is within its tolerance (5 %, or 0 to 20 % for a few). It holds within a "
    f"factor if they differ by at most {WITHIN_FACTOR:g} times. Otherwise it fails. Limits (at least, at most) hold or fail. "
    "If some computed numbers fail and others hold, it is undecided. Also undecided: a claim that needs a judgement or a "
    "figure that is not public; its reason says so."
)
HEAD: Final = "<tr><th>number</th><th>stated</th><th>computed</th><th>verdict</th><th>why</th></tr>"


def _row(statement: Statement) -> str:
    source = "" if statement.source == LECTURE else f' <a href="{html.escape(statement.source)}" rel="noreferrer">source</a>'
    low, high = min(statement.computed), max(statement.computed)
    cells = [
        html.escape(name_chapters(statement.name)),
        html.escape(format_claim(statement.stated, statement.relation, statement.unit)),
        html.escape(between(low, high, statement.unit)), f'<b class="{statement.verdict.split()[0]}">{statement.verdict}</b>',
        html.escape(name_chapters(statement.reason)) + source + (f" Verdict of {statement.date}." if statement.date else ""),
    ]  # fmt: skip
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def name_chapters(text: str) -> str:
    """Return a text that names sections of the lecture with the chapters of the page that have them.

    Args:
        text: Text with sections of the lecture.

    Returns:
        Text with the numbers of chapters.

    >>> name_chapters("By section 13 of the lecture (`steptime lecture 1` draws it).")
    'By chapter 9 (chapter 1 draws it).'
    >>> name_chapters("if sections 13 and 14 of the lecture agree")
    'if two sections of chapter 9 agree'
    """

    def chapter(match: re.Match[str]) -> str:
        numbers = [entry["number"] for entry in chapters() if {int(n) for n in match.groups() if n} & set(entry["sections"])]
        return f"chapter {min(numbers)}"

    text = re.sub(r"sections (\d+) and (\d+) of the lecture", lambda match: f"two sections of {chapter(match)}", text)
    return re.sub(r"`steptime lecture (\d+)`|section (\d+) of the lecture", chapter, text)


def _card(card: Card) -> str:
    statement = card.statement
    number = f"{html.escape(statement.name)}: {between(min(statement.computed), max(statement.computed), statement.unit)}"
    reason = html.escape(name_chapters(statement.reason))
    return (
        f'<details class="card"><summary>{html.escape(card.question)}</summary><p>{html.escape(name_chapters(card.answer))} '
        f"{html.escape(card.watch)}</p><p>{number}. <b>{statement.verdict}</b>: {reason}.</p></details>"
    )


def _claims() -> str:
    rows = []
    for claim in claims():
        chapter = next(chapter for chapter in chapters() if claim.section in chapter["sections"])
        link = f'<td><a href="#{chapter["id"]}">{claim.number}. {html.escape(claim.summary)}</a></td>'
        call = ", ".join(f"{name}={value!r}" for name, value in claim.statement.arguments.items())
        module, _, function = claim.statement.call.rpartition(".")
        code = html.escape(f"from steptime.{module} import {function}; {function}({call})")
        formula = f'<details class="call"><summary>call in Python</summary><code>{code}</code></details>'
        name = html.escape(name_chapters(claim.statement.name))
        rows.append(_row(claim.statement).replace("<tr>", f"<tr>{link}").replace(name, name + formula, 1))
    return f"<table><thead>{HEAD.replace('<tr>', '<tr><th>claim</th>')}</thead><tbody>{''.join(rows)}</tbody></table>"


def _glossary() -> str:
    return "".join(
        f'<div popover id="word-{word.replace(" ", "-")}" class="word"><strong>{word}</strong> {html.escape(meaning)}</div>'
        for word, meaning in glossary().items()
    )


def _workbench(*, is_live: bool) -> str:
    return "workbench" if is_live else "workbench.html"
