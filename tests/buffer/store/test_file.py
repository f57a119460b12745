"""What only a file store has: folders, disks that fill up, clocks that stand still, temporary files."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from forebay import Consumer, Producer
from forebay.buffer.base.errors import Denied, InvalidInput, NotFound, Unavailable, Unknown, Unsupported
from forebay.buffer.store import Applied, InDoubt, NotApplied, open_store
from forebay.buffer.store import file as file_module
from forebay.buffer.store.disk import Disk
from forebay.buffer.store.file import FileStore
from forebay.gc import Collector


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(f"file://{tmp_path}/buffer")


def files_below(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.name != ".forebay-lock")


def fail_fsync(monkeypatch: pytest.MonkeyPatch, number: int, *, of_folder: bool) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        is_folder = Path(f"/proc/self/fd/{descriptor}").is_dir()
        if is_folder == of_folder:
            raise OSError(number, os.strerror(number))
        real(descriptor)

    monkeypatch.setattr(file_module.os, "fsync", fsync)


def test_full_disk_is_unavailable_and_leaves_the_old_object_and_no_litter(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = store.put("key", b"old")
    fail_fsync(monkeypatch, errno.ENOSPC, of_folder=False)
    for write in (
        lambda: store.put("key", b"new"),
        lambda: store.replace("key", b"new", version),
        lambda: store.create("other", b"new"),
    ):
        with pytest.raises(Unavailable, match="disk is full"):
            write()
    assert store.get("key").data == b"old"
    assert files_below(tmp_path) == ["key"]


def test_folder_that_cannot_be_synced_leaves_the_write_in_doubt(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = store.put("key", b"old")
    fail_fsync(monkeypatch, errno.EIO, of_folder=True)
    assert isinstance(store.replace("key", b"new", version), InDoubt)
    assert isinstance(store.create("other", b"new"), InDoubt)
    with pytest.raises(Unknown, match="crash of the machine may undo"):
        store.put("third", b"new")
    with pytest.raises(Unavailable):
        store.get("key")
    monkeypatch.undo()
    assert store.get("key").data == b"new"


class ReadOnlyDisk(Disk):
    """A disk whose file system fails after an object's name was changed, and refuses every change from then on."""

    is_read_only = False

    def replace(self, source: Path, target: Path) -> None:
        super().replace(source, target)
        self.is_read_only = True

    def link(self, source: Path, target: Path) -> None:
        super().link(source, target)
        self.is_read_only = True

    def sync_folder(self, folder: Path) -> None:
        if self.is_read_only:
            raise OSError(errno.EIO, "Input/output error")
        super().sync_folder(folder)

    def unlink(self, path: Path) -> None:
        if self.is_read_only:
            raise OSError(errno.EROFS, "Read-only file system")
        super().unlink(path)


def test_write_whose_temporary_file_cannot_be_removed_either_is_still_in_doubt(store: FileStore) -> None:
    """Its name was changed, so it is there and may survive."""
    version = store.put("key", b"old")

    assert isinstance(FileStore(store.url, disk=ReadOnlyDisk()).replace("key", b"new", version), InDoubt)
    with pytest.raises(Unknown, match="crash of the machine may undo"):
        FileStore(store.url, disk=ReadOnlyDisk()).put("key", b"newer")
    assert isinstance(FileStore(store.url, disk=ReadOnlyDisk()).create("other", b"new"), InDoubt)


def test_version_is_compared_and_the_file_renamed_under_the_lock(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = store.put("key", b"old")
    locked: list[str] = []

    def note_lock(name: str) -> None:
        real = getattr(file_module, name)

        def called(*args: Any) -> Any:
            with (tmp_path / "buffer" / ".forebay-lock").open() as another:
                try:
                    fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    locked.append(name)
            return real(*args)

        monkeypatch.setattr(file_module, name, called)

    note_lock("_stat")
    note_lock("_rename_over")

    assert isinstance(store.replace("key", b"new", version), Applied)

    assert locked == ["_stat", "_rename_over"]


def test_denied_folder_is_denied_with_what_to_check(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: Any, **_kwargs: Any) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    store.put("earlier", b"x")
    monkeypatch.setattr(file_module.os, "open", refuse)
    for write in (lambda: store.put("key", b"x"), lambda: store.create("new/key", b"x")):
        with pytest.raises(Denied, match="check who owns"):
            write()


def test_version_grows_even_if_the_clock_stands_still_or_goes_back(store: FileStore, tmp_path: Path) -> None:
    """Inodes are reused: without a time that grows, an old version could come back."""
    path = tmp_path / "buffer" / "key"
    seen = {store.put("key", b"x")}
    future_ns = path.stat().st_mtime_ns + 10**15
    os.utime(path, ns=(future_ns, future_ns))
    for _ in range(20):
        version = store.put("key", b"x")
        assert path.stat().st_mtime_ns > future_ns
        future_ns = path.stat().st_mtime_ns
        assert version not in seen
        seen.add(version)


def test_file_changed_by_another_program_has_another_version(store: FileStore, tmp_path: Path) -> None:
    version = store.put("key", b"old")
    (tmp_path / "buffer" / "key").write_bytes(b"edited")
    assert isinstance(store.replace("key", b"new", version), NotApplied)
    found = store.get_if_changed("key", version)
    assert found is not None
    assert found.data == b"edited"


def test_leftovers_of_a_crash_are_not_listed(store: FileStore, tmp_path: Path) -> None:
    store.put("data/key", b"x")
    (tmp_path / "buffer" / "data" / ".forebay-tmp-1-2").write_bytes(b"half")
    assert [info.key for info in store.list()] == ["data/key"]


def test_leftovers_of_killed_processes_are_removed_once_they_are_old(store: FileStore, tmp_path: Path) -> None:
    folder = tmp_path / "buffer" / "data"
    folder.mkdir(parents=True)
    old, young = folder / ".forebay-tmp-1-old", folder / ".forebay-tmp-1-young"
    for path in (old, young):
        path.write_bytes(b"half")
    two_hours_ago = old.stat().st_mtime - 7200
    os.utime(old, (two_hours_ago, two_hours_ago))
    store.put("data/key", b"x")
    assert not old.exists()
    assert young.exists(), "another process may be writing it"


def test_leftover_that_cannot_be_removed_fails_no_write(store: FileStore, tmp_path: Path) -> None:
    """As another user's in a folder with a sticky bit. Here it is a folder, which root cannot unlink either."""
    first, second = (tmp_path / "buffer" / f".forebay-tmp-1-{name}" for name in ("first", "second"))
    for leftover in (first, second):
        leftover.mkdir(parents=True)
        two_hours_ago = leftover.stat().st_mtime - 7200
        os.utime(leftover, (two_hours_ago, two_hours_ago))

    store.put("key", b"x")

    assert store.get("key").data == b"x"
    assert first.exists()
    assert second.exists()


def test_name_that_no_key_can_have_is_passed_over(store: FileStore, tmp_path: Path) -> None:
    store.put("key", b"x")
    Path(os.fsdecode(os.fsencode(tmp_path / "buffer") + b"/\xff\xfe")).write_bytes(b"?")
    assert [info.key for info in store.list()] == ["key"]


@pytest.mark.parametrize("key", ["a", "a/b/c"])
def test_object_and_folder_of_one_name_are_refused(store: FileStore, key: str) -> None:
    store.put("a/b", b"x")
    for write in (lambda: store.put(key, b"y"), lambda: store.create(key, b"y")):
        with pytest.raises(InvalidInput, match="both an object and a folder"):
            write()
    with pytest.raises(NotFound):
        store.get(key)


def test_reserved_and_overlong_names_are_refused(store: FileStore) -> None:
    for key in (".forebay-lock", "data/.forebay-tmp-1", "x" * 256):
        with pytest.raises(InvalidInput):
            store.put(key, b"x")


def test_handles_of_a_folder_and_of_one_above_exclude_each_other(tmp_path: Path) -> None:
    outer, inner = open_store(f"file://{tmp_path}"), open_store(f"file://{tmp_path}/sub")
    first = inner.create("key", b"1")
    assert isinstance(first, Applied)
    assert isinstance(outer.replace("sub/key", b"2", first.version), Applied)
    assert isinstance(inner.replace("key", b"3", first.version), NotApplied)


@pytest.mark.parametrize("url", ["file://relative/path", "file://host/path"])
def test_url_that_is_no_local_folder_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="three slashes"):
        FileStore(url)


def test_folder_with_spaces_and_signs_can_be_named(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/a%20b%23c")
    store.put("key", b"x")
    assert (tmp_path / "a b#c" / "key").read_bytes() == b"x"


@pytest.mark.parametrize("unlocked", [True, False])
def test_child_that_is_forked_during_a_write_keeps_no_lock(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unlocked: bool
) -> None:
    """Whether the writer gets to unlock, or dies before."""
    real = file_module._rename_over
    children: list[int] = []

    def fork_meanwhile(*args: Any) -> Any:
        begun, begin = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(begin, b"!")
            signal.pause()
            os._exit(0)
        children.append(child)
        os.read(begun, 1)
        os.close(begun)
        os.close(begin)
        return real(*args)

    monkeypatch.setattr(file_module, "_rename_over", fork_meanwhile)
    if not unlocked:
        monkeypatch.setattr(fcntl, "LOCK_UN", fcntl.LOCK_EX)  # which it has already
    try:
        store.put("key", b"1")
        with (tmp_path / "buffer" / ".forebay-lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_linked_folder_is_neither_listed_nor_written_nor_emptied(store: FileStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"x")
    store.put("data/inside", b"x")
    (tmp_path / "buffer" / "data" / "link").symlink_to(outside)
    (tmp_path / "buffer" / "linked").symlink_to(outside)

    assert [info.key for info in store.list()] == ["data/inside"]
    for use in (
        lambda: list(store.list("linked/")),
        lambda: list(store.list("data/link/pre")),
        lambda: store.get("linked/precious"),
        lambda: store.put("linked/precious", b"y"),
        lambda: store.create("data/link/new", b"y"),
        lambda: store.replace("linked/precious", b"y", "1"),
    ):
        with pytest.raises(Unsupported, match="symbolic link"):
            use()
    failures = store.delete(["linked/precious", "data/link/precious", "data/inside"])
    assert sorted(failures) == ["data/link/precious", "linked/precious"]
    assert "symbolic link" in str(failures["linked/precious"])
    assert [path.name for path in outside.iterdir()] == ["precious"]
    assert (outside / "precious").read_bytes() == b"x"


def test_collector_deletes_nothing_behind_a_linked_folder(tmp_path: Path) -> None:
    """The data folder of a buffer was replaced by a link: what lies behind it is not the buffer's to delete."""
    outside = tmp_path / "outside"
    with Producer(tmp_path / "buffer") as producer:
        producer.produce(b"entry").result()
    with Consumer(tmp_path / "buffer") as consumer:
        for batch in consumer.batches(wait=False):
            consumer.ack_through(batch.sequence)
    (tmp_path / "buffer" / "data").rename(outside)
    (tmp_path / "buffer" / "data").symlink_to(outside)
    before = sorted(path.name for path in outside.iterdir())

    with pytest.raises(Unsupported, match="symbolic link"):
        Collector(tmp_path / "buffer", grace=0).collect_once()

    assert sorted(path.name for path in outside.iterdir()) == before


def test_folder_of_the_store_itself_may_be_a_link(store: FileStore, tmp_path: Path) -> None:
    store.put("data/key", b"x")
    (tmp_path / "link").symlink_to(tmp_path / "buffer")

    assert open_store(tmp_path / "link").get("data/key").data == b"x"


def test_linked_file_is_no_object(store: FileStore, tmp_path: Path) -> None:
    store.put("key", b"x")
    (tmp_path / "buffer" / "linked").symlink_to(tmp_path / "buffer" / "key")

    assert [info.key for info in store.list()] == ["key"]
    for use in (lambda: store.get("linked"), lambda: store.create("linked", b""), lambda: store.put("linked", b"")):
        with pytest.raises(Unsupported, match="not an object"):
            use()
    assert store.delete(["linked"]) == {}
    assert store.get("key").data == b"x"


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_pipe_or_socket_among_the_objects_is_told_and_hangs_nobody(
    store: FileStore, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("data/key", b"x")
    monkeypatch.chdir(tmp_path / "buffer" / "data")  # a socket's name must be short
    if kind == "pipe":
        os.mkfifo("odd")
    else:
        socket.socket(socket.AF_UNIX).bind("odd")

    assert [info.key for info in store.list()] == ["data/key"]
    for use in (
        lambda: store.get("data/odd"),
        lambda: store.get_if_changed("data/odd", "1"),
        lambda: store.create("data/odd", b""),
        lambda: store.replace("data/odd", b"", "1"),
        lambda: store.put("data/odd", b""),
    ):
        with pytest.raises(Unsupported, match="not an object"):
            use()


def test_lock_that_another_program_keeps_is_unavailable_after_a_while(tmp_path: Path) -> None:
    store = FileStore(f"file://{tmp_path}/buffer", lock_seconds=0.01)
    version = store.put("key", b"old")
    with (tmp_path / "buffer" / ".forebay-lock").open() as foreign:
        fcntl.flock(foreign, fcntl.LOCK_EX)
        for write in (lambda: store.put("key", b"new"), lambda: store.replace("key", b"new", version)):
            with pytest.raises(Unavailable, match=r"\.forebay-lock was locked by another program"):
                write()
    assert store.get("key").data == b"old"
    assert isinstance(store.replace("key", b"new", version), Applied)


def test_time_that_cannot_grow_ends_in_an_error(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("key", b"x")
    path = Path(store.url.removeprefix("file://"), "key")
    later_ns = path.stat().st_mtime_ns + 10**15
    os.utime(path, ns=(later_ns, later_ns))
    monkeypatch.setattr(file_module.os, "utime", lambda *_args, **_kwargs: None)
    with pytest.raises(Unavailable, match="later time"):
        store.put("key", b"y")


def test_full_disk_is_freed_of_what_killed_processes_left(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("data/key", b"x")
    leftover = tmp_path / "buffer" / "data" / ".forebay-tmp-1-old"
    leftover.write_bytes(b"half")
    os.utime(leftover, ns=(0, 0))
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if leftover.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(file_module.os, "fsync", fsync)
    other = FileStore(store.url)  # which has not written to that folder yet
    other.put("manifest", b"y")

    assert files_below(tmp_path) == ["key", "manifest"]
