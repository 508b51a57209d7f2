"""No line of the package or of the launchers can run code that came as data."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from sources import FILES as PACKAGE_FILES
from sources import LAUNCHERS, offenders, text, tree

from fedtorch.models.networks import loading

FILES = [*PACKAGE_FILES, *LAUNCHERS]

MODULES = {"pickle", "_pickle", "cPickle", "dill", "joblib", "cloudpickle", "marshal", "shelve", "requests", "urllib3"}
BUILTINS = {"eval", "exec", "compile"}
# last part of a call's name -> what must stand before it; None: anything
CALLS: dict[str, set[str] | None] = {
    **dict.fromkeys(("gather_object", "all_gather_object", "broadcast_object_list", "scatter_object_list"), None),
    **dict.fromkeys(("send_object_list", "recv_object_list", "unsafe_load", "full_load"), None),
    "load": {"torch", "yaml", "pickle"},
    "save": {"torch"},
    "system": {"os"},
    "popen": {"os"},
}
KEYWORDS = {"weights_only": False, "trust_remote_code": True, "allow_pickle": True, "shell": True}


def findings(source: ast.Module) -> Iterator[str]:
    """What the source does that it must not, with the line."""
    for node in ast.walk(source):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module.split(".")[0]]
            names += [f"torch.{a.name}" for a in node.names if node.module == "torch" and a.name in ("load", "save")]
        yield from (f"{node.lineno}: import {n}" for n in names if n in MODULES or n.startswith("torch."))  # type: ignore[attr-defined]
        if isinstance(node, ast.Call):
            yield from (f"{node.lineno}: {text}" for text in _calls(node))


def _calls(node: ast.Call) -> Iterator[str]:
    if isinstance(node.func, ast.Name) and node.func.id in BUILTINS:
        yield node.func.id
    if isinstance(node.func, ast.Attribute) and node.func.attr in CALLS:
        owners = CALLS[node.func.attr]
        if owners is None or (isinstance(node.func.value, ast.Name) and node.func.value.id in owners):
            yield node.func.attr
    for keyword in node.keywords:
        value = keyword.value
        if keyword.arg in KEYWORDS and isinstance(value, ast.Constant) and value.value is KEYWORDS[keyword.arg]:
            yield f"{keyword.arg}={value.value}"


@pytest.mark.long
def test_no_file_can_run_what_came_as_data() -> None:
    assert offenders(FILES, lambda path: findings(tree(path))) == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle as p",
        "from dill import loads",
        "from torch import load",
        "torch.load(path)",
        "torch.load(path, weights_only=True)",
        "read(path, weights_only=False)",
        "yaml.load(text, Loader=yaml.Loader)",
        "dist.broadcast_object_list(things)",
        "group.gather_object(thing)",
        "eval(text)",
        "def f():\n    exec(text)",
        "numpy.load(path, allow_pickle=True)",
        "subprocess.run(words, shell=True)",
        "os.system(line)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
    ],
)
def test_the_scan_finds(source: str) -> None:
    assert list(findings(ast.parse(source)))


@pytest.mark.parametrize("source", ["model.eval()", "re.compile(text)", "json.load(file)", "adapter.load(weights)"])
def test_the_scan_leaves_alone(source: str) -> None:
    assert not list(findings(ast.parse(source)))


ONE_WAY = "model_files.py"
COPIED = "loading.py"  # lies beside exported weights too, where the package is not


WAYS = ("from_pretrained", "_from_pretrained", "get_config_dict")


def loads(source: ast.Module) -> Iterator[ast.AST]:
    """Whatever names `from_pretrained`, called or not, or another way by which transformers and peft load a folder."""
    for node in ast.walk(source):
        if (isinstance(node, ast.Attribute) and node.attr in WAYS) or (
            isinstance(node, ast.Constant) and node.value in WAYS
        ):
            yield node
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "transformers.pipeline":
            yield node
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("transformers"):
            yield from (alias for alias in node.names if alias.name == "pipeline")


@pytest.mark.long
def test_models_and_tokenizers_are_loaded_by_one_function() -> None:
    found = offenders(FILES, lambda path: loads(tree(path)))
    assert {name.rpartition("/")[2] for name in found} == {ONE_WAY, COPIED}


def test_that_function_and_the_copied_file_run_no_code_and_ask_no_network() -> None:
    one_way, copied = (next(text(path) for path in FILES if path.name == name) for name in (ONE_WAY, COPIED))
    for source, count in ((one_way, 1), (copied, 2)):
        calls = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call) and is_loading(n)]
        assert len(calls) == count
    (call,) = (n for n in ast.walk(ast.parse(one_way)) if isinstance(n, ast.Call) and is_loading(n))
    assert [ast.unparse(keyword.value) for keyword in call.keywords] == ["safe", "weights", "given"]
    assert '"local_files_only": True, "trust_remote_code": allows_code' in one_way
    assert all("**_SAFE" in line for line in copied.splitlines() if "from_pretrained" in line)
    assert {*SAFE.items()} <= {*loading._SAFE.items()}


SAFE = {"use_safetensors": True, "local_files_only": True, "trust_remote_code": False}


def is_loading(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "from_pretrained"


@pytest.mark.parametrize(
    "source",
    [
        "AutoModel.from_pretrained(name)",
        "load = AutoModel.from_pretrained",
        "getattr(AutoModel, 'from_pretrained')(name)",
        "PretrainedConfig.get_config_dict(name)",
        "transformers.pipeline('text-generation', name)",
        "from transformers import pipeline",
    ],
)
def test_another_way_to_load_is_found(source: str) -> None:
    assert list(loads(ast.parse(source)))
