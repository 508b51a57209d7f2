"""docs/silos.md, block by block: two machines that have nothing in common but public addresses."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hosts import Network
from own_rows import weather, write_rows

from fedtorch.main import main
from fedtorch.text.byte_bpe import train_subwords
from tests.setup.test_pinned import digest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "silos.md").read_text()
PUBLIC = {"north": "203.0.113.10", "south": "203.0.113.20"}
ROWS = weather(60, clients=("north", "south"))


def why_no_tunnel() -> str:
    """Why there can be no WireGuard here; empty if there can."""
    if missing := [tool for tool in ("wg", "wg-quick", "ss") if shutil.which(tool) is None]:
        return f"needs {', '.join(missing)} (wireguard-tools, iproute2)"
    words = ["unshare", "--net", "ip", "link", "add", "wg0", "type", "wireguard"]
    if not subprocess.run(words, capture_output=True).returncode:
        return ""
    if shutil.which("wireguard-go") is None or not Path("/dev/net/tun").exists():
        return "needs WireGuard in the kernel, or wireguard-go and /dev/net/tun"
    return ""


def blocks() -> Iterator[tuple[list[str], str, str]]:
    """(hosts, what the first line says of the block, the rest of it)."""
    for text in re.findall(r"^```\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL):
        first, _, rest = text.partition("\n")
        who, _, about = first.removeprefix("# ").partition(":")
        yield (["north", "south"] if who == "both" else [who]), about.strip(), rest


def machine(hosts: Network, name: str) -> None:
    """As it comes out of the box, with a public address, a disk at /srv/fl and the vocabulary of the model."""
    hosts.command(
        name,
        f"ip addr add {PUBLIC[name]}/24 dev eth0; "
        "for at in /etc/wireguard /etc/systemd/system /run /srv; do mount -t tmpfs none $at; done; "
        f"mkdir /run/wireguard /srv/fl; mount --bind {hosts.disk} /srv/fl",
    )
    train_subwords([row["text"] for row in ROWS], hosts.hosts[name].disk / "words", size=270)


def shell(hosts: Network, name: str, words: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environ = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    return hosts.popen(name, ["bash", "-ec", words], env=environ, stdout=subprocess.PIPE)


def run_page(hosts: Network) -> list[subprocess.Popen[str]]:
    """Do what the page says, but for the packages; the commands that it ends with are under way."""
    keys, started = dict[str, str](), list[subprocess.Popen[str]]()
    for names, about, text in blocks():
        for name in names:
            disk = hosts.hosts[name].disk
            if "wg pubkey" in text:
                keys[f"PUBLIC_KEY_OF_{name.upper()}"] = hosts.command(name, text)
            elif about.startswith("/"):
                for key, value in keys.items():
                    text = text.replace(key, value)
                hosts.command(name, f"cat > {about} <<'END'\n{text}END")
            elif "fedtorch serve" in text or "fedtorch join" in text:
                started.append(shell(hosts, name, text))
            elif about != "once":
                hosts.command(name, text)
                if "secret" in text:
                    shutil.copy(disk / "secret", hosts.hosts["south"].disk)
        if about.endswith("rows.jsonl"):
            for name, host in hosts.hosts.items():
                write_rows(host.disk / "rows.jsonl", [row for row in ROWS if row["home"] == name])
    return started


def ports(hosts: Network, name: str) -> set[int]:
    """At which a host listens."""
    return {int(line.split()[3].rpartition(":")[2]) for line in hosts.command(name, "ss -tnHl").splitlines()}


def addresses(hosts: Network, name: str, options: str) -> set[str]:
    """The local addresses of TCP sockets on a host."""
    lines = hosts.command(name, f"ss -tnH{options}").splitlines()
    return {line.split()[3].rpartition(":")[0].removeprefix("[::ffff:").removesuffix("]") for line in lines}


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(why_no_tunnel()), reason=why_no_tunnel())
def test_the_page_from_empty_machines_to_a_run(network: Callable[..., Network], tmp_path: Path) -> None:
    hosts = network(names=tuple(PUBLIC))
    for name in PUBLIC:
        machine(hosts, name)
    started = run_page(hosts)
    listening, connected, taken, before = set[str](), set[str](), set[int](), set[tuple[str, int]]()
    while any(side.poll() is None for side in started):
        for name in PUBLIC:
            listening |= addresses(hosts, name, "l")
            connected |= addresses(hosts, name, "")
        now = {(name, port) for name in PUBLIC for port in ports(hosts, name)}
        taken |= {port for _, port in now & before}  # gloo's that do not fit are closed in a moment
        before = now
        time.sleep(0.3)
    said = [side.communicate()[0] for side in started]
    assert [side.returncode for side in started] == [0, 0, 0]
    assert listening == {"192.168.7.1", "192.168.7.2"}, "somebody listens outside of the tunnel"
    assert connected == {"192.168.7.1", "192.168.7.2"}
    assert len(taken) > 1 and not {port for port in taken if not 40000 <= port <= 40999} - {29500}
    assert "waits for north (rank 1), south (rank 2)" in said[0] and "the server will see: how many" in said[2]
    for name in PUBLIC:
        done = shell(hosts, name, "fedtorch data check /srv/fl/silos.yaml")
        assert done.communicate()[0] and not done.returncode
    there = {name: {path.name for path in (host.disk / "run").iterdir()} for name, host in hosts.hosts.items()}
    assert "results.json" in there["north"] and not there["south"] & {"results.json", "metrics.jsonl"}
    write_rows(tmp_path / "rows.jsonl", ROWS)
    shutil.copytree(hosts.hosts["north"].disk / "words", tmp_path / "words")
    config = tmp_path / "silos.yaml"
    config.write_text((hosts.hosts["north"].disk / "silos.yaml").read_text().replace("/srv/fl", str(tmp_path)))
    assert main(["--config", str(config)]) == 0
    assert digest(hosts.hosts["north"].disk / "run") == digest(tmp_path / "run")


def test_the_page_says_for_every_block_who_does_it() -> None:
    found = list(blocks())
    assert len(found) > 8 and all(set(names) <= set(PUBLIC) for names, _, _ in found)
    commands = [text for _, about, text in found if not about.startswith("/")]
    assert sum("fedtorch serve" in text or "fedtorch join" in text for text in commands) == 3
