"""What validate and calibrate ask of measured runs: the files, and what result JSON does not tell."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from steptime.terminal.options import count

FILES = (
    "CSV of runs (`steptime validate --columns` lists its columns), result JSON of `vllm bench serve` or of SGLang's "
    "bench_serving, or folders of them."
)
SKIP = Annotated[bool, typer.Option("--skip-bad", help="Leave out runs that cannot be read, and say which.")]
PANEL = "What result JSON does not tell"


def _told(words: str, name: str, metavar: str) -> Any:
    return typer.Option(name, help=words, metavar=metavar, rich_help_panel=PANEL, show_default=False)


def _ways(words: str, name: str) -> Any:
    return count(name, words, PANEL, show_default=False)


@dataclass(frozen=True, kw_only=True)
class Told:
    """What was run, where the files do not tell."""

    model: Annotated[
        str, _told("Catalogue name or config, instead of the file's model_id (SGLang's may have none).", "--model", "NAME")
    ] = ""
    system: Annotated[str, _told("System that was measured.", "--system", "NAME")] = ""
    tp: Annotated[int | None, _ways("Tensor parallel ways.", "--tp")] = None
    pp: Annotated[int | None, _ways("Pipeline stages; 1 where not given.", "--pp")] = None
    dp: Annotated[
        int | None, _ways("Attention groups (data parallel attention), which multiply tp; 1 where not given.", "--dp")
    ] = None
    ep: Annotated[int | None, _ways("Expert parallel ways; 1 where not given.", "--ep")] = None
    weights: Annotated[str, _told("Format of all weights but routed experts: bf16, fp8, nvfp4, ...", "--weights", "FORMAT")] = (
        ""
    )
    experts: Annotated[str, _told("Format of routed experts; as --weights where not given.", "--experts", "FORMAT")] = ""
    kv: Annotated[
        str, _told("Format of the KV cache; where not given, 8 bits if the weights have 8 or fewer.", "--kv", "FORMAT")
    ] = ""

    def given(self) -> dict[str, Any]:
        """Return what was given, by the argument of `validate` and `calibrate`."""
        return {name: value for name, value in vars(self).items() if value not in ("", None)}
