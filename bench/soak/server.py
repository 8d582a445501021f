"""The server of a soak: a process that takes orders, can be killed, and comes back at the same port."""

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Self

from bench.processes import fork_with_pipe
from bench.s3server.faults import FaultRule
from bench.s3server.recording import Statistics
from bench.s3server.server import LoopbackServer, bind_loopback
from bench.s3server.server_config import ServerConfig
from bench.soak.data import Kind, Objects

BUCKET = "soak"


class SoakServer:
    """The server between ``with`` and its end. One order is under way at a time, from one thread."""

    def __init__(self, kinds: list[Kind], *, has_checksums: bool = False) -> None:
        self._kinds = kinds
        self._has_checksums = has_checksums
        self.generation = 0
        with bind_loopback() as listener:
            self._port: int = listener.getsockname()[1]
        self.endpoint_url = f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Serve, at the port of the server that was killed."""
        objects = Objects(self._kinds, self.generation, has_checksums=self._has_checksums)
        self._process, self._orders = fork_with_pipe(_serve, objects, self._port)
        self._orders.recv()

    def kill(self) -> None:
        """End the server without a farewell: its port refuses connections."""
        self._process.kill()
        self._process.join()
        self._orders.close()

    @contextmanager
    def fault(self, *rules: FaultRule) -> Iterator[None]:
        """Have the server misbehave until the end of the block."""
        for rule in rules:
            self._order("add", rule)
        try:
            yield
        finally:
            self._order("clear")

    def change_objects(self) -> None:
        """Go to the next generation of the objects."""
        self.generation += 1
        self._order("generation", self.generation)

    def hits(self) -> int:
        """Return how many requests the first rule in force has acted on."""
        hits: int = self._order("hits")
        return hits

    def statistics(self) -> Statistics:
        statistics: Statistics = self._order("statistics")
        return statistics

    def _order(self, *words: object) -> Any:  # noqa: ANN401 - of each order another type
        self._orders.send(words)
        return self._orders.recv()


def _serve(objects: Objects, port: int, orders: Connection) -> None:
    objects.view()
    first_rule = 0
    with LoopbackServer({BUCKET: objects}, ServerConfig(port=port, log_limit=0)) as server:
        orders.send(None)
        while True:
            answer: object = None
            try:
                match orders.recv():
                    case ("add", FaultRule() as rule):
                        number = server.faults.add(rule)
                        first_rule = first_rule or number
                    case ("clear",):
                        server.faults.clear()
                        first_rule = 0
                    case ("generation", int(number)):
                        objects.generation = number
                        objects.view()
                    case ("hits",):
                        answer = server.faults.hits(first_rule)
                    case ("statistics",):
                        answer = server.statistics()
                orders.send(answer)
            except (EOFError, BrokenPipeError):
                return
