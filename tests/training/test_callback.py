"""The callback of training: windows of measured steps against the prediction, in MLflow or any log with its functions."""

from __future__ import annotations

import builtins
import sys
from itertools import count

import numpy as np
import pytest

import steptime as st
from steptime.errors import InputError, RangeError
from steptime.training.training_callback import TrainingCallback


class Log:
    """The two functions of MLflow's fluent interface, with its arguments."""

    def __init__(self) -> None:
        self.params, self.points = {}, []

    def log_params(self, params):
        self.params |= params

    def log_metrics(self, metrics, step=None):
        self.points.append((step, metrics))


@pytest.fixture(scope="module")
def step():
    return st.training_step("llama-3.1-8b", "hgx-h100", seq=4096, batch=64, layout=st.TrainingLayout(tp=8))


def test_a_window_is_the_mean_of_its_steps_and_the_start_does_not_count(step):
    log, predicted = Log(), float(step.total)
    callback = TrainingCallback(step, every=4, warmup=2, client=log)
    callback.on_train_begin()
    for factor in (9, 9, 1, 1, 1, 2, 3):
        callback.on_step_end(seconds=factor * predicted)
    assert [place for place, _ in log.points] == [6]
    callback.on_train_end()
    assert [place for place, _ in log.points] == [6, 7]
    first, last = (metrics for _, metrics in log.points)
    assert first["steptime/measured_to_predicted_ratio"] == pytest.approx(1.25)
    assert last["steptime/step_seconds_measured"] == pytest.approx(3 * predicted)
    assert last["steptime/step_seconds_low"] < last["steptime/step_seconds_predicted"] < last["steptime/step_seconds_high"]
    assert log.params["steptime/system"] == "hgx-h100"
    assert "tp8" in log.params["steptime/layout"]


@pytest.mark.parametrize(("factor", "outside"), [(1.0, 0.0), (3.0, 1.0)])
def test_a_mean_outside_the_range_is_marked(step, factor, outside):
    log = Log()
    callback = TrainingCallback(step, every=1, warmup=0, client=log)
    assert callback.has_drifted is False
    callback.on_step_end(seconds=factor * float(step.total))
    assert log.points[0][1]["steptime/outside_range"] == outside
    assert callback.has_drifted is bool(outside)


def test_without_a_time_the_clock_measures_from_step_to_step(step):
    log, ticks = Log(), count(start=10.0, step=0.5)
    callback = TrainingCallback(step, every=2, warmup=1, client=log, clock=lambda: next(ticks))
    callback.on_train_begin()
    for _ in range(3):
        callback.on_step_end()
    assert log.points[0][1]["steptime/step_seconds_measured"] == pytest.approx(0.5)


def test_wrong_input_is_one_message(step):
    log = Log()
    several = st.training_step("llama-3.1-8b", "hgx-h100", seq=4096, batch=np.array([8, 16]), layout=st.TrainingLayout(tp=8))
    with pytest.raises(RangeError, match="a callback needs one step time, got 2"):
        TrainingCallback(several, client=log)
    with pytest.raises(RangeError, match="every"):
        TrainingCallback(step, every=0, client=log)
    with pytest.raises(RangeError, match="seconds"):
        TrainingCallback(step, warmup=0, client=log).on_step_end(seconds=0.0)


def test_without_mlflow_the_message_names_the_extra(step, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(InputError, match=r"mlflow is not installed.*steptime\[mlflow\]"):
        TrainingCallback(step)


def test_mlflow_is_imported_by_the_callback_alone(monkeypatch):
    real = builtins.__import__
    monkeypatch.setattr(
        builtins, "__import__", lambda name, *rest: pytest.fail(name) if name == "mlflow" else real(name, *rest)
    )
    assert st.TrainingCallback is TrainingCallback


def test_a_run_of_mlflow_has_the_metrics_and_the_parameters(step, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        callback = st.TrainingCallback(step, every=2, warmup=0)
        callback.on_train_begin()
        for factor in (1.0, 1.2, 1.1, 1.3):
            callback.on_step_end(seconds=factor * float(step.total))
        callback.on_train_end()
    client = mlflow.MlflowClient()
    points = client.get_metric_history(run.info.run_id, "steptime/measured_to_predicted_ratio")
    assert [(point.step, point.value) for point in points] == [(2, pytest.approx(1.1)), (4, pytest.approx(1.2))]
    assert client.get_run(run.info.run_id).data.params["steptime/model"] == step.model
