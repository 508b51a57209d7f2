"""`fedtorch init FILE`: look at a data file and write a config that runs as it is."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from fedtorch.core.errors import ConfigError, FedtorchError, print_error
from fedtorch.data.own.first_config import chat_template, config_text
from fedtorch.data.own.guess import SPLITS, Guess, guess
from fedtorch.data.own.source import Table, files_of, open_tables

_GENERATORS = ("t5", "mt5", "bart", "mbart", "pegasus", "umt5", "longt5", "led", "marian")


def main(arguments: Sequence[str] | None = None, *, prog: str = "fedtorch.data.own.init") -> int:
    """Write the config; returns the exit code (0 done, 2 an option is wrong, 3 the file is)."""
    args = _parser(prog).parse_args(arguments)
    try:
        out = args.out or Path(f"{_stem(args.file)}.yaml")
        print(write(args.file, out, args.model))
        return 0
    except FedtorchError as error:
        return print_error(error)


def write(source: str, out: Path, model: str | None = None) -> str:
    """Write the config `out` for a source of any kind; what was guessed and why, for people.

    Raises:
        ConfigError: `out` is there already, the source is not, or the model cannot be found.
        DataError: the source cannot be read, or has nothing that a task reads.
    """
    if out.exists() or out.is_symlink():
        raise ConfigError(f"{out} is there already and is not overwritten; give another name by --out")
    jinja = out.with_suffix(".jinja")
    check_there(source)
    kind = ModelKind.of(model) if model else ModelKind()
    train, splits = _split_files(source)
    with _scratch(out.parent) as scratch, open_tables(train, scratch) as tables:
        found = guess(tables, can_generate=kind.can_generate)
        text = config_text(found, train, model=model, positions=kind.positions, splits=splits, template=jinja)
        text = f"# From {source}: {found.rows} rows.\n{text}"
        told = _told(source, found, tables)
    template = chat_template(found, model)
    try:
        for place, content in ((out, text), *(((jinja, template),) if template else ())):
            with place.open("x", encoding="utf-8") as file:
                file.write(content)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written ({error.strerror}); give another name by --out") from error
    name = shlex.quote(str(out))
    return "\n".join(
        [*told, f"{out} is written. Next:", f"  fedtorch data check {name}", f"  fedtorch run --config {name}"]
    )


@dataclass(frozen=True)
class ModelKind:
    """Facts of a model's configuration that the config depends on."""

    can_generate: bool | None = None
    """is it an encoder with a decoder? None: not known"""
    positions: int | None = None
    """tokens that it has positions for; None: not known"""

    @classmethod
    def of(cls, name: str) -> ModelKind:
        """From a folder, or a model in the local hub cache; nothing is known of one that is still to be downloaded.

        Raises:
            ConfigError: there is no such model.
        """
        if name.startswith("hub:"):
            return cls()
        from fedtorch.text.model_files import check_folder
        from fedtorch.text.pretrained import located  # imports transformers

        folder = Path(located(name, key="--model"))
        check_folder(folder)
        file = folder / "config.json"
        try:
            config = json.loads(file.read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"--model: {file} cannot be read ({type(error).__name__}); give a model's folder"
            ) from None
        positions = config.get("max_position_embeddings") or config.get("n_positions")
        can = config.get("is_encoder_decoder", config.get("model_type") in _GENERATORS)
        return cls(bool(can), positions if isinstance(positions, int) else None)


def _split_files(source: str) -> tuple[str | list[str], dict[str, str]]:
    """Files of a folder that are called train, dev and test: (the training files, split -> its file)."""
    folder = Path(source).expanduser()
    if not folder.is_dir() or any((folder / name).is_file() for name in ("dataset_dict.json", "dataset_info.json")):
        return source, {}
    files = files_of(source)
    if any(file.parent != folder or file.stem not in SPLITS for file in files):
        return source, {}
    names = {"validation": "dev", "valid": "dev", "val": "dev"}
    splits = {names.get(file.stem, file.stem): str(file) for file in files}
    return (splits.pop("train"), splits) if "train" in splits else (source, {})


def check_there(source: str) -> None:
    """Raises ConfigError where a source that was named on the command line is not there."""
    try:
        files_of(source)
    except ConfigError:
        raise ConfigError(
            f"{source!r} is no file, no folder with files, and no glob that names one; give what has the rows"
        ) from None


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A folder for what `datasets` copies, on the disk that the config is on and for nobody else to read."""
    try:
        with TemporaryDirectory(prefix=".init-", dir=folder) as scratch:
            yield Path(scratch)
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise ConfigError(f"{folder} cannot be written into ({error.strerror}); give another place by --out") from error


def _told(source: str, found: Guess, tables: Sequence[Table]) -> list[str]:
    files = f" in {len(tables)} files" if len(tables) > 1 else ""
    width = max(len(what) for what, _ in found.why)
    return [f"{source}: {found.rows} rows{files}", *(f"  {what:{width}}  {why}" for what, why in found.why)]


def _stem(source: str) -> str:
    """A name for the config: that of the file or folder, of a glob its folder's."""
    path = Path(source)
    while "*" in path.name or "?" in path.name:
        path = path.parent
    return re.sub(r"[^\w-]+", "_", path.name.partition(".")[0] if path.suffix else path.name).strip("_") or "own"


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog, description="Look at a data file and write a config that runs as it is; nothing is overwritten."
    )
    parser.add_argument(
        "file", metavar="FILE", help="JSONL, JSON, CSV, TSV, Parquet, Arrow or text; a glob; a folder; a saved data set"
    )
    parser.add_argument("--model", metavar="NAME", help="folder or name of a pretrained model (a small random one)")
    parser.add_argument("--out", type=Path, metavar="YAML", help="the config to write (FILE's name with .yaml)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
