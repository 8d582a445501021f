import pytest

from bench.s3server.recording import RequestLog, RequestRecord


def _record(key: str, sent_bytes: int = 0) -> RequestRecord:
    return RequestRecord(
        connection=1,
        method="GET",
        operation="GetObject",
        bucket="b",
        key=key,
        query={},
        range=None,
        if_match="",
        status=200,
        sent_bytes=sent_bytes,
    )


def test_the_log_keeps_the_last_records_and_counts_all() -> None:
    log = RequestLog(limit=2)
    for key in "abc":
        log.finish(log.begin(_record(key, sent_bytes=10)), missing_bytes=0)
    assert [record.key for record in log.records()] == ["b", "c"]
    assert log.statistics().requests == {"GetObject": 3}
    assert log.statistics().sent_bytes == 30
    log.clear()
    assert log.records() == ()
    assert log.statistics().requests == {"GetObject": 3}


def test_waiting_ends_at_once_where_the_condition_is_met_and_in_an_error_where_it_never_is() -> None:
    log = RequestLog(limit=5)
    assert log.wait_until(lambda now: now.in_flight == 0, timeout_s=0).in_flight == 0
    with pytest.raises(TimeoutError, match="in_flight=0"):
        log.wait_until(lambda now: now.in_flight == 1, timeout_s=0)
