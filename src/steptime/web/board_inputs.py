"""What a board may be asked: inputs with their bounds, units and words, from which the page makes its sliders and fields."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

LONGEST: Final = 100_000  # characters of a pasted config.json or TOML
LONGEST_NAME: Final = 200  # characters of a name of the catalogue
MODEL, SYSTEM = "deepseek-ai/DeepSeek-V3", "gb200-nvl72"


class Inputs(BaseModel):
    """The inputs of a board; none beside them is taken, and no number that is not finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Shared(Inputs):
    """What all boards share: the bar at the top of the page."""

    model: str = Field(
        MODEL, max_length=LONGEST, title="model", description="A name of the catalogue, or the text of a config.json."
    )
    system: str = Field(
        SYSTEM, max_length=LONGEST, title="system", description="A name of the catalogue, or the text of a system's TOML."
    )
    engine: str = Field(
        "", max_length=60, title="engine", description="vllm, sglang, trtllm, ... or ideal; else the system's usual one."
    )
    weights: str = Field("", max_length=20, title="weights", description="Number format of the weights; else the config's.")
    kv: str = Field("", max_length=20, title="KV cache", description="Number format of the cache; else the config's.")

    @field_validator("model", "system")
    @classmethod
    def _check_length(cls, value: str, info: ValidationInfo) -> str:
        is_pasted = is_config(value) if info.field_name == "model" else is_toml(value)
        if len(value) > LONGEST_NAME and not is_pasted:
            words = {"max_length": LONGEST_NAME}
            raise PydanticCustomError("string_too_long", "a name has at most {max_length} characters", words)
        return value


def is_config(text: str) -> bool:
    """Whether the model is given by the text of a config.json."""
    return text.lstrip().startswith(("{", "["))


def is_toml(text: str) -> bool:
    """Whether the system is given by the text of a TOML file."""
    return any(mark in text.strip() for mark in ("\n", "=", "["))


def bar_inputs(inputs: Shared) -> Shared:
    """Return what is asked in the bar alone: what answers that do not depend on a board's own inputs are kept by."""
    return Shared(**{name: getattr(inputs, name) for name in Shared.model_fields})


def slider(
    default: float, low: float, high: float, name: str, unit: str, words: str, *, log: bool = False, is_advanced: bool = False,
    step: float | None = None,
) -> Any:  # fmt: skip
    """Return a number between two ends, which the page shows as a slider with a field and its unit.

    log: the slider runs over ratios. is_advanced: behind "more". step: of the slider, 1 for whole numbers.
    """
    extra: dict[str, Any] = {"kind": "slider", "unit": unit, "log": log, "more": is_advanced, "step": step}
    return Field(default, ge=low, le=high, title=name, description=words, json_schema_extra=extra)


def choice(default: str, options: tuple[str, ...], name: str, words: str, *, is_advanced: bool = False) -> Any:
    """Return one of several words, which the page shows as a list."""
    pattern = "^(" + "|".join(options) + ")$"
    return Field(
        default, pattern=pattern, title=name, description=words,
        json_schema_extra={"kind": "choice", "options": list(options), "more": is_advanced},
    )  # fmt: skip


def text(default: str, name: str, words: str, *, longest: int = 200, is_advanced: bool = False) -> Any:
    """Return a line of text."""
    return Field(
        default, max_length=longest, title=name, description=words, json_schema_extra={"kind": "text", "more": is_advanced}
    )


def coarse() -> Any:
    """Return the input of slow boards that says that a slider still moves: a rough answer at once is better than none."""
    return Field(False, title="coarse", description="A rough answer at once: the slider still moves.")


def described(kind: type[Inputs]) -> list[dict[str, Any]]:
    """Return the inputs of a board that the bar does not hold, as the page builds them.

    >>> class Example(Shared):
    ...     batch: int = slider(64, 1, 4096, "batch", "sequences", "Sequences that decode at once.", log=True)
    >>> [[control[key] for key in ("name", "default", "low", "high", "whole")] for control in described(Example)]
    [['batch', 64, 1, 4096, True]]
    """
    controls = []
    for name, field in kind.model_fields.items():
        if name in Shared.model_fields or name == "coarse":
            continue
        extra = field.json_schema_extra
        assert isinstance(extra, dict)
        bounds = {type(bound).__name__: bound for bound in field.metadata}
        controls.append(
            {
                "name": name, "label": field.title or name, "words": field.description or "", "default": field.default,
                "whole": field.annotation is int,
                "low": getattr(bounds.get("Ge"), "ge", None), "high": getattr(bounds.get("Le"), "le", None),
            }
            | extra
        )  # fmt: skip
    return controls
