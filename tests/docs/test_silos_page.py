"""docs/silos.md: its units of systemd, its codes and its settings are those of the package."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedtorch.config.load import load
from fedtorch.config.system import port_range
from fedtorch.core import errors
from fedtorch.core.errors import FedtorchError, Interrupted
from launchers import join, serve, silo
from launchers.job import FINAL

PAGE = (Path(__file__).parents[2] / "docs" / "silos.md").read_text()
UNITS = dict(re.findall(r"^```\n# \w+: (/etc/systemd/system/\S+\.service)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
SETTINGS = re.findall(r"^```\n# both: /srv/fl/silos.yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0]


class Unit(configparser.RawConfigParser):
    """A unit of systemd; its keys have capitals."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr


@pytest.fixture(params=UNITS, ids=lambda path: Path(path).name)
def unit(request: pytest.FixtureRequest) -> Unit:
    parser = Unit(interpolation=None)
    parser.read_string(UNITS[request.param])
    return parser


def test_there_is_a_unit_for_each_side() -> None:
    assert [Path(path).name for path in UNITS] == ["fedtorch-serve.service", "fedtorch-join.service"]


def test_a_unit_is_not_restarted_on_codes_that_a_restart_only_repeats(unit: Unit) -> None:
    """But after a stop of any side, which ends all with 75, it is."""
    service = unit["Service"]
    prevented = {int(code) for code in service["RestartPreventExitStatus"].split()}
    assert prevented == set(FINAL) - {Interrupted.exit_code}
    assert service["Restart"] == "on-failure" and "SuccessExitStatus" not in service


def test_a_unit_waits_for_the_disk_of_its_run_and_is_nobodys_root(unit: Unit, tmp_path: Path) -> None:
    path = tmp_path / "silos.yaml"
    path.write_text(SETTINGS)
    config = load(path)
    mounts, service = unit["Unit"]["RequiresMountsFor"], unit["Service"]
    assert config.folder.is_relative_to(mounts) and Path(service["WorkingDirectory"]).is_relative_to(mounts)
    assert service["User"] not in ("", "root")
    grace = config.system.shutdown_grace
    assert grace is not None and float(service["TimeoutStopSec"]) > grace
    assert service["KillMode"] == "mixed", "a rank that gets the signal twice leaves without saving"


@pytest.mark.processes
def test_a_units_command_is_one_that_the_launcher_takes(unit: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    program, name, *words = unit["Service"]["ExecStart"].split()
    parsed = []
    monkeypatch.setattr(silo, "run", lambda prog, args, *_: parsed.append(args) or 0)
    assert {"serve": serve, "join": join}[name].main(words) == 0 and Path(program).name == "fedtorch"
    credential, _, source = unit["Service"]["LoadCredential"].partition(":")
    assert str(parsed[0].secret_file) == f"%d/{credential}" and source == "/srv/fl/secret"


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_finds_nothing_wrong_with_a_unit(tmp_path: Path) -> None:
    for path, text in UNITS.items():
        unit = tmp_path / Path(path).name
        unit.write_text(text.replace("/usr/local/bin/fedtorch", sys.executable).replace("wg-quick@wg0.service", ""))
        done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
        about_it = [line for line in done.stderr.splitlines() if unit.name in line]
        assert not about_it, about_it


def test_every_code_of_the_package_is_in_the_table_of_alarms() -> None:
    section = PAGE.partition("## Codes to alarm on")[2].partition("\n## ")[0]
    said = [code for cell in re.findall(r"^\| ([\d, ]+) \|", section, re.MULTILINE) for code in cell.split(", ")]
    known = {
        each.exit_code for each in vars(errors).values() if isinstance(each, type) and issubclass(each, FedtorchError)
    }
    assert sorted(map(int, said)) == sorted((known - {FedtorchError.exit_code}) | {0})


def test_the_table_of_ports_has_those_of_the_settings_and_commands(tmp_path: Path) -> None:
    path = tmp_path / "silos.yaml"
    path.write_text(SETTINGS)
    first, last = port_range(load(path).system.ports) or (0, 0)
    assert PAGE.count(f"TCP {first}-{last}") == 2
    (listens,) = set(re.findall(r"--(?:listen|server) [\d.]+:(\d+)", PAGE))
    assert f"TCP {listens}" in PAGE
    (tunnel,) = re.findall(r"ListenPort = (\d+)", PAGE)
    assert f"UDP {tunnel}" in PAGE
