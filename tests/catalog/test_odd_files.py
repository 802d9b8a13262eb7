"""Files and folders that are not what they should be: each gets one message that says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import steptime as st
from steptime.catalog.data_files import files, find, folders, read_file
from steptime.catalog.hardware_loading import load_chip, load_system
from steptime.errors import DataFileError, InputError, UnknownName
from tests.conftest import each

LLAMA = json.loads(find("models", "llama-3.1-8b").read_text())["config"]
SYSTEM = 'name = "x"\nchip = "h100"\nchips = 8\n[[domains]]\nname = "up"\nkind = "scale-up"\nsize = 8\nbandwidth = "1 TB/s"\n'
LONG = "n" * 5000


@each("load", [st.load_model, st.load_system, st.load_engine, load_chip])
@each("name", [LONG, f"/tmp/{LONG}.toml", f"{LONG}.json", "a\0b", ""])
def test_names_that_no_file_can_have(load, name):
    with pytest.raises(InputError) as caught:
        load(name)
    assert len(str(caught.value)) < 500


def test_a_home_that_is_missing_or_unreadable_has_no_catalogue(monkeypatch):
    usual = files("systems")
    monkeypatch.delenv("STEPTIME_CATALOG", raising=False)

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert files("systems") == usual
    monkeypatch.undo()
    looked = Path.is_dir

    def refused(path: Path) -> bool:
        if ".steptime" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return looked(path)

    monkeypatch.delenv("STEPTIME_CATALOG", raising=False)
    monkeypatch.setattr(Path, "is_dir", refused)
    assert files("systems") == usual
    assert folders("systems")


@pytest.mark.parametrize(("name", "most"), [("big.json", "16 MB"), ("big.toml", "1 MB")])
def test_a_file_far_too_large_is_refused_before_it_is_read(tmp_path, name, most):
    path = tmp_path / name
    with path.open("wb") as file:
        file.truncate(60_000_000)
    with pytest.raises(DataFileError, match=f"has 60.0 MB; files of this kind have at most {most}"):
        st.load_model(path) if name.endswith("json") else st.load_system(str(path))


def test_a_key_of_very_many_parts_is_refused_soon(tmp_path):
    path = tmp_path / "deep.toml"
    path.write_text("# odd\n" + "a." * 20_000 + "a = 1\n")
    with pytest.raises(DataFileError, match=r"deep\.toml:2: has a key of more than 32 parts"):
        load_system(str(path))


def test_bytes_before_the_text(tmp_path):
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xef\xbb\xbf" + SYSTEM.replace("\n", "\r\n").encode())
    assert load_system(str(path)).chips == 8
    path.write_text(SYSTEM, encoding="utf-16")
    with pytest.raises(DataFileError, match="is UTF-16 text; save it as UTF-8"):
        load_system(str(path))
    config = tmp_path / "config.json"
    config.write_bytes(b"\xef\xbb\xbf" + json.dumps(LLAMA).encode())
    assert st.load_model(config).layers == st.load_model("llama-3.1-8b").layers
    config.write_text(json.dumps(LLAMA), encoding="utf-16")
    with pytest.raises(DataFileError, match="UTF-16"):
        st.load_model(config)


@pytest.mark.parametrize("value", ["9" * 5000, f"[{'9' * 5000}]"])
def test_numbers_of_too_many_digits(tmp_path, value):
    config, system = tmp_path / "config.json", tmp_path / "x.toml"
    config.write_text(f'{{"model_type": "llama", "hidden_size": {value}}}')
    system.write_text(SYSTEM.replace("= 8", f"= {value}"))
    for load, path in ((st.load_model, config), (load_system, system)):
        with pytest.raises(InputError, match="too many digits"):
            load(str(path))


def test_a_key_that_stands_twice_in_a_config_is_refused_with_its_line(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama",\n "hidden_size": 4096,\n "hidden_size": 8192}')
    with pytest.raises(DataFileError, match=r"config\.json:3: has the key 'hidden_size' twice"):
        st.load_model(path)


@each("value", [0, -1, 2.5, "4096", [4096]])
def test_a_context_of_no_length_is_refused(value):
    with pytest.raises(InputError, match="max_position_embeddings"):
        st.load_model({**LLAMA, "max_position_embeddings": value})
    assert st.load_model({**LLAMA, "max_position_embeddings": None}).max_context > 1e9


@pytest.mark.parametrize(
    ("text", "load", "says"),
    [
        (json.dumps(LLAMA), load_system, "is not the file of a system: it looks like a model's config.json"),
        (json.dumps(LLAMA), load_chip, "is not the file of a chip: it looks like a model's config.json"),
        ("[constants]\nmemory_efficiency = 0.8\n", load_system, "looks like an engine"),
        ('[peak]\nbf16 = "1 PFLOP/s"\n', load_system, "is not the file of a system: it looks like a chip"),
        (SYSTEM, load_chip, "is not the file of a chip: it looks like a system"),
        (SYSTEM, st.load_model, "is not a.*config.json: it looks like a system"),
        ("", load_system, "is empty; expected the file of a system"),
        ("", load_chip, "is empty; expected the file of a chip"),
        ("", st.load_model, "is empty; expected a model's config.json"),
        ('{"name": "x"}', load_system, "chip: is missing"),
        (SYSTEM + 'colour = "red"\n', load_system, r"domains\.0\.colour: no such key"),
        (SYSTEM.replace("chips", "chps"), load_system, "chips: is missing|did you mean chip"),
    ],
)
def test_files_of_another_kind_are_told_by_what_they_look_like(tmp_path, text, load, says):
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(DataFileError, match=says):
        load(str(path))


@each("value", [7, None, ["a"], 1.5])
def test_what_is_no_name_of_a_model(value):
    with pytest.raises(InputError, match="model: must be a name, a path or the fields"):
        st.load_model(value)


@each(
    "name, system",
    [("v6e", "tpu-v6e"), ("v5p", "tpu-v5p"), ("tpuv6e", "tpu-v6e"), ("trillium", "tpu-v6e"), ("TPU v6e", "tpu-v6e"),
     ("h100-sxm", "hgx-h100"), ("H100 SXM", "hgx-h100"), ("ironwood", "tpu7x"), ("v5e", "tpu-v5e")],
)  # fmt: skip
def test_systems_go_by_what_people_call_them(name, system):
    assert load_system(name).name == system


def test_no_two_systems_or_chips_share_a_name():
    for kind in ("systems", "chips"):
        names: dict[str, str] = {}
        for name, path in files(kind).items():
            for one in {name, *read_file(path).get("aliases", [])}:
                assert names.setdefault(one.casefold(), name) == name, (kind, one)


def test_an_unknown_name_is_not_repeated_in_full():
    with pytest.raises(UnknownName) as caught:
        st.load_system("gb200" * 1000)
    assert len(str(caught.value)) < 300
