"""Training callback: the measured time of each training step against its prediction, in an MLflow run.

`TrainingCallback` times the steps of any training loop. For each window of steps it logs the mean measured time, the
predicted time with its 90 % range, and measured over predicted. The plan's inputs become parameters of the run, so that runs
can be searched by model, system and layout. MLflow is imported when the callback is made without a `client`; any object with
MLflow's functions `log_params(params)` and `log_metrics(metrics, step=step)` takes its place
(https://mlflow.org/docs/latest/api_reference/python_api/mlflow.html).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final, Protocol, cast

import numpy as np

from steptime.errors import InputError, RangeError, install_hint
from steptime.number_checks import positive, whole_number
from steptime.training.training_job import show_training_layout
from steptime.training.training_planner import Training, TrainingStep

PREFIX: Final = "steptime/"
# Steps at the start that compile kernels and fill caches; they are not measured.
WARMUP_STEPS: Final = 5
MOST_STEPS: Final = 10**9


class MetricsLog(Protocol):
    """The two functions of MLflow that the callback calls."""

    def log_params(self, params: Mapping[str, Any]) -> Any:
        """Log parameters of a run."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> Any:
        """Log metrics of a step of a run."""


class TrainingCallback:
    """Log measured against predicted step times of a training run to MLflow.

    Args:
        training: Result of `st.train` or `st.training_step` for the run, of one layout.
        every: Steps of a window; a window is one point of each metric.
        warmup: Steps at the start that are not measured.
        client: MLflow, or an object with its `log_params` and `log_metrics`; the package mlflow if None.
        clock: Function that returns seconds, such as `time.perf_counter`.

    Raises:
        InputError: If MLflow is not installed and there is no client.
        RangeError: If the step times are arrays, or a count is out of its range.

    >>> import steptime as st
    >>> class Printer:
    ...     def log_params(self, params): print(params["steptime/model"])
    ...     def log_metrics(self, metrics, step=None): print(step, round(metrics["steptime/measured_to_predicted_ratio"], 2))
    >>> step = st.training_step("llama-3.1-8b", "hgx-h100", seq=4096, batch=8, layout=st.TrainingLayout(tp=8))
    >>> callback = TrainingCallback(step, every=2, warmup=0, client=Printer())
    >>> callback.on_train_begin()
    meta-llama/Llama-3.1-8B
    >>> callback.on_step_end(seconds=1.0 * float(step.total))
    >>> callback.on_step_end(seconds=1.2 * float(step.total))
    2 1.1
    """

    def __init__(
        self,
        training: Training | TrainingStep,
        *,
        every: int = 10,
        warmup: int = WARMUP_STEPS,
        client: MetricsLog | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        predicted = training.step if isinstance(training, Training) else training
        if np.ndim(predicted.total):
            raise RangeError(f"training: a callback needs one step time, got {np.size(predicted.total)}; give one layout")
        self.predicted = predicted
        self.every = int(whole_number("every", every, minimum=1, maximum=MOST_STEPS, unit="step"))
        self.warmup = int(whole_number("warmup", warmup, minimum=0, maximum=MOST_STEPS, unit="step"))
        self._client = _import_mlflow() if client is None else client
        self._clock, self._last = clock, float("nan")
        self.steps = 0
        self._window: list[float] = []
        self.means: list[float] = []

    def on_train_begin(self) -> None:
        """Log the plan as parameters of the run, and start the clock."""
        step = self.predicted
        names = {"model": step.model, "system": step.system, "stack": step.stack, "layout": show_training_layout(step.layout)}
        self._client.log_params({f"{PREFIX}{name}": value for name, value in names.items()})
        self._last = self._clock()

    def on_step_end(self, seconds: float | None = None) -> None:
        """Count a step, and log a window when it is complete.

        Args:
            seconds: Measured time of the step [s]; the time since the last step if None. Wait for the device before the
                call (`torch.cuda.synchronize()`), or the time is that of the launches.

        Raises:
            RangeError: If the time is not above zero.
        """
        now = self._clock()
        measured = now - self._last if seconds is None else seconds
        self._last, self.steps = now, self.steps + 1
        if self.steps <= self.warmup:
            return
        self._window.append(float(positive("seconds", measured)))
        if len(self._window) == self.every:
            self._log_window()

    def on_train_end(self) -> None:
        """Log the steps that are left in an incomplete window."""
        if self._window:
            self._log_window()

    @property
    def has_drifted(self) -> bool:
        """Whether the median window is outside the 90 % range of the prediction."""
        median = float(np.median(self.means)) if self.means else float(self.predicted.total)
        return not float(self.predicted.low) <= median <= float(self.predicted.high)

    def _log_window(self) -> None:
        mean = float(np.mean(self._window))
        self._window = []
        self.means.append(mean)
        total, low, high = (float(getattr(self.predicted, name)) for name in ("total", "low", "high"))
        metrics = {
            "step_seconds_measured": mean, "step_seconds_predicted": total, "step_seconds_low": low, "step_seconds_high": high,
            "measured_to_predicted_ratio": mean / total, "outside_range": float(not low <= mean <= high),
        }  # fmt: skip
        self._client.log_metrics({f"{PREFIX}{name}": value for name, value in metrics.items()}, step=self.steps)


def _import_mlflow() -> MetricsLog:
    """Return the package mlflow."""
    try:
        return cast(MetricsLog, import_module("mlflow"))
    except ModuleNotFoundError as error:
        raise InputError(f"mlflow is not installed, and there is no client: {install_hint('mlflow')}") from error
