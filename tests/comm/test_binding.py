"""What libraries are told of the interface by which a rank is reached."""

from __future__ import annotations

import os

import pytest

from fedtorch.comm.job.addresses import VARIABLES, Binding
from fedtorch.comm.job.interfaces import Interface


def test_nccl_and_gloo_of_libraries_use_the_same_interface_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that it is as it was afterwards
        monkeypatch.delenv(name)
    binding = Binding(Interface("eth1", "10.0.0.1"), False, ("a", "b"))
    binding.tell_libraries()
    with monkeypatch.context() as environ:
        environ.setenv("NCCL_SOCKET_IFNAME", "ib0")
        binding.tell_libraries()
        assert told() == ("eth1", "ib0")
    assert told() == ("eth1", "=eth1")  # NCCL would take eth10 for eth1 otherwise


def told() -> tuple[str | None, str | None]:
    return os.environ.get("GLOO_SOCKET_IFNAME"), os.environ.get("NCCL_SOCKET_IFNAME")
