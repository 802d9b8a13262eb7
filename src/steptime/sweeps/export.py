"""Files of a sweep by their ending: tables, labelled arrays, a spreadsheet with formulas, and plots.

Spreadsheet formulas are traced from the closed forms themselves. A function is called with cells in place of numbers. Its
operators and numpy functions are recorded as a formula. A function that does anything else raises `Untraceable`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from steptime.errors import InputError, install_hint, replace_controls, safe_cell
from steptime.picture_files import PICTURES, replace_file
from steptime.sweeps.axes import label

if TYPE_CHECKING:
    from steptime.sweeps.sweep_result import Sweep


# Largest number in formulas, near the limit of spreadsheets; an infinite answer is #N/A.
INFINITE = 1e300
# Formula of each numpy function.
UFUNCS: dict[Any, Callable[..., str]] = {
    np.add: "({}+{})".format,
    np.subtract: "({}-{})".format,
    np.multiply: "({}*{})".format,
    np.divide: "({}/{})".format,
    np.power: "({}^{})".format,
    np.negative: "(-{})".format,
    np.maximum: "MAX({},{})".format,
    np.minimum: "MIN({},{})".format,
    np.sqrt: "SQRT({})".format,
    np.exp: "EXP({})".format,
    np.expm1: "(EXP({})-1)".format,
    np.log: "LN({})".format,
    np.log1p: "LN(1+{})".format,
    np.log2: "LOG({},2)".format,
    np.absolute: "ABS({})".format,
    np.square: "({0}*{0})".format,
    np.floor: "FLOOR({},1)".format,
    np.ceil: "CEILING({},1)".format,
    np.greater: "({}>{})".format,
    np.greater_equal: "({}>={})".format,
    np.less: "({}<{})".format,
    np.less_equal: "({}<={})".format,
    np.equal: "({}={})".format,
    np.not_equal: "({}<>{})".format,
    np.logical_and: "AND({},{})".format,
    np.logical_or: "OR({},{})".format,
    np.isinf: "(ABS({})>=1E+300)".format,
}


class Untraceable(Exception):
    """An operation that no formula can express."""


class Cell(np.lib.mixins.NDArrayOperatorsMixin):
    """A number of a spreadsheet, as the formula that computes it; subclasses write other languages."""

    # Formula of each numpy function, and of a condition.
    ufuncs: ClassVar[Mapping[Any, Callable[..., str]]] = UFUNCS
    condition: ClassVar[str] = "IF({},{},{})"

    def __init__(self, text: str) -> None:
        self.text = text

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Cell:
        if method != "__call__" or ufunc not in self.ufuncs or options:
            raise Untraceable(getattr(ufunc, "__name__", str(ufunc)))
        return type(self)(self.ufuncs[ufunc](*map(self.write, inputs)))

    def __array_function__(self, function: Any, _: Any, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Cell:
        if function is np.where and len(arguments) == 3 and not options:
            if not isinstance(arguments[0], Cell):
                return type(self)(self.write(arguments[1 if arguments[0] else 2], is_answer=True))
            branches = (self.write(branch, is_answer=True) for branch in arguments[1:])
            return type(self)(self.condition.format(self.write(arguments[0]), *branches))
        raise Untraceable(getattr(function, "__name__", str(function)))

    def __bool__(self) -> bool:
        raise Untraceable("a branch on a value")

    def __float__(self) -> float:
        raise Untraceable("a number")

    __int__ = __index__ = __float__
    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def write(cls, value: Any, *, is_answer: bool = False) -> str:
        """Return a cell or a number as a part of a formula.

        Args:
            value: Cell or number.
            is_answer: Whether the value is an answer and not an operand.

        Returns:
            Text of the formula.

        Raises:
            Untraceable: The value is an array.
        """
        if isinstance(value, Cell):
            return value.text
        if np.ndim(value):
            raise Untraceable("an array")
        return cls.literal(float(value), is_answer=is_answer)

    @staticmethod
    def literal(number: float, *, is_answer: bool) -> str:
        """Return a number as a part of a formula.

        Args:
            number: The number.
            is_answer: Whether the number is an answer and not an operand.

        Returns:
            Text of the formula.
        """
        if math.isinf(number) and is_answer:
            return "NA()"
        if math.isinf(number):
            return repr(math.copysign(INFINITE, number)).upper()
        return repr(int(number)) if number == int(number) and abs(number) < 1e15 else repr(number).upper()


def trace(function: Callable[..., Any], arguments: Mapping[str, Any], kind: type[Cell] = Cell) -> str:
    """Return a function of cells and numbers as a formula in the language of the cells.

    Args:
        function: Closed form.
        arguments: Cells and numbers by parameter.
        kind: Class of the cells.

    Returns:
        The formula.

    Raises:
        Untraceable: If the function does something that no formula can express.
    """
    try:
        cell = function(**arguments)
    except Untraceable:
        raise
    except (TypeError, ValueError, AttributeError) as problem:
        raise Untraceable(str(problem)) from None
    # numpy wraps a result that is not a number into an array without axes.
    if isinstance(cell, np.ndarray) and cell.dtype == object and cell.ndim == 0:
        cell = cell.item()
    return kind.write(cell)


def formula(function: Callable[..., Any], arguments: Mapping[str, Any]) -> str:
    """Return a function of cells and numbers as a spreadsheet formula.

    Args:
        function: Closed form.
        arguments: Cells and numbers by parameter.

    Returns:
        The formula, with a leading "=".

    Raises:
        Untraceable: If the function does something that no formula can express.

    >>> from steptime.blackboard import drain_seconds, optimal_batch
    >>> formula(drain_seconds, {"capacity": Cell("A2"), "bandwidth": Cell("B2")})
    '=(A2/B2)'
    >>> formula(optimal_batch, {"machine_balance": Cell("A2"), "sparsity": 8})
    '=((A2*8)/1)'
    """
    return f"={trace(function, arguments)}"


# Rows of a spreadsheet below its header.
MOST_ROWS: Final = 1_048_575
# Points up to which a .csv file is written without pyarrow.
FEW_POINTS: Final = 20_000
# Points per chunk of a .zarr folder, and per row group of a .parquet file.
CHUNK: Final = 1_000_000


def ending(path: str) -> str:
    """Return the ending of a file of results.

    Args:
        path: Name of the file.

    Returns:
        The ending with its dot, in lower case.

    Raises:
        InputError: If no writer has this ending, or its library is not installed.
    """
    suffix = Path(path).suffix.casefold()
    suffixes = (*WRITERS, *PICTURES)
    if suffix not in suffixes:
        raise InputError(f"{path}: must end in {', '.join(suffixes)}, got {suffix or 'no ending'}")
    needs = {".parquet": "pyarrow", ".nc": "netCDF4", ".zarr": "zarr", ".xlsx": "openpyxl"}
    extra = "plot" if suffix in PICTURES else "sweep"
    library = "matplotlib" if suffix in PICTURES else needs.get(suffix, "")
    if library and find_spec(library) is None:
        raise InputError(f"{path}: {suffix} files need {library}: {install_hint(extra)}")
    return suffix


def save(sweep: Sweep, path: str, *, answer: str | None = None) -> None:
    """Write the results of a sweep to a file; replace an old file only when complete.

    Args:
        sweep: Result of a sweep.
        path: File whose ending gives the format.
        answer: Answer to plot, for plots only.

    Raises:
        InputError: If the format is unknown, or a spreadsheet has too few rows for the points.
    """
    suffix = ending(path)
    if suffix in PICTURES:
        sweep.plot(path, answer=answer)
        return
    if suffix == ".xlsx" and sweep.points > MOST_ROWS:
        raise InputError(f"{path}: a spreadsheet has at most {MOST_ROWS:,} rows, got {sweep.points:,} points; write .parquet")
    replace_file(path, lambda place: WRITERS[suffix](sweep, place))


def _csv(sweep: Sweep, path: str) -> None:
    if sweep.points > FEW_POINTS and find_spec("pyarrow") is not None:
        import pyarrow
        from pyarrow import csv

        table = _arrow(sweep)
        # A text that starts like a formula would run in a spreadsheet.
        for index, field in enumerate(table.schema):
            if pyarrow.types.is_string(field.type):
                table = table.set_column(
                    index, field, pyarrow.array(map(safe_cell, table.column(index).to_pylist()), field.type)
                )
        csv.write_csv(table, path)
        return
    Path(path).write_text(sweep.to_csv(), encoding="utf-8", newline="")


def _json(sweep: Sweep, path: str) -> None:
    Path(path).write_text(sweep.to_json() + "\n", encoding="utf-8")


def _arrow(sweep: Sweep) -> Any:
    """Return the table as Arrow, columns with meaning and unit.

    Values that are not finite become null.
    """
    import pyarrow

    meanings_by_name = {axis.name: (axis.meaning, axis.unit) for axis in sweep.axes}
    meanings_by_name |= {name: (column.meaning, column.unit) for name, column in sweep.answers.items()}
    column_meanings = [*meanings_by_name.values(), ("why there is no answer", "")]
    arrays, fields = [], []
    for (name, values), (meaning, unit) in zip(sweep.columns().items(), column_meanings, strict=False):
        flat = np.ascontiguousarray(values)
        hidden = ~np.isfinite(flat) if flat.dtype.kind == "f" else None
        array = pyarrow.array(flat, mask=hidden) if flat.dtype != object else pyarrow.array([str(cell) for cell in flat])
        arrays.append(array)
        fields.append(pyarrow.field(name, array.type, metadata={"meaning": meaning, "unit": unit}))
    metadata = {"question": sweep.question, **{name: str(value) for name, value in sweep.fixed_inputs.items()}}
    return pyarrow.Table.from_arrays(arrays, schema=pyarrow.schema(fields, metadata=metadata))


def _parquet(sweep: Sweep, path: str) -> None:
    from pyarrow import parquet

    parquet.write_table(_arrow(sweep), path, row_group_size=CHUNK)


def _labelled(sweep: Sweep) -> Any:
    """Return the labelled arrays with plain texts, which files can store."""
    dataset = sweep.to_xarray()
    for name in [*dataset.coords, *dataset.data_vars]:
        if dataset[name].dtype == object:
            dataset[name] = dataset[name].astype(str)
    return dataset


def _netcdf(sweep: Sweep, path: str) -> None:
    _labelled(sweep).to_netcdf(path, engine="netcdf4")


def _zarr(sweep: Sweep, path: str) -> None:
    """Write a folder of chunks of at most `CHUNK` points."""
    dataset = _labelled(sweep)
    # The last dimensions vary fastest, so that they fill the chunk first.
    sizes, chunk_budget = {}, CHUNK
    for name, length in reversed(list(dataset.sizes.items())):
        sizes[name] = max(1, min(length, chunk_budget))
        chunk_budget = max(1, chunk_budget // sizes[name])
    encoding = {name: {"chunks": tuple(sizes[dimension] for dimension in dataset[name].dims)} for name in dataset.data_vars}
    dataset.to_zarr(path, mode="w", encoding=encoding, consolidated=True, zarr_format=2)


def _xlsx(sweep: Sweep, path: str) -> None:
    """Write one row per point; a closed form becomes a formula of its row."""
    from openpyxl import Workbook
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.utils import get_column_letter

    def text_cell(sheet: Any, value: Any) -> Any:
        if not isinstance(value, str):
            return value

        # A text that begins with "=" would become a formula.
        cell = WriteOnlyCell(sheet, replace_controls(value))
        cell.data_type = "s"
        return cell

    book = Workbook()
    table, about = book.active, book.create_sheet("held")
    table.title = "sweep"
    about.append(["asked", text_cell(about, sweep.question), sweep.meaning])
    about.append(["held", "value", "unit"])
    cells: dict[str, Any] = {}
    for name, value in sweep.fixed.items():
        spec = sweep.declaration.inputs.get(name)
        number = isinstance(value, int | float | np.number)
        content = float(value) if number else text_cell(about, label(value))
        about.append([text_cell(about, name), content, spec.unit if spec else ""])

        # Some parameters of a closed form must be numbers; a cell cannot take their place.
        is_number_only = spec is not None and not spec.broadcasts
        cells[name] = value if is_number_only else Cell(f"held!$B${about.max_row}")
    columns = {name: np.asarray(values).tolist() for name, values in sweep.columns().items()}
    units = [axis.title for axis in sweep.axes]
    units += [f"{name} [{column.unit}]" if column.unit else name for name, column in sweep.answers.items()]
    table.append([*units, "reason"][: len(columns)])
    for row_number, row in enumerate(zip(*columns.values(), strict=True), start=2):
        cells |= {axis.name: Cell(f"{get_column_letter(i)}{row_number}") for i, axis in enumerate(sweep.axes, start=1)}
        texts = tuple(text_cell(table, value) for value in row)
        table.append([_cell(value) for value in _live(sweep, texts, cells)])
    table.freeze_panes = "A2"
    for i, title in enumerate([*units, "reason"][: len(columns)], start=1):
        table.column_dimensions[get_column_letter(i)].width = max(12, len(title) + 2)
    about.column_dimensions["A"].width, about.column_dimensions["B"].width = 24, 24
    book.save(path)


def _live(sweep: Sweep, row: tuple[Any, ...], cells: dict[str, Any]) -> tuple[Any, ...]:
    """Return a row with a formula in place of its answer, if there is a closed form."""
    if sweep.declaration.written is None:
        return row
    try:
        return (*row[: len(sweep.axes)], formula(sweep.declaration.written, cells), *row[len(sweep.axes) + 1 :])
    except Untraceable:
        return row


def _cell(value: Any) -> Any:
    return None if isinstance(value, float) and not np.isfinite(value) else value


WRITERS: dict[str, Callable[[Any, str], None]] = {
    ".csv": _csv, ".parquet": _parquet, ".nc": _netcdf, ".zarr": _zarr, ".xlsx": _xlsx, ".json": _json,
}  # fmt: skip
