"""When it pays to send what is done while others still train."""

from __future__ import annotations

from fedtorch.comm.sums.sending_pace import SendingPace


def test_a_part_is_sent_where_the_last_client_would_not_wait_for_it() -> None:
    """Clients take 2 s each, a byte 0.1 s."""
    pace = SendingPace(num_clients=4, began_s=10.0)
    pace.see_sent(20, 2.0)
    pace.see_done(12.0)
    assert pace.pays(60, 12.0) and not pace.pays(61, 12.0)  # three are left, 6 s
    assert pace.pays(40, 14.0) and not pace.pays(60, 14.0)  # 2 s later the third one of them is to come 4 s later
    pace.see_done(14.0)
    pace.see_done(16.0)
    assert pace.pays(20, 16.0) and not pace.pays(20, 16.5)


def test_all_is_sent_when_all_are_done_or_nothing_is_known() -> None:
    pace = SendingPace(num_clients=2, began_s=0.0)
    assert pace.pays(1 << 40, 5.0)
    pace.see_done(1.0)
    assert pace.pays(1 << 40, 1.5) and not pace.pays(1, 2.5)  # the second one is late: what is held goes with it
    pace.see_sent(0, 1.0)
    assert pace.s_per_byte == 0.0
    pace.see_sent(1, 9.0)
    assert not pace.pays(1, 1.5)
    pace.see_done(3.0)
    assert pace.pays(1 << 40, 99.0)
