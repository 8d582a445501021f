"""Sizes, read and written."""

import pytest

from fastfuse.errors import ConfigurationError
from fastfuse.sizes import format_size, parse_size, three_digits


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("4096", 4096),
        ("0", 0),
        ("1B", 1),
        ("1k", 1024),
        ("8M", 8 * 2**20),
        ("8MiB", 8 * 2**20),
        ("8mib", 8 * 2**20),
        ("8MB", 8_000_000),
        ("1.5GiB", 3 * 2**29),
        (" 2 TiB ", 2**41),
        ("0.0001k", 0),
    ],
)
def test_a_size_is_read_in_its_unit(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "MiB", "-1", "+1", "1e9", "8 MiB MiB", "8XB", "1,5G", "0x10", "٣", "inf", "8iB"])
def test_anything_else_is_refused_with_the_text_quoted(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_size(text)
    assert str(caught.value) == f"{text!r} is not a size"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (2**20 - 1, "1024 KiB"),
        (2**20, "1 MiB"),
        (10 * 2**20, "10 MiB"),
        (5 * 2**29, "2.5 GiB"),
        (2**41, "2048 GiB"),
    ],
)
def test_a_size_is_written_in_the_largest_unit_that_it_fills(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (0.01234, "0.0123"), (99.94, "99.9"), (99.96, "100"), (999.6, "1,000"), (1234567, "1,234,567")],
)
def test_numbers_have_three_digits_or_all_before_the_point(number: float, text: str) -> None:
    assert three_digits(number) == text
