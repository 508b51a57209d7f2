"""Parts `tests`, `smoke` and `ranks` of the benchmark of GPUs: the tests' verdict, and digests of whole runs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.gpu_part import ROOT, Ended, Setting, ended_as, last_lines

DEFAULT = "default"
SMALL = ("fedavg", "esim")
OF_RANKS = ("fedavg", "feda", "fedopt_lorar")
RUN_LIMIT_S = 110.0
SAID = re.compile(r"share|backend|gloo|nccl|GPU", re.IGNORECASE)


def tests(setting: Setting) -> None:
    """pytest of `tests/gpu`: counts, and each failure's last lines."""
    report = setting.folder / "junit.xml"
    words = ["-m", "pytest", "tests/gpu", "-q", "-p", "no:cacheprovider", "--tb=short", f"--junitxml={report}"]
    words += ["-n", str(min(4, setting.jobs))] if setting.jobs > 1 else []
    words += ["-k", "copies"] if setting.small else []
    environ = {"FEDTORCH_TEST_DEVICE": setting.device, "DS_ACCELERATOR": setting.device}
    ended = setting.python(words, "pytest.log", setting.limit_s - 5, cwd=ROOT, environ=environ)
    if not report.exists():
        setting.note("tests/gpu", ended_as(ended), seconds=ended.seconds, said=last_lines(ended.text, 12))
        return
    cases = [*ElementTree.parse(report).getroot().iter("testcase")]
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    counts = {"passed": len(cases) - len(bad) - len(skipped), "failed": len(bad), "skipped": len(skipped)}
    setting.note("tests/gpu", ended_as(ended), seconds=ended.seconds, **counts)
    for case in bad:
        found = next(each for kind in ("failure", "error") if (each := case.find(kind)) is not None)
        said = last_lines(f"{found.text}\n{found.get('message', '')}", 5)
        setting.note(f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}", "failed", said=said)


def smoke(setting: Setting) -> None:
    """Every smoke config and the default job on one rank: twice on the device, once on the CPU."""
    names = [*SMALL] if setting.small else [DEFAULT, *_shipped()]
    with ThreadPoolExecutor(setting.jobs) as pool:
        ways = (("first", setting.device), ("second", setting.device), ("cpu", "cpu"))
        begun = {name: [pool.submit(_one, setting, name, *way) for way in ways] for name in names}
        # the default job takes longest, so it begins first and is noted last: nothing else waits for it
        for name in [*names[1:], names[0]]:
            _note_smoke(setting, name, begun[name])


def ranks(setting: Setting) -> None:
    """A server and two workers on the one GPU, by torchrun: what moves payloads, and the digest of one rank."""
    names = OF_RANKS[:1] if setting.small else OF_RANKS
    with ThreadPoolExecutor(setting.jobs) as pool:
        begun = {name: [pool.submit(_one, setting, name, way, setting.device, ranks=number)
                        for way, number in (("one", 1), ("three", 3))] for name in names}  # fmt: skip
        if not setting.small:
            pair = ("system.ranks_per_worker=2",)
            begun["feda, a pair of ranks"] = [
                begun["feda"][0],
                pool.submit(_one, setting, "feda", "pair", setting.device, pair, ranks=3),
            ]
        for name, (single, many) in begun.items():
            (_, one), (ended, results) = single.result(), many.result()
            logs = sorted((setting.folder / f"{name.partition(',')[0]}-{_folder(name)}").rglob("log.rank*.txt"))
            lines = [line for log in logs for line in log.read_text().splitlines() if SAID.search(line)]
            figures: dict[str, Any] = {"said": last_lines("\n".join(lines), 4)}
            if results and one:
                figures["digest_of_one_rank"] = results["digest"] == one["digest"]
            elif not results:
                figures["ended"] = last_lines(ended.text)
            setting.note(f"{name}, server + 2", ended_as(ended), seconds=ended.seconds, **figures)


def _folder(name: str) -> str:
    return "pair" if "pair" in name else "three"


def _shipped() -> list[str]:
    return [path.stem for path in sorted((ROOT / "configs" / "smoke").glob("[!_]*.yaml"))]


def _one(
    setting: Setting, name: str, way: str, device: str, more: Sequence[str] = (), *, ranks: int = 1
) -> tuple[Ended, dict[str, Any]]:
    """Run a config in a folder of its own, in which it makes its data; results.json, or nothing."""
    folder = setting.folder / f"{name}-{way}"
    folder.mkdir(parents=True, exist_ok=True)
    words = ["-m", "fedtorch.main"]
    if ranks > 1:
        words = ["-m", "torch.distributed.run", f"--nproc_per_node={ranks}", "--standalone", *words]
    words += [] if name == DEFAULT else ["--config", f"smoke/{name}"]
    settings = [f"system.device={device}", "rounds=2", "track.tensorboard=false", "run.export=none", *more]
    limit_s = min(RUN_LIMIT_S, setting.limit_s - 5)
    words += ["--resume", "never", "--set", *settings]
    ended = setting.python(words, f"{name}-{way}.log", limit_s, cwd=folder)
    return ended, _results(folder) if ended.code == 0 else {}


def _results(folder: Path) -> dict[str, Any]:
    # of the default job: its own run, not the one that it is compared with
    found = sorted((folder / "runs").rglob("results.json"), key=lambda path: (len(path.parts), str(path)))
    return json.loads(found[0].read_text()) if found else {}


def _note_smoke(setting: Setting, name: str, futures: Sequence[Future[tuple[Ended, dict[str, Any]]]]) -> None:
    (first, results), (_, again), (_, on_cpu) = (future.result() for future in futures)
    outcome, figures = ended_as(first), dict[str, Any]()
    if results:
        figures["digest"] = results["digest"][:12]
        figures["same_again"] = results["digest"] == again["digest"] if again else "the second one did not end"
    else:
        figures["said"] = last_lines(first.text)
    if results and on_cpu:
        figures["digest_of_cpu"] = results["digest"] == on_cpu["digest"]
        figures["most_apart_from_cpu"] = _apart(results["averages"], on_cpu["averages"])
    setting.note(name, outcome, seconds=first.seconds, **figures)


def _apart(found: dict[str, Any], expected: dict[str, Any]) -> str:
    """The final score that differs most, relatively: its name, by how much, and what it is on the CPU."""
    shared = [name for name in found if name in expected]
    if not shared:
        return "no score"
    pairs = {name: (found[name]["micro"], expected[name]["micro"]) for name in shared}
    gaps = {name: abs(one - other) / max(abs(other), 1e-9) for name, (one, other) in pairs.items()}
    worst = max(gaps, key=lambda name: gaps[name])
    return f"{worst} by {gaps[worst]:.2g} of {pairs[worst][1]:.6g}"
