"""Options grouped in dataclasses."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from steptime.cli.options import grouped
from steptime.errors import InputError
from steptime.units import count
from tests.conftest import each


@dataclass(frozen=True, kw_only=True)
class Size:
    name: Annotated[str, typer.Argument()]
    width: Annotated[int, typer.Option("--wide", help="Columns.")] = 3


@dataclass(frozen=True, kw_only=True)
class Box(Size):
    height_: Annotated[float, typer.Option("--height")] = 1.5


def invoke(command, words):
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, words.split())


def test_each_field_becomes_an_option_or_an_argument_and_comes_back_in_its_dataclass():
    seen = []

    @grouped
    def command(ctx: typer.Context, box: Box, loud: Annotated[bool, typer.Option("--loud")] = False) -> None:
        seen.append((box, loud, ctx.get_parameter_source("width").name))

    assert invoke(command, "a").exit_code == 0
    assert invoke(command, "b --wide 7 --height 2 --loud").exit_code == 0
    assert seen == [(Box(name="a"), False, "DEFAULT"), (Box(name="b", width=7, height_=2.0), True, "COMMANDLINE")]
    assert "Columns." in invoke(command, "--help").output
    assert invoke(command, "").exit_code == 2
    assert invoke(command, "a --wide x").exit_code == 2


def test_an_option_that_two_groups_have_is_refused():
    def command(size: Size, box: Box) -> None: ...

    with pytest.raises(ValueError, match="option name twice"):
        grouped(command)


@each(
    "text, number",
    [("8192", 8192), ("8k", 8000), ("128K", 128_000), ("1e3", 1000), ("8_192", 8192), ("8,192", 8192), ("1.5M", 1_500_000),
     ("-5", -5), ("0", 0), ("2 k", 2000)],
)  # fmt: skip
def test_counts_are_read_as_people_write_them(text, number):
    assert count(text, "--input") == number


@each("text", ["", "abc", "1.5", "8kk", "1e30", "9" * 5000, "nan", "inf", "0x10", "1e-3", "--"])
def test_other_texts_are_refused_by_the_name_of_the_option(text):
    with pytest.raises(InputError, match=r"^--input"):
        count(text, "--input")
