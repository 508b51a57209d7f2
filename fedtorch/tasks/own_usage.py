"""Model card of a model that was trained on data of one's own: the lines that load it."""

from __future__ import annotations

from pathlib import Path

from fedtorch.core.model_folder import ADAPTED
from fedtorch.models.auto import NEW_HEADS, AnyModel, Head

_PIPELINES = {
    "SequenceClassification": "text-classification",
    "TokenClassification": "token-classification",
    "CausalLM": "text-generation",
}
_PIPELINE_CODE = """\
from transformers import pipeline

classify = pipeline("{0}", model="FOLDER")
print(classify("a text"))"""
_CODE = """\
from transformers import AutoModelFor{0}, AutoTokenizer

model = AutoModelFor{0}.from_pretrained("FOLDER")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")"""
_QUANTIZED = {
    "nf4": """\
# trained over a base in nf4; for the same base: from_pretrained(..., quantization_config=BitsAndBytesConfig(
#     load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32))
""",
    "int8": "# trained over a base in int8, a scale for each output; loaded whole it has slightly other scores\n",
}
_ADAPTER_CODE = """\
from transformers import AutoConfig, AutoModelFor{0}, AutoTokenizer

config = AutoConfig.from_pretrained("FOLDER/{1}")  # has the labels
# finds base and adapter, by peft; the base may have a head of other labels
model = AutoModelFor{0}.from_pretrained("FOLDER", config=config, ignore_mismatched_sizes=True)
tokenizer = AutoTokenizer.from_pretrained("FOLDER")"""


def usage(head: Head, source: AnyModel) -> dict[str, str]:
    """Lines that load a saved model: the pipeline of classes, or model and tokenizer; of an adapter its base too."""
    start = "random weights" if source.random else f"`{Path(source.path or '').name}`"
    if source.adapter is not None:
        code = _CODE.format(head).replace('("FOLDER")', '("FOLDER")  # finds base and adapter, by peft', 1)
        code = _ADAPTER_CODE.format(head, ADAPTED) if head in NEW_HEADS else code
        if source.quantize is not None:
            start = f"{start}, quantised to {source.quantize.kind}"
            code = _QUANTIZED[source.quantize.kind] + code
        return {"pipeline": "", "code": code, "start": f"{start}, with an adapter"}
    name = _PIPELINES.get(head, "")
    code = _PIPELINE_CODE.format(name) if "classif" in name else _CODE.format(head)
    return {"pipeline": name, "code": code, "start": start}
