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
from powerspherical_paper.autoencoder.datasets import TEST, TRAIN, DataError, load

GENUINE = os.environ.get(datasets.VARIABLE)  # read before the tests set it


def idx(count: int) -> bytes:
    """A gzipped idx file of `count` images of 2×3 pixels, with the values 0, 5, … and 255 as the last."""
    pixels = np.arange(0, count * 30, 5, dtype=np.uint8)
    pixels[-1] = 255
    return gzip.compress(struct.pack(">4I", 2051, count, 2, 3) + pixels.tobytes(), mtime=0)


FILES = {TRAIN: idx(5), TEST: idx(2)}


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """Small files in place of MNIST, an empty cache, no environment variable, and unreachable mirrors."""
    md5 = {name: hashlib.md5(data).hexdigest() for name, data in FILES.items()}
    monkeypatch.setattr(datasets, "MD5", md5)
    monkeypatch.setattr(datasets, "MIRRORS", ("http://127.0.0.1:1/first/", "http://127.0.0.1:1/second/"))
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    monkeypatch.delenv(datasets.VARIABLE, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def refusal(*arguments) -> str:
    """The message of the `DataError` that `load` raises; it must be one line."""
    with pytest.raises(DataError) as caught:
        load(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def check(images: datasets.Images) -> None:
    assert images.name == "mnist"
    assert images.train.shape == (5, 6)
    assert images.train.dtype == images.test.dtype == torch.float32
    expected = torch.tensor([0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 255]).view(2, 6) / 255
    torch.testing.assert_close(images.test, expected)


def test_digits(tmp_path):
    digits = load("digits")
    assert (digits.train.shape, digits.test.shape) == ((1437, 64), (360, 64))
    both = torch.cat([digits.train, digits.test])
    assert (both.dtype, both.min(), both.max()) == (torch.float32, 0, 1)
    assert torch.equal(both * 16, (both * 16).round())
    assert "leave out --data-dir" in refusal("digits", tmp_path)
    assert refusal("cifar") == "unknown data 'cifar'; choose digits or mnist"


def test_the_folder_and_the_variable(monkeypatch, tmp_path):
    """The files are in the folder or in its subfolder. The argument takes precedence over the variable."""
    check(load("mnist", write(tmp_path / "flat", FILES)))
    monkeypatch.setenv(datasets.VARIABLE, str(write(tmp_path / "data" / "mnist", FILES).parent))
    check(load("mnist"))
    assert str(tmp_path / "elsewhere") in refusal("mnist", tmp_path / "elsewhere")


@pytest.mark.parametrize("missing", [TRAIN, TEST])
def test_a_missing_file(tmp_path, missing):
    write(tmp_path, {name: data for name, data in FILES.items() if name != missing})
    message = refusal("mnist", str(tmp_path))
    assert message.startswith(
        f"neither {tmp_path / 'mnist'} nor {tmp_path} contains {missing}; {datasets.BY_HAND}"
    )


@pytest.mark.parametrize(
    "data",
    [b"", FILES[TEST][:-9], FILES[TEST] + b"\0", flipped(FILES[TEST], 20), FILES[TRAIN]],
    ids=["empty", "cut", "too long", "one bit", "the other file"],
)
def test_a_damaged_file(tmp_path, data):
    write(tmp_path, {**FILES, TEST: data})
    found, published = (hashlib.md5(each).hexdigest() for each in (data, FILES[TEST]))
    says = f"{tmp_path / TEST} is not the published file: its MD5 is {found}, not {published}; {datasets.BY_HAND}"
    assert refusal("mnist", tmp_path) == says


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder and logs nothing; a file in `cut` loses its connection before its last bytes."""

    def log_message(self, *_):
        pass

    def copyfile(self, source, outputfile):
        data = source.read()
        outputfile.write(data[:-9] if "cut" in self.path else data)


@pytest.fixture
def mirror(monkeypatch, tmp_path):
    """A function that makes folders, relative to that of the test, the mirrors of mnist. Two hold bad files."""
    write(tmp_path / "cut", FILES)
    write(tmp_path / "altered", {name: flipped(data, 20) for name, data in FILES.items()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()

    def serve(*folders: str) -> None:
        mirrors = tuple(f"http://127.0.0.1:{server.server_port}/{folder}/" for folder in folders)
        monkeypatch.setattr(datasets, "MIRRORS", mirrors)

    yield serve
    server.shutdown()
    server.server_close()
    thread.join()


def cached(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache" / "powerspherical" / "mnist").iterdir())


def test_download(mirror, tmp_path):
    """A mirror that fails is followed by the next. Afterwards the cache serves."""
    public = write(tmp_path / "public", FILES)
    mirror("gone", "cut", "altered", "public")
    check(load("mnist"))
    assert cached(tmp_path) == [TEST, TRAIN]
    public.rename(tmp_path / "withdrawn")
    check(load("mnist"))


def test_failed_downloads_say_why_and_leave_nothing(mirror, tmp_path):
    """Without a network, and with bad mirrors."""
    unreachable = "http://127.0.0.1:1/first/: ConnectionError, http://127.0.0.1:1/second/: ConnectionError"
    assert unreachable in refusal("mnist")
    mirror("gone", "cut", "altered")
    message = refusal("mnist")
    assert message.endswith(datasets.BY_HAND)
    assert message.startswith(f"could not download {TRAIN} into {tmp_path / 'cache'}")
    reasons = re.findall(r"/(\w+)/: ([\w ]+)", message)
    assert reasons == [("gone", "HTTPError"), ("cut", "ChunkedEncodingError"), ("altered", "wrong checksum")]
    assert cached(tmp_path) == []


@pytest.mark.skipif(
    GENUINE is None or not list(Path(GENUINE, "mnist").glob("train-images*")),
    reason="POWERSPHERICAL_DATA names no folder with the MNIST files in mnist/",
)
def test_the_genuine_mnist(monkeypatch):
    monkeypatch.undo()
    images = load("mnist", GENUINE)
    assert (images.train.shape, images.test.shape) == ((60000, 784), (10000, 784))
    # The mean intensity by which MNIST is usually centred.
    assert images.train.mean().item() == pytest.approx(0.1307, abs=5e-5)
