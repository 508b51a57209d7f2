"""FedMatch: numbers of its models: sizes at BERT-base, what is shared, outputs worked out by a rule."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from fedtorch.models.networks.patched_bert import Ranker
from fedtorch.models.patch import Patch

IDS = [2, 5, 7, 3, 9, 11, 13, 3]
SEGMENTS = [0, 0, 0, 0, 1, 1, 1, 1]


def tiny(patch: Patch | None) -> Ranker:
    config = BertConfig(
        vocab_size=20,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=16,
        attn_implementation="sdpa",
    )
    return Ranker(BertModel(config), patch=patch).eval()


def filled(name: str, shape: torch.Size) -> Tensor:
    """base + scale sin(phase + 0.7 n) in row-major order, by the tensor's name (off = 0)."""
    norm = "LayerNorm" in name or ".norm." in name
    base, scale = (1.0 if name.endswith("weight") else 0.0, 0.1) if norm else (0.0, 0.3)
    phase = sum(name.encode()) % 101 / 7
    return base + scale * torch.sin(phase + 0.7 * torch.arange(math.prod(shape), dtype=torch.float64)).view(shape)


@torch.no_grad()
def fill(model: Ranker) -> None:
    for name, parameter in model.named_parameters():
        parameter.copy_(filled(name.removeprefix("bert."), parameter.shape))


def test_the_fill_rule_gives_its_example() -> None:
    values = filled("patch.top.enc.weight", torch.Size((6, 12))).flatten()
    assert sum(b"patch.top.enc.weight") == 1963
    assert values[:3].tolist() == pytest.approx([0.0007586928, 0.1938449684, 0.2957629264], abs=1e-9)


PAL = {"structure": "pal", "size": 12}
LR = {"structure": "lr", "size": 6}
ORACLES: dict[str, tuple[dict[str, Any] | None, list[float], float, float, list[float]]] = {
    "no patch": (
        None,
        [0.56815360, -0.74279664, -0.91353256, -0.86419018],
        2.30365615,
        92.33081347,
        [-0.93966308, 0.95513392, -0.73004727, -0.85083871],
    ),
    "inner LR (literal)": (
        {"insertion": "inner", "inner_skip": False, **LR},
        [0.39922424, -0.39431797, -1.26123981, -1.14623511],
        2.56812853,
        98.02027603,
        [-0.95444091, 0.95861068, -0.67906377, -0.88659221],
    ),
    "inner LR, inner_skip": (
        {"insertion": "inner", **LR},
        [0.64470915, -0.56802715, -1.00498280, -0.74806746],
        1.53694168,
        93.49255663,
        [-0.91531073, 0.95095872, -0.78464811, -0.79325209],
    ),
    "outer PAL": (
        {"insertion": "outer", **PAL},
        [0.85583223, -1.22691655, -0.54499210, -0.20347613],
        1.90847848,
        94.26581864,
        [-0.90895528, 0.91306355, -0.65710862, -0.78723699],
    ),
    "vertical LR": (
        {"insertion": "vertical", **LR},
        [0.21342044, -0.21548864, 0.67848942, 0.27839540],
        5.39373763,
        10.58839636,
        [0.24086236, -0.60494429, -0.21810071, 0.53315556],
    ),
    "horizontal LR": (
        {"insertion": "horizontal", **LR},
        [0.81308747, -0.80910442, -0.08136652, -1.41149395],
        6.70424848,
        117.25585530,
        [-0.74591568, 0.95508849, -0.93538025, -0.42843936],
    ),
    "horizontal PAL": (
        {"insertion": "horizontal", **PAL},
        [1.06506776, -1.03628780, -0.31945117, -0.68596869],
        14.69359574,
        98.39273661,
        [-0.85410297, 0.93598434, -0.83462002, -0.65932033],
    ),
}


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-4)])
@pytest.mark.parametrize("name", ORACLES)
@torch.no_grad()
def test_tiny_bert(name: str, dtype: torch.dtype, tolerance: float) -> None:
    patch, first, total, squares, pooled = ORACLES[name]
    model = tiny(None if patch is None else Patch(**patch)).to(dtype)
    fill(model)
    output = model.bert(input_ids=torch.tensor([IDS]), token_type_ids=torch.tensor([SEGMENTS]))
    hidden = output.last_hidden_state
    assert hidden[0, 0, :4].tolist() == pytest.approx(first, abs=tolerance)
    assert hidden.sum().item() == pytest.approx(total, abs=tolerance)
    assert hidden.square().sum().item() == pytest.approx(squares, abs=tolerance)
    assert output.pooler_output[0, :4].tolist() == pytest.approx(pooled, abs=tolerance)


def base(patch: Patch | None = None, **head: Any) -> Ranker:
    """BERT-base without storage."""
    with torch.device("meta"):
        return Ranker(BertModel(BertConfig()), patch=patch, **head)


def size(module: nn.Module | None) -> int:
    assert module is not None
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("width", "one", "both_sides", "beside"),
    [
        (32, 49_952, 1_198_848, 599_424),
        (64, 99_136, 2_379_264, 1_189_632),
        (128, 197_504, 4_740_096, 2_370_048),
        (256, 394_240, 9_461_760, 4_730_880),
        (512, 787_712, 18_905_088, 9_452_544),
    ],
)
def test_low_rank_patches_at_bert_base(width: int, one: int, both_sides: int, beside: int) -> None:
    wanted = {"vertical": one, "inner": both_sides, "outer": both_sides, "horizontal": beside}
    assert {name: size(base(Patch(name, "lr", width)).patch) for name in wanted} == wanted  # type: ignore[arg-type]
    norm = 2 * 768
    assert size(base(Patch("horizontal", "lr", width, scope="encoder")).patch) == one + norm


def test_pal_patches_at_bert_base() -> None:
    wanted = {"vertical": 439_776, "inner": 3_639_672, "outer": 3_639_672, "horizontal": 1_819_836}
    assert {name: size(base(Patch(name, "pal", 204)).patch) for name in wanted} == wanted  # type: ignore[arg-type]
    top: Any = base(Patch("vertical", "pal", 204)).patch
    assert size(top.top.attn) == 125_460
    assert size(base(Patch("horizontal", "pal", 204, pal_share_projections=False)).patch) == 5_277_312


def test_the_backbone_at_bert_base() -> None:
    bert: Any = base().bert
    assert size(bert) == 109_482_240
    assert size(bert.embeddings) == 23_837_184
    assert {size(layer) for layer in bert.encoder.layer} == {7_087_872}
    assert size(bert.pooler) == 590_592
    assert sum(p.numel() for name, p in bert.named_parameters() if "LayerNorm" in name) == 38_400
    assert size(base(head="two_class").head) == 1_538


SHARED_LAYERS = [
    0, 30_925_056, 38_012_928, 45_100_800, 52_188_672, 59_276_544, 66_364_416,
    73_452_288, 80_540_160, 87_628_032, 94_715_904, 101_803_776, 109_482_240,
]  # fmt: skip


@pytest.mark.parametrize("n", range(13))
def test_shared_numbers_of_the_backbone_by_shared_layers(n: int) -> None:
    """n = 0 shares nothing; below 12 the pooler is private."""
    from fedtorch.core.weights import Partition

    model = base(Patch())
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    private = ["patch.*"] if n else ["*"]
    private += ["bert.pooler.*"] if n < 12 else []
    private += [f"bert.encoder.layer.{i}.*" for i in range(n, 12)]
    shared, own, _ = Partition(private=tuple(private)).split(sizes)
    assert sum(sizes[name] for name in shared if name.startswith("bert.")) == SHARED_LAYERS[n]
    assert len(shared) + len(own) == len(sizes)
