"""The code blocks of the pages that tell a reader what to type."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
# The languages of blocks that hold commands: a script, and a session with a prompt and what it prints.
COMMANDS = ("sh", "console")

# ~/.aws/config of a reader, for whom a server of the tests is AWS.
AWS_CONFIG = """\
[default]
region = eu-west-1
endpoint_url = {endpoint_url}
s3 =
    addressing_style = path
aws_access_key_id = AKIATESTTESTTESTTEST
aws_secret_access_key = secret-secret-secret-secret-secret-secret
"""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block; `heading` is the nearest one above it."""

    page: str
    heading: str
    language: str
    text: str


def blocks_of(page: str) -> list[Block]:
    text = (ROOT / page).read_text()
    # A comment in a shell block is no heading.
    prose = _FENCE.sub(lambda match: " " * len(match[0]), text)
    headings = [(match.start(), match[1]) for match in _HEADING.finditer(prose)]
    return [
        Block(page, [name for start, name in headings if start < match.start()][-1], match[1], match[2])
        for match in _FENCE.finditer(text)
    ]


def split_console(text: str) -> tuple[str, str]:
    """Return the commands of a session and what the session shows that they print."""
    lines = text.splitlines(keepends=True)
    commands = "".join(line.removeprefix("$ ") for line in lines if line.startswith("$ "))
    return commands, "".join(line for line in lines if not line.startswith("$ "))
