"""A sweep on a Dask cluster of this machine equals the one without, whatever becomes of its workers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

import steptime as st

AXES = {"speed": [20.0, 40.0, 80.0, 4000.0], "input": [256, 512, 1024], "output": [64, 256]}
HELD = {"model": "llama-3.1-8b", "system": "hgx-h100", "chips": 1, "ttft": 2}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_plans_on_a_cluster_of_which_a_worker_is_killed_and_that_is_ended_and_goes_on(tmp_path):
    distributed = pytest.importorskip("distributed", reason="needs dask")
    alone = st.sweep("plan", AXES, workers=1, **HELD)
    out, seen = str(tmp_path / "plans.parquet"), []
    with (
        distributed.LocalCluster(n_workers=4, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        workers = list(client.run(os.getpid).values())

        def harm(done, total):
            if done == 6:
                os.kill(workers[0], signal.SIGKILL)
            if done == 14:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            st.sweep("plan", AXES, client=client, out=out, progress=harm, **HELD)
        found = st.sweep("plan", AXES, client=client, out=out, progress=lambda done, total: seen.append(done), **HELD)
    assert seen[0] == 14
    for name, column in alone.answers.items():
        other = found.answers[name].values
        same = np.array_equal(column.values, other, equal_nan=True) if column.numeric else (column.values == other).all()
        assert same, name
    assert found.reasons == alone.reasons
    assert Path(out).exists()
    assert not Path(out + ".partial").exists()
