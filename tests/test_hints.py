"""Announcing an order from a training script: what is sent, when it ends, and that it never fails the script."""

import errno
import io
import itertools
import logging
import os
import pickle
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse import hints
from fastfuse.cli.mounted import paths_in
from fastfuse.errors import MountError
from fastfuse.filesystem.mounting.mountpoint import MountEntry
from fastfuse.filesystem.processes.sockets import MAX_PATH_BYTES, REFUSED, SERVED, TAKEN, hint_prefix, listen
from fastfuse.filesystem.talking import hint_sender
from fastfuse.filesystem.talking.hint_sender import HintSender
from fastfuse.hints import HintedSampler, hand_over, order
from tests.filesystem.waiting import PATIENCE_S, wait_until

DEVICE = f"test-client:{os.getpid()}"


@pytest.fixture(autouse=True)
def warnings(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What was logged; nothing was warned of before."""
    monkeypatch.setattr(hint_sender, "_warned", set())
    monkeypatch.setattr(hint_sender, "_RETRY_PAUSE_S", 0.001)
    return lambda: [record.message for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def mountpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A place where mountinfo has a mount of ours."""
    mount(monkeypatch, tmp_path)
    return tmp_path


def mount(
    monkeypatch: pytest.MonkeyPatch, place: Path, *, root: str = "/", owner_uid: int = os.geteuid(), seen: str = ""
) -> None:
    entry = MountEntry(Path(seen or place), DEVICE, "fuse.fastfuse", "s3://b/", owner_uid, Path(root))
    for module in (hints, hint_sender):
        monkeypatch.setattr(module, "find_mount", lambda _: entry)


class Listener:
    """Stands in for the worker."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        listener.settimeout(PATIENCE_S)

    def accept(self, greeting: bytes = SERVED) -> socket.socket:
        connection, _ = self._listener.accept()
        connection.settimeout(PATIENCE_S)
        if greeting:
            connection.send(greeting)
        return connection


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listen(hint_prefix(DEVICE), backlog=4) as made:
        yield Listener(made)


def received(connection: socket.socket, count: int) -> list[bytes]:
    data = b""
    while data.count(b"\0") < count:
        more = connection.recv(1)
        assert more, data
        data += more
    return data.split(b"\0")[:-1]


def is_at_its_end(connection: socket.socket) -> bool:
    return connection.recv(1) == b""


def is_silent(connection: socket.socket) -> bool:
    """Whether nothing is sent, and the order not over."""
    readable, _, _ = select.select([connection], [], [], 0)
    return not readable


class TestOrder:
    def test_paths_are_sent_in_their_order_and_nothing_more(self, mountpoint: Path, listener: Listener) -> None:
        paths: list[hint_sender.AnyPath] = ["b", Path("d/a"), b"c\xff", str(mountpoint / "e" / "f")]
        with order(paths, mountpoint), listener.accept() as connection:
            assert received(connection, 4) == [b"b", b"d/a", b"c\xff", b"e/f"]
            assert is_silent(connection)
            assert "fastfuse-hints" in {thread.name for thread in threading.enumerate()}
        assert "fastfuse-hints" not in {thread.name for thread in threading.enumerate()}

    @pytest.mark.parametrize("error", [None, KeyError])
    def test_a_block_that_ends_or_raises_withdraws_what_is_left(
        self, mountpoint: Path, listener: Listener, error: type[Exception] | None
    ) -> None:
        with pytest.raises(KeyError) if error else nullcontext(), order(itertools.repeat("a"), mountpoint):
            connection = listener.accept()
            received(connection, 10)
            if error:
                raise error
        with connection:
            while connection.recv(1 << 20):
                pass

    def test_the_next_worker_gets_what_was_sent_and_the_next_path(self, mountpoint: Path, listener: Listener) -> None:
        """L3"""
        went = threading.Event()

        def paths() -> Iterator[str]:
            yield "a"
            assert went.wait(PATIENCE_S)
            yield "b"

        with order(paths(), mountpoint):
            with listener.accept() as connection:
                assert received(connection, 1) == [b"a"]
            went.set()
            with listener.accept() as connection:
                assert received(connection, 2) == [b"a", b"b"]

    def test_no_more_paths_are_made_than_the_mount_takes(self, mountpoint: Path, listener: Listener) -> None:
        made = itertools.count()
        sender = HintSender((f"{number:0100}" for number in made), mountpoint)
        sender.start()
        with listener.accept() as connection:
            received(connection, 1)
            wait_until(lambda: not is_writable(sender))
            assert next(made) < 2000
            # Nor is there any limit to how long it may take.
            assert sender._connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16) == bytes(16)
            taken_bytes = 0
            while taken_bytes < 1 << 20:
                taken_bytes += len(connection.recv(1 << 16))
            sender.close()

    def test_paths_through_the_real_place_of_a_link_are_known_and_those_in_a_folder_that_is_bound_elsewhere(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, listener: Listener
    ) -> None:
        mount(monkeypatch, tmp_path, seen="/real/place")
        with order([str(tmp_path / "a"), "/real/place/b"], tmp_path), listener.accept() as connection:
            assert received(connection, 2) == [b"a", b"b"]
        mount(monkeypatch, tmp_path, root="/train/images")
        with order([str(tmp_path / "a"), "b"], tmp_path), listener.accept() as connection:
            assert received(connection, 2) == [b"train/images/a", b"train/images/b"]

    def test_a_folder_of_a_mount_stands_for_the_mount(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, listener: Listener
    ) -> None:
        entry = MountEntry(tmp_path, DEVICE, "fuse.fastfuse", "s3://b/", os.geteuid(), Path("/train"))
        monkeypatch.setattr(hint_sender, "mount_holding", lambda _: entry)
        (tmp_path / "images").mkdir()
        (tmp_path / "link").symlink_to("images")
        paths = [f"{tmp_path}/link/a", f"{tmp_path}/images/b", "c"]
        with order(paths, tmp_path / "link"), listener.accept() as connection:
            assert received(connection, 3) == [b"train/images/a", b"train/images/b", b"train/images/c"]

    def test_what_cannot_be_in_the_mount_is_passed_over(
        self, mountpoint: Path, listener: Listener, warnings: Callable[[], list[str]]
    ) -> None:
        paths = [f"{mountpoint}x/a", "/etc/passwd", "a\0b", "x" * (MAX_PATH_BYTES + 1), str(mountpoint), "b"]
        with order(paths, mountpoint), listener.accept() as connection:
            assert received(connection, 1) == [b"b"]
        assert warnings() == [f"paths that are not below {mountpoint} were announced; they are passed over"]

    def test_a_worker_that_dies_before_it_greets_is_waited_for(self, mountpoint: Path, listener: Listener) -> None:
        with order(itertools.repeat("a"), mountpoint):
            listener.accept().close()
            listener.accept(b"").close()
            with listener.accept() as connection:
                assert received(connection, 1) == [b"a"]

    def test_an_order_waits_for_room_among_those_who_wait(
        self, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dial, had_room = HintSender._dial, list[bool]()

        def dial_and_tell(*arguments: Any) -> bool:  # noqa: ANN401 - as they are
            had_room.append(dial(*arguments))
            return had_room[-1]

        monkeypatch.setattr(HintSender, "_dial", dial_and_tell)
        with listen(hint_prefix(DEVICE), backlog=0) as made, socket.socket(socket.AF_UNIX) as first:
            first.connect(made.getsockname())
            with order(["a"], mountpoint):
                wait_until(lambda: False in had_room)
                listener = Listener(made)
                with listener.accept(), listener.accept() as connection:
                    assert received(connection, 1) == [b"a"]

    def test_an_impostor_without_room_is_not_waited_for(self, mountpoint: Path, listener: Listener) -> None:
        with socket.socket(socket.AF_UNIX) as impostor, socket.socket(socket.AF_UNIX) as held:
            impostor.bind(f"\0{hint_prefix(DEVICE)}-0")  # which sorts first
            impostor.listen(0)
            held.connect(impostor.getsockname())
            with order(["a"], mountpoint), listener.accept() as connection:
                assert received(connection, 1) == [b"a"]


def is_writable(sender: HintSender) -> bool:
    _, writable, _ = select.select([], [sender._connection], [], 0)
    return bool(writable)


class TestNothingFailsTheScript:
    def test_no_mount_is_one_warning_for_all_epochs(self, tmp_path: Path, warnings: Callable[[], list[str]]) -> None:
        for _ in range(3):
            sender = HintSender(["a"], tmp_path)
            sender.start()
            wait_until(lambda sender=sender: not sender._thread.is_alive())  # type: ignore[misc]
            with order(["a"], tmp_path):
                pass
        assert warnings() == [
            f"files are not fetched ahead in the announced order: nothing of fastfuse is mounted at {tmp_path}"
        ]

    def test_a_script_that_has_no_descriptor_left_goes_on(
        self,
        mountpoint: Path,
        listener: Listener,
        monkeypatch: pytest.MonkeyPatch,
        warnings: Callable[[], list[str]],
    ) -> None:
        monkeypatch.setattr(socket, "socket", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
        self.ended(iter(["a"]), mountpoint)
        assert warnings() == ["an announced order ends early: OSError: [Errno 24] Too many open files"]

    def test_a_script_that_may_have_no_thread_goes_on(
        self, mountpoint: Path, monkeypatch: pytest.MonkeyPatch, warnings: Callable[[], list[str]]
    ) -> None:
        monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        with order(["a"], mountpoint):
            pass
        assert list(HintedSampler([0], ["a"], mountpoint)) == [0]
        assert warnings() == ["files are not fetched ahead in the announced order: can't start new thread"]

    def ended(self, paths: Iterator[object], mountpoint: Path) -> None:
        """Send until the thread gives up."""
        sender = HintSender(paths, mountpoint)  # type: ignore[arg-type]
        sender.start()
        assert sender._thread is not None
        sender._thread.join(PATIENCE_S)
        assert not sender._thread.is_alive()

    def test_nobody_listens_or_this_user_is_refused(self, mountpoint: Path, warnings: Callable[[], list[str]]) -> None:
        self.ended(iter(["a"]), mountpoint)
        with listen(hint_prefix(DEVICE), backlog=4) as made, greeting(Listener(made), REFUSED):
            self.ended(iter(["a"]), mountpoint)
        why = f"files are not fetched ahead in the announced order: the mount at {mountpoint} takes no hints"
        assert warnings() == [why, f"{why} from this user"]

    def test_an_impostor_is_told_nothing(
        self,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        listener: Listener,
        warnings: Callable[[], list[str]],
    ) -> None:
        mount(monkeypatch, tmp_path, owner_uid=54321)
        monkeypatch.setattr(hint_sender, "peer_uid", lambda _: 12345)
        self.ended(iter(["a"]), tmp_path)
        with listener.accept(b"") as connection:
            assert is_at_its_end(connection)
        assert len(warnings()) == 1

    def test_an_impostor_beside_the_mount_changes_nothing(
        self, monkeypatch: pytest.MonkeyPatch, mountpoint: Path, listener: Listener
    ) -> None:
        asked = []

        def peer_uid(_: object) -> int:
            asked.append(0)
            return 12345 if len(asked) == 1 else 0

        monkeypatch.setattr(hint_sender, "peer_uid", peer_uid)
        with listen(hint_prefix(DEVICE), backlog=4) as other, order(["a"], mountpoint):
            wait_until(lambda: len(asked) == 2)
            readable, _, _ = select.select([other, listener._listener], [], [], 0)
            assert len(readable) == 2
            for one in readable:
                connection, _ = one.accept()
                with connection:
                    connection.settimeout(PATIENCE_S)
                    if hints_are_sent(connection):
                        return
        raise AssertionError("nobody got the order")

    @pytest.mark.parametrize(
        ("paths", "why"),
        [
            (["a", 7], "TypeError: "),
            (["a", None], "TypeError: "),
            (map("abc".__getitem__, itertools.count()), "IndexError: string index out of range"),
        ],
    )
    def test_what_is_no_path_and_an_iterator_that_raises_end_the_order(
        self, mountpoint: Path, listener: Listener, warnings: Callable[[], list[str]], paths: Iterable[object], why: str
    ) -> None:
        with greeting(listener):
            self.ended(iter(paths), mountpoint)
        [told] = warnings()
        assert told.startswith(f"an announced order ends early: {why}")

    def test_a_sampler_may_be_collected_in_the_thread_that_sends(
        self, mountpoint: Path, listener: Listener, warnings: Callable[[], list[str]]
    ) -> None:
        def paths() -> Iterator[str]:
            yield "a"
            sender.close()
            yield "b"

        sender = HintSender(paths(), mountpoint)
        with greeting(listener):
            sender.start()
            assert sender._thread is not None
            sender._thread.join(PATIENCE_S)
        assert warnings() == []

    def test_a_mount_that_goes_away_is_not_waited_for(
        self, mountpoint: Path, warnings: Callable[[], list[str]]
    ) -> None:
        with listen(hint_prefix(DEVICE), backlog=4) as made:
            listener = Listener(made)
            sender = HintSender(itertools.repeat("a"), mountpoint)
            sender.start()
            connection = listener.accept()
        connection.close()
        assert sender._thread is not None
        sender._thread.join(PATIENCE_S)
        assert not sender._thread.is_alive()
        assert len(warnings()) == 1

    def test_a_place_that_is_no_directory_is_a_mistake_of_the_caller(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        for place in (tmp_path / "file", tmp_path / "absent"):
            with pytest.raises(NotADirectoryError, match="is no directory"), order([], place):
                pass
            with pytest.raises(NotADirectoryError, match="is no directory"):
                HintedSampler([], [], place)


def hints_are_sent(connection: socket.socket) -> bool:
    try:
        connection.send(SERVED)
        return connection.recv(2) == b"a\0"
    except ConnectionError:
        return False


@contextmanager
def greeting(listener: Listener, said: bytes = SERVED) -> Iterator[None]:
    """Greets one connection beside the block, and keeps it until its end."""
    is_over = threading.Event()

    def greet() -> None:
        with listener.accept(said):
            is_over.wait(PATIENCE_S)

    thread = threading.Thread(target=greet)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


class Shuffled:
    """A sampler as PyTorch's are, whose epochs differ."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.epoch = 0
        self.draws = 0

    def __iter__(self) -> Iterator[int]:
        self.draws += 1
        return iter([(self.epoch + 7 * number) % self.count for number in range(self.count)])

    def __len__(self) -> int:
        return self.count

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class TestHintedSampler:
    paths: tuple[str, ...] = tuple(f"{number:04}" for number in range(1000))

    def test_it_draws_what_the_sampler_draws_and_announces_it(self, mountpoint: Path, listener: Listener) -> None:
        sampler = HintedSampler(Shuffled(10), self.paths, mountpoint)
        drawn = list(sampler)
        assert drawn == list(Shuffled(10))
        assert len(sampler) == 10
        with listener.accept() as connection:
            assert received(connection, 10) == [self.paths[sample].encode() for sample in drawn]

    def test_the_lists_of_a_batch_sampler_are_announced_sample_by_sample(
        self, mountpoint: Path, listener: Listener
    ) -> None:
        sampler = HintedSampler([[3, 1], [2]], self.paths, mountpoint)
        assert list(sampler) == [[3, 1], [2]]
        with listener.accept() as connection:
            assert received(connection, 3) == [b"0003", b"0001", b"0002"]

    def test_an_endless_sampler_is_announced_a_bounded_number_of_samples_ahead(
        self, mountpoint: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(hints, "_LOOK_AHEAD_SAMPLES", 10)
        numbers = itertools.count()
        samples = iter(HintedSampler(map(int, numbers), self.paths, mountpoint))
        assert next(samples) == 0
        assert next(numbers) == 11
        with listener.accept() as connection:
            # Up to here the sender does not wait for more: 1, 2 and 4 paths at once, and then 8.
            assert received(connection, 7) == [path.encode() for path in self.paths[:7]]
            assert list(itertools.islice(samples, 19)) == [*range(1, 11), *range(12, 21)]
            assert received(connection, 8) == [path.encode() for path in (*self.paths[7:11], *self.paths[12:16])]
            assert next(numbers) == 31
            samples.close()  # type: ignore[attr-defined]
            while connection.recv(1 << 20):
                pass
        assert "fastfuse-hints" not in {thread.name for thread in threading.enumerate()}

    def test_as_many_samples_are_drawn_ahead_in_lists_as_alone(
        self, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(hints, "_LOOK_AHEAD_SAMPLES", 10)
        numbers = itertools.count()
        batches = HintedSampler(([number] * 4 for number in numbers), self.paths, mountpoint)
        assert list(itertools.islice(batches, 2)) == [[0] * 4, [1] * 4]
        assert next(numbers) == 5  # three for ten samples, and one for each that was taken

    @pytest.mark.parametrize("size", [1, 4])
    def test_an_endless_sampler_that_nobody_hears_takes_no_more_and_more_memory(
        self, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(hints, "_MAX_UNSENT_SAMPLES", 10)
        sent: SimpleQueue[tuple[int] | None] = SimpleQueue()
        monkeypatch.setattr(hints, "SimpleQueue", lambda: sent)
        monkeypatch.setattr(HintSender, "start", lambda _: None)
        samples = iter(HintedSampler(([number] * size for number in itertools.count()), self.paths, tmp_path))
        assert list(itertools.islice(samples, 1000)) == [[number] * size for number in range(1000)]
        assert [sent.get() for _ in range(sent.qsize())] == [(number // size,) for number in range(10)]

    def test_the_order_stands_until_the_next_epoch(self, mountpoint: Path, listener: Listener) -> None:
        sampler = HintedSampler(Shuffled(10), self.paths, mountpoint)
        list(sampler)
        with listener.accept() as connection:
            received(connection, 10)
            assert is_silent(connection)
            sampler.set_epoch(3)
            samples = iter(sampler)
            assert next(samples) == 3
            assert is_at_its_end(connection)
        with listener.accept() as connection:
            assert received(connection, 1) == [b"0003"]

    def test_a_sampler_that_nobody_has_any_more_withdraws_its_order(self, mountpoint: Path, listener: Listener) -> None:
        sampler = HintedSampler(Shuffled(10), self.paths, mountpoint)
        list(sampler)
        with listener.accept() as connection:
            received(connection, 10)
            del sampler
            assert is_at_its_end(connection)

    def test_a_forked_copy_ends_nothing(self, mountpoint: Path, listener: Listener) -> None:
        sampler = HintedSampler(Shuffled(10), self.paths, mountpoint)
        samples = iter(sampler)
        next(samples)
        with listener.accept() as connection:
            received(connection, 10)
            child = os.fork()
            if child == 0:
                samples.close()  # type: ignore[attr-defined]
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            assert is_silent(connection)

    def test_a_descriptor_of_a_forked_process_keeps_no_order_up(self, mountpoint: Path, listener: Listener) -> None:
        samples = iter(HintedSampler(Shuffled(10), self.paths, mountpoint))
        next(samples)
        with listener.accept() as connection:
            received(connection, 10)
            reading_fd, writing_fd = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(writing_fd)
                os.read(reading_fd, 1)
                os._exit(0)
            samples.close()  # type: ignore[attr-defined]
            assert is_at_its_end(connection)
            os.close(writing_fd)
            os.close(reading_fd)
            os.waitpid(child, 0)

    def test_it_has_what_the_sampler_has_and_nothing_else(self, tmp_path: Path) -> None:
        sampler = HintedSampler(Shuffled(10), self.paths, tmp_path)
        sampler.set_epoch(4)
        assert sampler.epoch == 4
        sampler.count = 5
        assert len(sampler) == 5
        assert not hasattr(sampler, "batch_size")
        assert not hasattr(HintedSampler([1], ["a"], tmp_path), "set_epoch")
        with pytest.raises(TypeError, match=r"has no len\(\)"):
            len(HintedSampler(itertools.count(), self.paths, tmp_path))
        assert list(pickle.loads(pickle.dumps(sampler))) == list(sampler)

    def test_its_state_is_not_that_of_the_sampler_which_is_ahead(self, tmp_path: Path) -> None:
        inner = Mock(state_dict=dict, load_state_dict=dict)
        sampler = HintedSampler(inner, self.paths, tmp_path)
        assert hasattr(inner, "state_dict")
        assert not hasattr(sampler, "state_dict")
        assert not hasattr(sampler, "load_state_dict")

    def test_the_samples_of_a_rank_are_seen_to_be_divided_already(self, mountpoint: Path, listener: Listener) -> None:
        data = pytest.importorskip("torch.utils.data", exc_type=ImportError)

        class OfRank(data.DistributedSampler):  # type: ignore[misc,name-defined]
            def set_epoch(self, epoch: int) -> None:
                super().set_epoch(epoch + 7)

        inner = OfRank(range(20), num_replicas=2, rank=1)
        sampler = HintedSampler(sampler=inner, paths=self.paths, mountpoint=mountpoint)
        sampler.set_epoch(1)
        loader = data.DataLoader(range(20), sampler=sampler)
        assert isinstance(loader.sampler, data.DistributedSampler)
        assert (len(sampler), sampler.rank, inner.epoch) == (10, 1, 8)
        drawn = list(sampler)
        assert drawn == list(inner)
        with listener.accept() as connection:
            assert received(connection, 10) == [self.paths[sample].encode() for sample in drawn]
        for protocol in (2, 5):  # 2 is torch.save's
            copied = pickle.loads(pickle.dumps(HintedSampler(Shuffled(3), self.paths, mountpoint), protocol))
            assert not isinstance(copied, data.DistributedSampler)

        class Own(HintedSampler[int]):
            def set_epoch(self, epoch: int) -> None:
                self._sampler.set_epoch(epoch + 1)  # type: ignore[attr-defined]

        Own(inner, self.paths, mountpoint).set_epoch(1)
        assert inner.epoch == 9
        inner.__class__ = data.DistributedSampler  # which pickle finds
        for protocol in (2, 5):
            copied = pickle.loads(pickle.dumps(sampler, protocol))
            assert isinstance(copied, data.DistributedSampler)
            copied.set_epoch(8)
            assert list(copied) == drawn


class TestHandOver:
    def test_it_returns_once_the_last_is_taken(self, mountpoint: Path, listener: Listener) -> None:
        thread = threading.Thread(target=hand_over, args=(iter("abc"), mountpoint))
        thread.start()
        with listener.accept() as connection:
            assert received(connection, 3) == [b"a", b"b", b"c"]
            assert is_at_its_end(connection)
            assert thread.is_alive()
            connection.send(TAKEN)
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    def test_the_order_of_a_worker_that_dies_at_its_end_is_sent_to_the_next(
        self, mountpoint: Path, listener: Listener
    ) -> None:
        thread = threading.Thread(target=hand_over, args=(["a", "b"], mountpoint))
        thread.start()
        for _ in range(2):
            with listener.accept() as connection:
                assert received(connection, 2) == [b"a", b"b"]
                assert is_at_its_end(connection)
        with listener.accept() as connection:
            assert received(connection, 2) == [b"a", b"b"]
            assert is_at_its_end(connection)
            connection.send(TAKEN)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()

    def test_a_turn_that_does_not_come_is_waited_for_while_the_mount_answers(
        self, mountpoint: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(hint_sender, "_TURN_S", 0.01)
        looks = itertools.count()

        def hang(_: Path) -> None:
            if next(looks) == 3:
                raise MountError("the mount does not answer")

        with pytest.raises(MountError, match="does not answer"):
            hand_over(["a"], mountpoint, meanwhile=hang)
        listener.accept(b"").close()
        looked: SimpleQueue[Path] = SimpleQueue()
        thread = threading.Thread(target=hand_over, args=(["a"], mountpoint), kwargs={"meanwhile": looked.put})
        thread.start()
        with listener.accept(b"") as connection:
            assert looked.get(timeout=PATIENCE_S) == mountpoint
            connection.send(SERVED)
            received(connection, 1)
            connection.send(TAKEN)
            thread.join(PATIENCE_S)
        assert not thread.is_alive()

    def test_what_is_not_mounted_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(MountError, match="nothing of fastfuse is mounted at"):
            hand_over(["a"], tmp_path)


@given(st.lists(st.binary(min_size=1, max_size=10).map(lambda path: path.replace(b"\n", b"n"))))
def test_a_list_is_read_as_it_was_written(paths: list[bytes]) -> None:
    text = b"\n".join(paths)
    for written in (text, text + b"\n", text.replace(b"\n", b"\n\n")):
        assert list(paths_in(io.BufferedReader(io.BytesIO(written)), b"\n")) == paths


def test_chunks_grow_while_paths_are_quick_and_hold_nothing_back_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)

    def paths() -> Iterator[str]:
        nonlocal now_s
        for number in range(2000):
            now_s += 1.0 if 1000 <= number < 1003 else 0.0
            yield str(number)

    sizes = [len(chunk) for chunk in hint_sender._chunks(paths())]
    assert sizes[:9] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert sizes[9:16] == [256, 256, 1, 2, 4, 8, 16]
    assert sum(sizes) == 2000


def test_nothing_but_the_standard_library_is_loaded() -> None:
    script = "import sys; before = set(sys.modules); import fastfuse.hints; print(*(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1]
    )
    loaded = set(done.stdout.split())
    assert "fastfuse.hints" in loaded
    assert {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names) == {"fastfuse"}
