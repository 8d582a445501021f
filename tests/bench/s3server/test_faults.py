from bench.s3server.faults import SLOW_DOWN, FaultRule, FaultSet


def _hits(faults: FaultSet, count: int, key: str = "k") -> list[bool]:
    return [bool(faults.take("GetObject", "b", key)) for _ in range(count)]


def test_a_probability_gives_the_same_share_in_every_run() -> None:
    rule = FaultRule(action=SLOW_DOWN, probability=0.25, seed=7)
    first, second = _hits(FaultSet([rule]), 1000), _hits(FaultSet([rule]), 1000)
    assert first == second
    assert 200 < sum(first) < 300
    assert first != _hits(FaultSet([FaultRule(action=SLOW_DOWN, probability=0.25, seed=8)]), 1000)


def test_a_rate_spares_so_many_a_second_and_saves_those_of_one_second() -> None:
    now_s = [0.0]
    faults = FaultSet([FaultRule(action=SLOW_DOWN, spared_per_s=4.0)], clock=lambda: now_s[0])
    assert _hits(faults, 6) == [False] * 4 + [True] * 2
    now_s[0] = 0.5
    assert _hits(faults, 3) == [False, False, True]
    now_s[0] = 100.0
    assert _hits(faults, 5) == [False] * 4 + [True]
