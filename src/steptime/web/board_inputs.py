"""Inputs of the boards with bounds, units and descriptions."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

# Longest pasted config.json or TOML [characters].
LONGEST: Final = 100_000
# Longest name of the catalogue [characters].
LONGEST_NAME: Final = 200
MODEL, SYSTEM = "deepseek-ai/DeepSeek-V3", "gb200-nvl72"


class Inputs(BaseModel):
    """The inputs of a board; unknown inputs and infinite numbers are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Shared(Inputs):
    """The inputs that all boards share: the bar at the top of the page."""

    model: str = Field(
        MODEL, max_length=LONGEST, title="model", description="Name in the catalogue, or the text of a config.json."
    )
    system: str = Field(
        SYSTEM, max_length=LONGEST, title="system", description="Name in the catalogue, or the text of a system's TOML file."
    )
    engine: str = Field(
        "",
        max_length=60,
        title="engine",
        description="Engine: vllm, sglang, trtllm, ... or ideal. Default: the system's usual engine.",
    )
    weights: str = Field(
        "", max_length=20, title="weights", description="Number format of the weights. Default: as in the config."
    )
    kv: str = Field(
        "", max_length=20, title="KV cache", description="Number format of the KV cache. Default: as in the config."
    )

    @field_validator("model", "system")
    @classmethod
    def _check_length(cls, value: str, info: ValidationInfo) -> str:
        is_pasted = is_config(value) if info.field_name == "model" else is_toml(value)
        if len(value) > LONGEST_NAME and not is_pasted:
            words = {"max_length": LONGEST_NAME}
            raise PydanticCustomError("string_too_long", "a name must have at most {max_length} characters", words)
        return value


def is_config(text: str) -> bool:
    """Return whether the model is the text of a config.json, not a name.

    Args:
        text: Input of the bar.

    Returns:
        True for the text of a config.json.
    """
    return text.lstrip().startswith(("{", "["))


def is_toml(text: str) -> bool:
    """Return whether the system is the text of a TOML file, not a name.

    Args:
        text: Input of the bar.

    Returns:
        True for the text of a TOML file.
    """
    return any(mark in text.strip() for mark in ("\n", "=", "["))


def bar_inputs(inputs: Shared) -> Shared:
    """Return the inputs of the bar only, as a key of shared caches.

    Args:
        inputs: Inputs of a board.

    Returns:
        Inputs without those of the board.
    """
    return Shared(**{name: getattr(inputs, name) for name in Shared.model_fields})


def slider(
    default: float, low: float, high: float, name: str, unit: str, words: str, *, log: bool = False, is_advanced: bool = False,
    step: float | None = None,
) -> Any:  # fmt: skip
    """Declare a bounded number, shown as a slider with a field and its unit.

    Args:
        default: Default value.
        low: Smallest value.
        high: Largest value.
        name: Label.
        unit: Unit after the label.
        words: Meaning, shown on hover.
        log: Whether the slider is logarithmic.
        is_advanced: Whether the input is under "more".
        step: Step of the slider, 1 for whole numbers; None: continuous.

    Returns:
        Field of a pydantic model.
    """
    extra: dict[str, Any] = {"kind": "slider", "unit": unit, "log": log, "more": is_advanced, "step": step}
    return Field(default, ge=low, le=high, title=name, description=words, json_schema_extra=extra)


def choice(default: str, options: tuple[str, ...], name: str, words: str, *, is_advanced: bool = False) -> Any:
    """Declare one of several words, shown as a list.

    Args:
        default: Default word.
        options: Allowed words.
        name: Label.
        words: Meaning, shown on hover.
        is_advanced: Whether the input is under "more".

    Returns:
        Field of a pydantic model.
    """
    pattern = "^(" + "|".join(options) + ")$"
    return Field(
        default, pattern=pattern, title=name, description=words,
        json_schema_extra={"kind": "choice", "options": list(options), "more": is_advanced},
    )  # fmt: skip


def text(default: str, name: str, words: str, *, longest: int = 200, is_advanced: bool = False) -> Any:
    """Declare a line of text.

    Args:
        default: Default text.
        name: Label.
        words: Meaning, shown on hover.
        longest: Largest number of characters.
        is_advanced: Whether the input is under "more".

    Returns:
        Field of a pydantic model.
    """
    return Field(
        default, max_length=longest, title=name, description=words, json_schema_extra={"kind": "text", "more": is_advanced}
    )


def coarse() -> Any:
    """Declare the switch of slow boards for a rough answer while a slider moves.

    Returns:
        Field of a pydantic model.
    """
    return Field(False, title="coarse", description="Give a rough answer at once, while the slider moves.")


def described(kind: type[Inputs]) -> list[dict[str, Any]]:
    """Return the controls of a board's own inputs, without the bar.

    Args:
        kind: Class of the inputs.

    Returns:
        One control per input: name, label, default, bounds and kind.

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
        # Pydantic keeps the bounds as annotated-types objects (Ge, Le).
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
