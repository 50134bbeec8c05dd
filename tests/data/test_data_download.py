"""Downloads from a server that is slow, forgetful, lying or gone; the server is here, on the loopback."""

from __future__ import annotations

import errno
import hashlib
import io
import resource
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from data_files import (
    WRITERS_OF_PICTURES,
    declare,
    random_bytes,
    write_cifar_binary,
    write_cifar_c,
    write_mnist,
    write_svhn,
    write_tiny_imagenet,
    write_tiny_imagenet_c,
)

from steppe.data import DATASETS, DataError, catalogue, check, download, get, load
from steppe.data.catalogue import File

BODY = random_bytes(700_000).tobytes()


@dataclass
class Server:
    """What the server has, how it behaves, and what it was asked."""

    files: dict[str, bytes] = field(default_factory=dict)
    address: str = ""
    knows_ranges: bool = True
    wrong_start: bool = False
    says_length: bool = True
    breaks_after: list[int] = field(default_factory=list)  # bytes sent before each of the next connections breaks
    redirect: str | None = None
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # path, range


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    state = Server()
    for variable in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.asked.append((self.path, wanted))
            if state.redirect is not None:
                self.send_response(302)
                self.send_header("Location", state.redirect)
                self.end_headers()
                return
            body = state.files.get(self.path.lstrip("/"))
            if body is None:
                self.send_error(404)
                return
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and state.knows_ranges else 0
            if start >= len(body) > 0:
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                first = start + state.wrong_start
                self.send_header("Content-Range", f"bytes {first}-{len(body) - 1}/{len(body)}")
            if state.says_length:
                self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            sent = body[start:]
            if state.breaks_after:
                sent = sent[: state.breaks_after.pop(0)]
                self.close_connection = True
            self.wfile.write(sent)

        def log_message(self, *args: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
    thread.start()
    state.address = f"http://127.0.0.1:{httpd.server_port}"
    yield state
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def published(body: bytes, name: str = "a.bin", kind: str = "sha256", holds: str = "") -> File:
    return File(
        f"https://official.example/{name}", name, len(body), f"{kind}:{hashlib.new(kind, body).hexdigest()}", holds
    )


def fetched(server: Server, file: File, folder: Path) -> bytes:
    return download.fetch(file, folder / file.place, f"{server.address}/{file.name}").read_bytes()


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_a_file_comes_whole_and_once(server: Server, tmp_path: Path, kind: str) -> None:
    server.files["a.bin"] = BODY
    file = published(BODY, kind=kind)
    for _ in range(2):
        assert fetched(server, file, tmp_path) == BODY
    assert server.asked == [("/a.bin", None)]
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]


@pytest.mark.parametrize("begun", [1, 300_000, len(BODY) - 1])
def test_a_download_goes_on_where_it_ended(server: Server, tmp_path: Path, begun: int) -> None:
    server.files["a.bin"] = BODY
    (tmp_path / "a.bin.part").write_bytes(BODY[:begun])
    assert fetched(server, published(BODY), tmp_path) == BODY
    assert server.asked == [("/a.bin", f"bytes={begun}-")]
    assert not (tmp_path / "a.bin.part").exists()


def test_a_part_that_is_whole_is_not_asked_for(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.bin.part").write_bytes(BODY)
    assert fetched(server, published(BODY), tmp_path) == BODY
    assert server.asked == []


def test_a_server_that_knows_no_ranges(server: Server, tmp_path: Path) -> None:
    server.files["a.bin"], server.knows_ranges = BODY, False
    (tmp_path / "a.bin.part").write_bytes(BODY[:100_000])
    assert fetched(server, published(BODY), tmp_path) == BODY
    assert server.asked == [("/a.bin", "bytes=100000-")]


def test_a_server_that_answers_another_range(server: Server, tmp_path: Path) -> None:
    server.files["a.bin"], server.wrong_start = BODY, True
    (tmp_path / "a.bin.part").write_bytes(BODY[:100_000])
    assert fetched(server, published(BODY), tmp_path) == BODY
    assert server.asked == [("/a.bin", "bytes=100000-"), ("/a.bin", None)]


@pytest.mark.parametrize("old", [b"x" * 100_000, b"x" * len(BODY), b"x" * (len(BODY) + 5)])
def test_a_part_of_another_file_is_thrown_away(server: Server, tmp_path: Path, old: bytes) -> None:
    server.files["a.bin"] = BODY
    (tmp_path / "a.bin.part").write_bytes(old)
    assert fetched(server, published(BODY), tmp_path) == BODY
    assert server.asked[-1] == ("/a.bin", None)
    assert len(server.asked) == (2 if len(old) < len(BODY) else 1)


def test_a_connection_that_breaks_is_taken_up_again(server: Server, tmp_path: Path) -> None:
    server.files["a.bin"], server.breaks_after = BODY, [100_000, 0, 250_000]
    assert fetched(server, published(BODY), tmp_path) == BODY
    assert server.asked == [("/a.bin", r) for r in (None, "bytes=100000-", "bytes=100000-", "bytes=350000-")]


def test_a_body_that_stays_short_is_kept_for_later(server: Server, tmp_path: Path) -> None:
    server.files["a.bin"], server.breaks_after = BODY, [1000] * 100
    with pytest.raises(ConnectionError, match=r"5 tries ended after 5,000 of 700,000 bytes; call again to resume"):
        fetched(server, published(BODY), tmp_path)
    assert (tmp_path / "a.bin.part").read_bytes() == BODY[:5000]
    assert not (tmp_path / "a.bin").exists()
    server.breaks_after.clear()
    assert fetched(server, published(BODY), tmp_path) == BODY
    assert server.asked[-1] == ("/a.bin", "bytes=5000-")


@pytest.mark.parametrize("body", [b"please log in", BODY[:-10], BODY + b"x" * 10_000_000])
def test_a_file_of_another_length_is_not_stored(server: Server, tmp_path: Path, body: bytes) -> None:
    server.files["a.bin"] = body
    with pytest.raises(DataError, match=rf"the server has {len(body):,} bytes, and the published file 700,000"):
        fetched(server, published(BODY), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        (b"please log in", ConnectionError, "ended after 13 of 700,000 bytes"),
        (BODY[:-10], ConnectionError, "of 700,000 bytes"),
        (BODY + b"x" * 10_000_000, DataError, "more than the published 700,000 bytes"),
    ],
)
def test_a_server_that_does_not_say_how_much_comes(
    server: Server, tmp_path: Path, body: bytes, error: type[Exception], words: str
) -> None:
    server.files["a.bin"], server.says_length = body, False
    with pytest.raises(error, match=words):
        fetched(server, published(BODY), tmp_path)
    assert not (tmp_path / "a.bin").exists()
    server.files["a.bin"] = BODY
    assert fetched(server, published(BODY), tmp_path) == BODY


def test_a_wrong_digest_leaves_nothing(server: Server, tmp_path: Path) -> None:
    server.files["a.bin"] = BODY[:-1] + b"?"
    with pytest.raises(
        DataError, match=r"a\.bin: the file from http://127.*was removed: its sha256 is .* is published"
    ):
        fetched(server, published(BODY), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_and_wrong_is_not_touched(server: Server, tmp_path: Path) -> None:
    server.files["a.bin"] = BODY
    (tmp_path / "a.bin").write_bytes(b"mine")
    with pytest.raises(DataError, match=r"not the published file.*move it away"):
        fetched(server, published(BODY), tmp_path)
    assert (tmp_path / "a.bin").read_bytes() == b"mine"
    assert server.asked == []


def test_a_full_disk_keeps_what_came(server: Server, tmp_path: Path) -> None:
    """The kernel refuses to write more than half of the file."""
    server.files["a.bin"] = BODY
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (350_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"the part so far is kept; make room.*a\.bin\.part") as caught:
            fetched(server, published(BODY), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.EFBIG
    assert not (tmp_path / "a.bin").exists()
    assert (tmp_path / "a.bin.part").read_bytes() == BODY[:350_000]
    assert fetched(server, published(BODY), tmp_path) == BODY
    assert server.asked[-1] == ("/a.bin", "bytes=350000-")


def test_a_disk_that_takes_a_little_at_a_time(tmp_path: Path) -> None:
    class Slow(io.FileIO):
        def write(self, body: memoryview) -> int:
            return super().write(body[:7])

    with Slow(tmp_path / "a", "w") as out:
        download._write(out, BODY[:1000], tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == BODY[:1000]


def test_no_room_is_seen_before_anything_comes(server: Server, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="bytes are missing") as caught:
        fetched(server, replace(published(BODY), size=2**60), tmp_path)
    assert caught.value.errno == errno.ENOSPC
    assert server.asked == []


def test_a_server_without_the_file_and_no_server(server: Server, tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match=r"127.*/a\.bin: the server answered 404"):
        fetched(server, published(BODY), tmp_path)
    gone = Server(address="http://127.0.0.1:1")
    with pytest.raises(ConnectionError, match="call again to resume from 0 bytes"):
        fetched(gone, published(BODY), tmp_path)
    assert [p for p in tmp_path.iterdir() if p.stat().st_size] == []


def test_redirections_lead_to_http_only(server: Server, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(BODY)
    for place in (f"file://{tmp_path}/secret", "ftp://127.0.0.1:1/secret", "data:,secret"):
        server.redirect = place
        with pytest.raises((ConnectionError, OSError)):
            fetched(server, published(BODY), tmp_path / "out")
    assert not (tmp_path / "out" / "a.bin").exists()


# whole data sets


def tar_of(folder: Path) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        tar.add(folder, folder.name)
    return out.getvalue()


def zip_of(folder: Path) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        for path in sorted(folder.rglob("*")):
            packed.write(path, path.relative_to(folder.parent))
    return out.getvalue()


def publish(monkeypatch: pytest.MonkeyPatch, server: Server, name: str, bodies: dict[str, bytes]) -> None:
    """Puts files on the server as if they were those of the catalogue."""
    files = []
    for file in catalogue.files(name):
        body = bodies[file.name]
        server.files[file.name] = body
        files.append(replace(file, size=len(body), digest=f"sha256:{hashlib.sha256(body).hexdigest()}"))
    if name in DATASETS:
        declare(monkeypatch, name, files=tuple(files))
    else:
        declare(monkeypatch, name.removesuffix("-c"), corrupted=files[0])


def packed_pictures(name: str, scratch: Path) -> dict[str, bytes]:
    folder, write = WRITERS_OF_PICTURES[name]
    write(scratch / folder)
    paths = {file.name: scratch / file.result for file in catalogue.files(name)}
    return {name: tar_of(path) if path.is_dir() else path.read_bytes() for name, path in paths.items()}


def packed(name: str, scratch: Path) -> dict[str, bytes]:
    if name in ("mnist", "fashion-mnist"):
        write_mnist(scratch, zipped=True)
        return {p.name: p.read_bytes() for p in scratch.iterdir()}
    if name == "svhn":
        write_svhn(scratch)
        return {p.name: p.read_bytes() for p in scratch.iterdir()}
    if name in WRITERS_OF_PICTURES:
        return packed_pictures(name, scratch)
    (file,) = catalogue.files(name)
    if name == "tiny-imagenet":
        write_tiny_imagenet(scratch / file.holds)
        return {file.name: zip_of(scratch / file.holds)}
    if name == "tiny-imagenet-c":
        write_tiny_imagenet_c(scratch / file.holds)
    elif name.endswith("-c"):
        write_cifar_c(scratch / file.holds)
    else:
        write_cifar_binary(scratch / file.holds, name)
    return {file.name: tar_of(scratch / file.holds)}


def test_an_interrupted_set_of_several_archives_resumes(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(monkeypatch, server, "oxford-pets", packed("oxford-pets", tmp_path / "scratch"))
    lost = server.files.pop("annotations.tar.gz")
    with pytest.raises(ConnectionError, match=r"annotations\.tar\.gz"):
        get("oxford-pets", tmp_path / "data", mirror=server.address)
    assert (tmp_path / "data" / "oxford-iiit-pet" / "images").is_dir()
    server.files["annotations.tar.gz"] = lost
    del server.files["images.tar.gz"]  # not fetched again
    get("oxford-pets", tmp_path / "data", mirror=server.address)
    with pytest.warns(UserWarning, match="published set has"):
        assert len(load("oxford-pets@8", tmp_path / "data").test) == 2


def test_a_set_without_an_address_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Stanford Cars cannot be downloaded"):
        get("stanford-cars", tmp_path)
    with pytest.raises(FileNotFoundError, match="no longer answers"):
        load("stanford-cars", tmp_path)


@pytest.mark.parametrize("name", catalogue.downloads())
def test_get_brings_what_load_reads(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(monkeypatch, server, name, packed(name, tmp_path / "scratch"))
    root = tmp_path / "data"
    assert get(name, root, mirror=server.address) == root
    if name in DATASETS:
        with pytest.warns(UserWarning, match="published set has"):
            assert len(load(f"{name}@8" if name in WRITERS_OF_PICTURES else name, root).train)
    report = check.check(root)
    assert report.ok
    assert [one.what for one in report.found] == [name]
    places = {Path(file.result).parts[0] for file in catalogue.files(name)}
    assert {p.name for p in root.iterdir()} - {f".{name}.lock"} == places  # no archives and no parts are left
    asked = len(server.asked)
    get(name, root, mirror=server.address)
    assert len(server.asked) == asked  # what is there is left as it is
    assert capsys.readouterr().err == ""  # no terminal, no bar


def test_progress_is_a_line_in_a_log(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(monkeypatch, server, "cifar100", packed("cifar100", tmp_path / "scratch"))
    get("cifar100", tmp_path / "data", progress=True, mirror=server.address)
    assert capsys.readouterr().err == "cifar-100-binary.tar.gz ...\n"


def test_progress_is_a_bar_on_a_terminal(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    server.files["a.bin"] = BODY
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    fetched(server, published(BODY), tmp_path)
    assert "a.bin" in terminal.getvalue()
    assert "700.0" in terminal.getvalue()  # kB


def test_get_from_a_folder(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = packed("cifar10", tmp_path / "scratch")
    publish(monkeypatch, server, "cifar10", bodies)
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "cifar-10-binary.tar.gz").write_bytes(bodies["cifar-10-binary.tar.gz"])
    get("cifar10", tmp_path / "data", mirror=str(tmp_path / "mirror"))
    assert (tmp_path / "data" / "cifar-10-batches-bin" / "test_batch.bin").is_file()
    assert (tmp_path / "mirror" / "cifar-10-binary.tar.gz").is_file()
    assert server.asked == []


def test_an_archive_that_somebody_put_there_is_used_and_stays(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = packed("cifar10", tmp_path / "scratch")
    publish(monkeypatch, server, "cifar10", bodies)
    root = tmp_path / "data"
    (root / ".unpacking-cifar-10-batches-bin" / "cifar-10-batches-bin").mkdir(parents=True)  # left by a killed process
    (root / "cifar-10-binary.tar.gz").write_bytes(bodies["cifar-10-binary.tar.gz"])
    get("cifar10", root, mirror=server.address)
    assert server.asked == []
    names = {"cifar-10-batches-bin", "cifar-10-binary.tar.gz"}
    assert {p.name for p in root.iterdir()} - {".cifar10.lock"} == names
    assert check.check(root / "cifar-10-binary.tar.gz").ok


def test_an_archive_that_climbs_out_leaves_nothing(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name in ("cifar-10-batches-bin/data_batch_1.bin", "cifar-10-batches-bin/../../../climbed"):
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    publish(monkeypatch, server, "cifar10", {"cifar-10-binary.tar.gz": out.getvalue()})
    with pytest.raises(DataError, match="climbed"):
        get("cifar10", tmp_path / "data", mirror=server.address)
    assert not list(tmp_path.rglob("*climbed*"))
    assert {p.name for p in (tmp_path / "data").iterdir()} <= {".cifar10.lock", "cifar-10-binary.tar.gz"}


def test_a_folder_that_is_not_whole_is_not_written_over(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(monkeypatch, server, "cifar10", packed("cifar10", tmp_path / "scratch"))
    mine = tmp_path / "data" / "cifar-10-batches-bin" / "data_batch_1.bin"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"mine")
    with pytest.raises(DataError, match="incomplete; move it away"):
        get("cifar10", tmp_path / "data", mirror=server.address)
    assert mine.read_bytes() == b"mine"
    assert server.asked == []


def test_two_downloads_to_one_place(tmp_path: Path) -> None:
    from filelock import FileLock

    with FileLock(tmp_path / ".mnist.lock"), pytest.raises(RuntimeError, match="another process is downloading mnist"):
        get("mnist", tmp_path, mirror="http://127.0.0.1:1")


def test_what_cannot_be_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Did you mean 'cifar10'"):
        get("cifar-10", tmp_path)
    with pytest.raises(ValueError, match="http, https, file"):
        get("cifar10", tmp_path, mirror="ftp://somewhere")
    assert list(tmp_path.iterdir()) == []
