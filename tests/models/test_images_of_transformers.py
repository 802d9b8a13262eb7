"""transformers as oracle of towers: tokens of images by its processors' own functions, FLOPs of its vision modules.

Its processors import torchvision at the top of their files, which few have beside PyTorch: the functions that scale and cut are
taken out of the source by name instead. Needs the extra `oracle`.
"""

from __future__ import annotations

import ast
import importlib.util
import math
from collections import defaultdict
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import steptime as st
from steptime.models.blocks_vision import read_media, tower_flops
from steptime.models.image_tokens import Medium
from tests.models.test_images import FUYU, LLAMA4

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SIZES = [
    (1, 1), (10, 10), (28, 28), (64, 48), (100, 99), (224, 224), (336, 336), (337, 335), (640, 480), (480, 640), (673, 336),
    (1024, 768), (1000, 333), (333, 1000), (1024, 1024), (1540, 1541), (1920, 1080), (3000, 200), (4032, 3024), (8000, 4000),
    (50, 5000), (9000, 9000), (2016, 1344), (729, 400),
]  # fmt: skip
"""Width and height [pixels]."""


@cache
def taken(model: str, file: str, *names: str) -> SimpleNamespace:
    """Return functions, and methods without their classes, of a file of transformers, by their source."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")

    spec = importlib.util.find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / "models" / model / f"{file}_{model}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in names]
    future = ast.parse("from __future__ import annotations").body
    room: dict[str, Any] = {
        "math": math, "torch": torch, "defaultdict": defaultdict, "get_image_size": lambda image, _: image,
    }  # fmt: skip
    for node in found:
        node.decorator_list = []
    exec(compile(ast.Module(body=[*future, *found], type_ignores=[]), str(path), "exec"), room)
    return SimpleNamespace(**{name: room[name] for name in names})


def qwen(factor: int, least: int, most: int, model: str = "qwen2_vl") -> Any:
    def tokens(width: int, height: int) -> int:
        resize = taken(model, "image_processing", "smart_resize").smart_resize
        tall, wide = resize(height, width, factor, min_pixels=least, max_pixels=most)
        return int(tall * wide // factor**2)

    return tokens


def gemma4(width: int, height: int) -> int:
    function = taken("gemma4", "image_processing", "get_aspect_ratio_preserving_size").get_aspect_ratio_preserving_size
    tall, wide = function(height, width, patch_size=16, max_patches=280 * 9, pooling_kernel_size=3)
    return int(tall * wide // 48**2)


def pixtral(width: int, height: int) -> int:
    functions = taken("pixtral", "image_processing", "get_resize_output_image_size", "_num_image_tokens")
    tall, wide = functions.get_resize_output_image_size((height, width), size=(1540, 1540), patch_size=(28, 28))
    return int((wide // 28 + 1) * (tall // 28))


def kimi(width: int, height: int) -> int:
    function = taken("kimi_k25", "image_processing", "navit_resize").navit_resize
    _, (tall, wide) = function(height, width, patch_size=14, merge_kernel_size=2, max_patches=16384, max_size_per_side=512)
    return int(tall * wide // 28**2)


def llama4(width: int, height: int) -> int:
    torch = pytest.importorskip("torch")

    names = ("get_factors", "find_supported_resolutions", "get_best_fit")
    functions = taken("llama4", "image_processing", *names)
    sizes = functions.find_supported_resolutions(max_num_chunks=16, patch_size=SimpleNamespace(height=336, width=336))
    tall, wide = (int(side) // 336 for side in functions.get_best_fit((height, width), torch.tensor(sizes)))
    text = taken("llama4", "processing", "_prompt_split_image")._prompt_split_image(None, (tall, wide), 144)
    return int(text.count("<|"))


def step3(width: int, height: int) -> int:
    functions = taken("step3p7", "image_processing", "_plan_patches", "_is_extreme_aspect")
    self = SimpleNamespace(max_image_size=3024, _is_extreme_aspect=functions._is_extreme_aspect)
    *_, across, down, _ = functions._plan_patches(self, width, height, 728, 504)
    return int(169 + 2 + across * down * (81 + 2) + max(0, down - 1))


STEP3 = {
    "model_type": "step3p7",
    "text_config": {
        "model_type": "step3p5", "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 32,
        "num_attention_groups": 1, "intermediate_size": 256, "vocab_size": 1000, "moe_num_experts": 4, "moe_top_k": 2,
        "moe_intermediate_size": 32, "moe_layers_enum": "1", "share_expert_dim": 32,
    },
    "vision_config": {"num_hidden_layers": 3, "hidden_size": 96, "patch_size": 14, "image_size": 728},
}  # fmt: skip
PROCESSORS: dict[str, tuple[Any, Any]] = {
    "Qwen2.5-VL": ("Qwen/Qwen2.5-VL-7B-Instruct", qwen(28, 56**2, 16384 * 28**2)),
    "Qwen3-VL": ("Qwen/Qwen3-VL-8B-Instruct", qwen(32, 256**2, 4096**2)),
    "Qwen3.5": ("Qwen/Qwen3.5-9B", qwen(32, 256**2, 4096**2)),
    "MiniMax-M3": ("nvidia/MiniMax-M3-NVFP4", qwen(28, 4 * 28**2, 451584, "minimax_m3_vl")),
    "Gemma 4": ("google/gemma-4-31B-it", gemma4),
    "Gemma 4 without a tower": ("google/gemma-4-12B-it", gemma4),
    "Pixtral": ("mistralai/Ministral-3-8B-Instruct-2512", pixtral),
    "Kimi K2.5": ("moonshotai/Kimi-K2.5", kimi),
    "Llama 4": (LLAMA4, llama4),
    "Step3": (STEP3, step3),
}


@pytest.mark.parametrize("family", PROCESSORS)
def test_tokens_equal_those_of_the_processor(family: str) -> None:
    model, tokens = PROCESSORS[family]
    rule = st.load_model(model).towers[0].rule
    for width, height in SIZES:
        medium = Medium(kind="image", width=width, height=height)
        try:
            expected = tokens(width, height)
        except ValueError:
            with pytest.raises(st.InputError):
                rule.cut(medium)
            continue
        assert rule.cut(medium).tokens == expected, (width, height)


def test_tokens_of_fuyu_equal_those_of_its_processor() -> None:
    """Lines of patches of 30 pixels with a newline each; sizes as `resize` of its processor leaves them."""
    rule = st.load_model(FUYU).towers[0].rule
    for width, height in SIZES[1:]:
        scale = min(1080 / height, 1920 / width) if width > 1920 or height > 1080 else 1
        tall, wide = (math.ceil(int(side * scale) / 30) for side in (height, width))
        assert rule.cut(Medium(kind="image", width=width, height=height)).tokens == max(1, tall) * (max(1, wide) + 1)


def test_tokens_of_sound_equal_those_of_the_processor() -> None:
    function = taken("gemma4", "processing", "_compute_audio_num_tokens")._compute_audio_num_tokens
    self = SimpleNamespace(feature_extractor=SimpleNamespace(frame_length=320, hop_length=160), audio_seq_length=750)
    for seconds in (0.1, 0.5, 1, 1.234, 2, 5, 9.99, 15, 29.5, 30):
        expected = function(self, range(round(16_000 * seconds)), 16_000)
        assert st.image_cost("google/gemma-4-E2B-it", audio=f"{seconds:g}").tokens == expected


def counted(run: Any) -> float:
    """Return the FLOPs of what `run` computes, on the meta device."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        run()
    return float(counter.get_total_flops())


def vision_config(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a config of the catalogue with few layers of its tower, and the part that describes that."""
    from steptime.models.model_loading import load_config_fields

    fields = dict(load_config_fields(name))
    vision = dict(fields["vision_config"])
    vision |= {key: 4 for key in ("depth", "num_hidden_layers") if key in vision}
    vision |= {"fullatt_block_indexes": [3]} if "fullatt_block_indexes" in vision else {}
    vision |= {"deepstack_visual_indexes": [1, 2]} if vision.get("deepstack_visual_indexes") else {}
    return fields | {"vision_config": vision}, vision


@pytest.mark.parametrize("size", [(448, 448), (600, 400)])
@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen3-VL-8B-Instruct", "Qwen/Qwen3.5-9B"])
def test_flops_of_qwen_equal_the_reference(name: str, size: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    fields, vision = vision_config(name)
    kind = fields["model_type"]
    module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    configs = importlib.import_module(f"transformers.models.{kind}.configuration_{kind}")
    prefix = {"qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL", "qwen3_5": "Qwen3_5"}[kind]
    config = getattr(configs, f"{prefix}VisionConfig")(**{k: v for k, v in vision.items() if k != "model_type"})
    config._attn_implementation = "eager"
    tower = getattr(module, {"qwen2_5_vl": "Qwen2_5_VisionTransformerPretrainedModel"}.get(kind, f"{prefix}VisionModel"))(
        config
    )
    (reading,) = read_media(st.load_model(fields), f"{size[0]}x{size[1]}")
    sizes = dict(reading.tower.rule.sizes)
    patch, merge = int(sizes["patch"]), int(sizes["merge"])
    grid = torch.tensor([[1, *(round(side / (patch * merge)) * merge for side in (size[1], size[0]))]])
    rows = int(grid.prod())
    pixels = torch.zeros(rows, 3 * 2 * patch**2)
    assert rows == reading.cut.rows
    assert math.isclose(tower_flops(reading), counted(lambda: tower(pixels, grid_thw=grid)), rel_tol=0.01)


def test_flops_of_siglip_equal_the_reference() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    fields, vision = vision_config("google/gemma-3-4b-it")
    config = transformers.Gemma3Config(text_config=fields["text_config"] | {"num_hidden_layers": 1}, vision_config=vision)
    from transformers.models.gemma3.modeling_gemma3 import Gemma3MultiModalProjector
    from transformers.models.siglip.modeling_siglip import SiglipVisionModel

    with torch.device("meta"):
        tower, projector = SiglipVisionModel(config.vision_config), Gemma3MultiModalProjector(config)
        pixels = torch.zeros(1, 3, 896, 896)
    (reading,) = read_media(st.load_model(fields), "640x480")
    found = counted(lambda: projector(tower(pixels).last_hidden_state))
    assert math.isclose(tower_flops(reading), found, rel_tol=0.01)


def test_flops_of_pixtral_equal_the_reference() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    fields, vision = vision_config("mistralai/Ministral-3-8B-Instruct-2512")
    from transformers.models.mistral3.modeling_mistral3 import Mistral3MultiModalProjector
    from transformers.models.pixtral.modeling_pixtral import PixtralVisionModel

    config = transformers.Mistral3Config(
        text_config={"model_type": "mistral", "hidden_size": fields["text_config"]["hidden_size"], "num_hidden_layers": 1},
        vision_config=vision, spatial_merge_size=2, multimodal_projector_bias=False,
    )  # fmt: skip
    config.vision_config._attn_implementation = "eager"
    tower, projector = PixtralVisionModel(config.vision_config), Mistral3MultiModalProjector(config)
    (reading,) = read_media(st.load_model(fields), "560x448")
    sizes = torch.tensor([[448, 560]])

    def run() -> None:
        seen = tower(torch.zeros(1, 3, 448, 560), image_sizes=sizes).last_hidden_state
        projector(seen.squeeze(0), sizes)

    assert math.isclose(tower_flops(reading), counted(run), rel_tol=0.01)


def test_flops_of_llama4_equal_the_reference() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    vision = LLAMA4["vision_config"] | {"num_hidden_layers": 4}
    from transformers.models.llama4.modeling_llama4 import Llama4MultiModalProjector, Llama4VisionModel

    config = transformers.Llama4Config(vision_config=vision, text_config={"hidden_size": 5120})
    config.vision_config._attn_implementation = "eager"
    tower, projector = Llama4VisionModel(config.vision_config), Llama4MultiModalProjector(config)
    (reading,) = read_media(st.load_model(LLAMA4 | {"vision_config": vision}), "600x300")
    tiles = reading.cut.sequences[0][0]
    found = counted(lambda: projector(tower(torch.zeros(tiles, 3, 336, 336)).last_hidden_state))
    assert tiles == 3
    assert math.isclose(tower_flops(reading), found, rel_tol=0.01)


def test_flops_of_a_conformer_equal_the_reference() -> None:
    """Gemma 4's tower for sound; blocks of its attention are computed whole, the last one too."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.models.gemma4.modeling_gemma4 import Gemma4AudioModel

    from steptime.models.model_loading import load_config_fields

    fields = dict(load_config_fields("google/gemma-4-E2B-it"))
    audio = dict(fields["audio_config"]) | {"num_hidden_layers": 3}
    tower = Gemma4AudioModel(transformers.Gemma4AudioConfig(**{k: v for k, v in audio.items() if k != "model_type"}))
    (reading,) = read_media(st.load_model(fields | {"audio_config": audio}), audio="24")
    frames = 4 * reading.cut.rows
    mask = torch.ones(1, frames, dtype=torch.bool)
    found = counted(lambda: tower(torch.zeros(1, frames, 128), mask))
    embedder = reading.cut.rows * 2 * audio["output_proj_dims"] * fields["text_config"]["hidden_size"]
    assert math.isclose(tower_flops(reading), found + embedder, rel_tol=0.01)
