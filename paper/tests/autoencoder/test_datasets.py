"""The images: where we look for them, and the errors if they are missing, damaged or unreachable."""

import gzip
import hashlib
import os
import re
import struct
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pooch
import pytest
import torch

from powerspherical_paper.autoencoder import datasets
from powerspherical_paper.autoencoder.datasets import DataError, IdxFile, Source, load

TRAIN, TEST = "train-images-idx3-ubyte", "t10k-images-idx3-ubyte"
GENUINE = os.environ.get(datasets.VARIABLE)  # read before the tests set it


def idx(count: int) -> bytes:
    """An idx file of `count` images of 2×3 pixels, with the values 0, 5, … and 255 as the last."""
    pixels = np.arange(0, count * 30, 5, dtype=np.uint8)
    pixels[-1] = 255
    return struct.pack(">4I", 2051, count, 2, 3) + pixels.tobytes()


RAW = {TRAIN: idx(5), TEST: idx(2)}
GZ = {name: gzip.compress(raw, mtime=0) for name, raw in RAW.items()}


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """Small files in place of MNIST, an empty cache, no environment variable, and unreachable mirrors."""
    files = [IdxFile(name, md5(RAW[name]), md5(GZ[name])) for name in (TRAIN, TEST)]
    nobody = ("http://127.0.0.1:1/first/", "http://127.0.0.1:1/second/")
    monkeypatch.setitem(datasets.SOURCES, "mnist", Source(nobody, *files))
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    monkeypatch.delenv(datasets.VARIABLE, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def write(folder: Path, files: dict[str, bytes], suffix: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / f"{name}{suffix}").write_bytes(data)
    return folder


def refusal(*arguments) -> str:
    """The message of the `DataError` that `load` raises; it must be one line."""
    with pytest.raises(DataError) as caught:
        load(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


def check(images: datasets.Images) -> None:
    assert (images.name, images.shape) == ("mnist", (2, 3))
    assert images.train.shape == (5, 6)
    assert images.train.dtype == images.test.dtype == torch.float32
    expected = torch.tensor([0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 255]).view(2, 6) / 255
    torch.testing.assert_close(images.test, expected)


def test_the_digits_lie_in_no_folder(tmp_path):
    with pytest.raises(datasets.DataError, match="leave out --data-dir"):
        datasets.load("digits", tmp_path)


def test_digits():
    digits = load("digits")
    assert digits.shape == (8, 8)
    assert (digits.train.shape, digits.test.shape) == ((1437, 64), (360, 64))
    both = torch.cat([digits.train, digits.test])
    assert both.dtype == torch.float32
    assert (both.min(), both.max()) == (0, 1)
    assert torch.equal(both * 16, (both * 16).round())


@pytest.mark.parametrize("place", [".", "mnist"])
@pytest.mark.parametrize("dotted", [False, True])
@pytest.mark.parametrize(("files", "suffix"), [(RAW, ""), (GZ, ".gz"), (RAW, ".gz"), (GZ, "")])
def test_the_folder(tmp_path, place, dotted, files, suffix):
    """In the folder or its subfolder, in both spellings, gzipped or not, with or without the suffix."""
    spelled = {name.replace("-idx3", ".idx3") if dotted else name: data for name, data in files.items()}
    write(tmp_path / place, spelled, suffix)
    check(load("mnist", tmp_path))


def test_a_file_compressed_anew_is_the_same_file(tmp_path):
    again = {name: gzip.compress(raw, compresslevel=0, mtime=1) for name, raw in RAW.items()}
    assert again != GZ
    check(load("mnist", write(tmp_path, again, ".gz")))


def test_the_variable(monkeypatch, tmp_path):
    write(tmp_path / "data" / "mnist", GZ, ".gz")
    monkeypatch.setenv(datasets.VARIABLE, str(tmp_path / "data"))
    check(load("mnist"))
    assert str(tmp_path / "elsewhere") in refusal(
        "mnist", tmp_path / "elsewhere"
    )  # the argument goes before it


def test_an_unknown_name():
    assert refusal("cifar") == "unknown data 'cifar'; choose from digits, mnist, fashion-mnist"


@pytest.mark.parametrize("missing", [TRAIN, TEST])
def test_a_missing_file(tmp_path, missing):
    write(tmp_path, {name: data for name, data in RAW.items() if name != missing})
    message = refusal("mnist", str(tmp_path))
    assert message.startswith(
        f"mnist: neither {tmp_path / 'mnist'} nor {tmp_path} contains {missing} (or .gz); "
    )
    for way_out in (
        f"{TRAIN}.gz and {TEST}.gz",
        "http://127.0.0.1:1/first/",
        "--data-dir",
        "POWERSPHERICAL_DATA",
    ):
        assert way_out in message
    assert message.endswith("or use --data digits")


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


DAMAGE = {
    name: (data, f"the MD5 of its {len(data)} bytes, decompressed, is {md5(data)}")
    for name, data in {
        "empty": b"",
        "header cut": RAW[TEST][:9],
        "pixels cut": RAW[TEST][:-1],
        "too long": RAW[TEST] + b"\0",
        "a web page": b"<html>no such page</html>",
        "magic": flipped(RAW[TEST], 3),
        "pixel": flipped(RAW[TEST], 20),
        "the other file": RAW[TRAIN],
    }.items()
} | {
    "gzip header cut": (GZ[TEST][:5], "Compressed file ended before .*"),
    "gzip cut": (GZ[TEST][:-9], "Compressed file ended before .*"),
    "gzip method": (flipped(GZ[TEST], 2), "Unknown compression method"),
    "gzip block": (GZ[TEST][:10] + b"\x07" + GZ[TEST][11:], "Error -3 while decompressing data.*"),
    "gzip checksum": (flipped(GZ[TEST], len(GZ[TEST]) - 5), "CRC check failed.*"),
}


@pytest.mark.parametrize(("data", "reason"), DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_file(tmp_path, data, reason):
    write(tmp_path, {**GZ, TEST: data}, ".gz")
    way_out = (
        f"its MD5 should be {md5(GZ[TEST])} gzipped or {md5(RAW[TEST])} decompressed; replace it by"
        f" http://127.0.0.1:1/first/{TEST}.gz, or use --data digits"
    )
    path = re.escape(str(tmp_path / f"{TEST}.gz"))
    assert re.fullmatch(
        f"{path} is not the file of mnist: {reason}; {re.escape(way_out)}", refusal("mnist", tmp_path)
    )


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder and logs nothing; a file in `cut` loses its connection before its last bytes."""

    def log_message(self, *_):
        pass

    def copyfile(self, source, outputfile):
        data = source.read()
        outputfile.write(data[:-9] if "cut" in self.path else data)


@pytest.fixture
def mirror(monkeypatch, tmp_path):
    """A function that makes folders, relative to that of the test, the mirrors of mnist."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()

    def serve(*folders: str) -> None:
        mirrors = tuple(f"http://127.0.0.1:{server.server_port}/{folder}/" for folder in folders)
        source = datasets.SOURCES["mnist"]._replace(mirrors=mirrors)
        monkeypatch.setitem(datasets.SOURCES, "mnist", source)

    yield serve
    server.shutdown()
    server.server_close()
    thread.join()


def cached(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache" / "powerspherical" / "mnist").iterdir())


def test_download(mirror, tmp_path):
    write(tmp_path / "public", GZ, ".gz")
    mirror("gone", "public")
    check(load("mnist"))
    assert cached(tmp_path) == [f"{TEST}.gz", f"{TRAIN}.gz"]
    (tmp_path / "public").rename(tmp_path / "withdrawn")
    check(load("mnist"))  # from the cache


def test_a_download_goes_on_to_the_next_mirror(mirror, tmp_path):
    write(tmp_path / "cut", GZ, ".gz")
    write(tmp_path / "altered", {name: flipped(data, 20) for name, data in GZ.items()}, ".gz")
    write(tmp_path / "public", GZ, ".gz")
    mirror("gone", "cut", "altered", "public")
    check(load("mnist"))


def test_failed_downloads_say_why_and_leave_nothing(mirror, tmp_path):
    write(tmp_path / "cut", GZ, ".gz")
    write(tmp_path / "altered", {name: flipped(data, 20) for name, data in GZ.items()}, ".gz")
    mirror("gone", "cut", "altered")
    message = refusal("mnist")
    assert message.startswith(f"mnist: could not download {TRAIN}.gz into {tmp_path / 'cache'}")
    reasons = re.findall(r"/(\w+)/: ([\w ]+)", message)
    assert reasons == [("gone", "HTTPError"), ("cut", "ChunkedEncodingError"), ("altered", "wrong checksum")]
    assert cached(tmp_path) == []


def test_without_a_network(tmp_path):
    message = refusal("mnist")
    assert (
        "http://127.0.0.1:1/first/: ConnectionError, http://127.0.0.1:1/second/: ConnectionError" in message
    )
    for way_out in (f"{TRAIN}.gz and {TEST}.gz", "--data-dir", "POWERSPHERICAL_DATA", "--data digits"):
        assert way_out in message
    assert cached(tmp_path) == []


@pytest.mark.skipif(
    GENUINE is None or not list(Path(GENUINE, "mnist").glob("train-images*")),
    reason="POWERSPHERICAL_DATA names no folder with the MNIST files in mnist/",
)
def test_the_genuine_mnist(monkeypatch):
    monkeypatch.undo()
    images = load("mnist", GENUINE)
    assert (images.train.shape, images.test.shape, images.shape) == ((60000, 784), (10000, 784), (28, 28))
    assert (images.train.min(), images.train.max()) == (0, 1)
    # The mean intensity by which MNIST is usually centred.
    assert images.train.mean().item() == pytest.approx(0.1307, abs=5e-5)
