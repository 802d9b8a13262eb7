"""The board of mixing: avalanches by round, activations by depth."""

import numpy as np
import pytest

pytest.importorskip("fastapi")


from steptime.reversible.avalanche import cipher_curve, feistel_expected
from tests.web.page_client import CLIENT

ROUTE = "/api/boards/mixing"


@pytest.mark.thorough
def test_its_curves_are_those_of_the_ciphers():
    rounds = CLIENT.post(ROUTE, json={}).json()["tables"]["rounds"]
    for key, name in (("aes", "AES-128"), ("arx", "Speck32/64 (ARX)"), ("feistel", "Feistel, random functions")):
        np.testing.assert_allclose(rounds[key][:10], cipher_curve(name, samples=4096).shares[:10], rtol=1e-12)
    np.testing.assert_allclose(rounds["feistel"], feistel_expected(16, 16), atol=0.01)
    assert rounds["aes"][10:] == [None] * 6


@pytest.mark.thorough
def test_plain_layers_keep_all_of_each_and_reversible_ones_the_same_at_any_depth():
    depths = CLIENT.post(ROUTE, json={"tokens": 1024, "width": 1024, "activation_ratio": 10}).json()["tables"]["depths"]
    stream = 1024 * 1024 * 2
    np.testing.assert_allclose(depths["plain"], 10 * stream * np.array(depths["layers"]), rtol=1e-12)
    np.testing.assert_allclose(depths["reversible"], 12 * stream, rtol=1e-12)
    assert np.all(np.diff(depths["checkpointed"]) >= 0)
    assert np.all(np.array(depths["checkpointed"])[1:] <= np.array(depths["plain"])[1:])


@pytest.mark.thorough
def test_a_single_layer_saves_nothing_by_undoing():
    shown = CLIENT.post(ROUTE, json={"layers": 1}).json()
    assert shown["marks"]["times"] < 1
    assert "not save memory" in shown["sentence"]


def test_a_wrong_round_is_told_at_its_field():
    answer = CLIENT.post(ROUTE, json={"rounds": 2.5})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["field"] == "rounds"
