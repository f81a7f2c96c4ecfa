"""The images that the auto-encoders are trained on.

    digits          8×8, from scikit-learn; the last fifth is the test set
    mnist           28×28, LeCun, Cortes and Burges
    fashion-mnist   28×28, Xiao, Rasul and Vollgraf (2017)

The last two are idx files, which may be gzipped. We look for them in `data_dir`, or else in the folder named by the
environment variable `POWERSPHERICAL_DATA`, directly or in a subfolder with the name of the data. If neither is given,
they are downloaded once. The MD5 of the decompressed file is always checked.
"""

import gzip
import hashlib
import math
import os
import zlib
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

VARIABLE = "POWERSPHERICAL_DATA"
GZIP = b"\x1f\x8b"  # the first bytes of a gzipped file (RFC 1952)
TRAIN, TEST = "train-images-idx3-ubyte", "t10k-images-idx3-ubyte"

Array = np.ndarray[Any, np.dtype[Any]]


class DataError(Exception):
    """Data are missing or damaged. The message is one line and says what to do."""


class Images(NamedTuple):
    """A data set of grey images.

    Attributes:
        name: the name of the data.
        train: (images, pixels), float32 intensities in [0, 1].
        test: likewise.
        shape: the rows and columns of an image.
    """

    name: str
    train: Tensor
    test: Tensor
    shape: tuple[int, int]


class IdxFile(NamedTuple):
    """A published file of images: its name without `.gz`, and its MD5 decompressed and as published."""

    name: str
    md5: str
    gz_md5: str


class Source(NamedTuple):
    """Where a data set is published: its mirrors, in the order we try them, and its two files."""

    mirrors: tuple[str, ...]
    train: IdxFile
    test: IdxFile


# The MD5 sums of the .gz files are those in torchvision's `datasets.mnist` and in the README of Fashion-MNIST.
SOURCES = {
    "mnist": Source(
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        train=IdxFile(TRAIN, "6bbc9ace898e44ae57da46a324031adb", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        test=IdxFile(TEST, "2646ac647ad5339dbf082846283269ea", "9fb629c4189551a2d022fa330f9573f3"),
    ),
    "fashion-mnist": Source(
        mirrors=(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        train=IdxFile(TRAIN, "f4a8712d7a061bf5bd6d2ca38dc4d50a", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        test=IdxFile(TEST, "8181f5470baa50b63fa0f6fddb340f0a", "bef4ecab320f06d8554ea6380940ec79"),
    ),
}
NAMES = ("digits", *SOURCES)


def load(name: str, data_dir: Path | str | None = None) -> Images:
    """Load a data set.

    Args:
        name: "digits", "mnist" or "fashion-mnist".
        data_dir: the folder with the idx files, or with a subfolder `name` that has them. Default: the folder in
            `POWERSPHERICAL_DATA`; if that is not set, the files are downloaded into the user's cache.

    Raises:
        DataError: the name is unknown, a file is missing or damaged, or the download failed.
    """
    if name == "digits":
        if data_dir is not None:
            raise DataError("the digits come with scikit-learn; leave out --data-dir or choose other --data")
        from sklearn.datasets import load_digits

        images = load_digits().images
        held_out = math.ceil(len(images) / 5)
        return _images(name, images[:-held_out], images[-held_out:], white=16)
    if name not in SOURCES:
        raise DataError(f"unknown data {name!r}; choose from {', '.join(NAMES)}")
    files = (SOURCES[name].train, SOURCES[name].test)
    folder = data_dir or os.environ.get(VARIABLE)
    # Locate both files before reading the first, so that a missing one is reported at once.
    paths = [
        _find(file, name, Path(folder).expanduser()) if folder else _download(file, name) for file in files
    ]
    train, test = (_read(path, file, name) for path, file in zip(paths, files, strict=True))
    return _images(name, train, test, white=255)


def _images(name: str, train: Array, test: Array, *, white: int) -> Images:
    """Scale images (count, rows, columns) to [0, 1], with `white` as 1, and flatten them."""
    train_rows, test_rows = (
        torch.from_numpy(np.divide(each, white, dtype=np.float32, casting="unsafe")).flatten(1)
        for each in (train, test)
    )
    return Images(name, train_rows, test_rows, train.shape[1:])


def _find(file: IdxFile, name: str, folder: Path) -> Path:
    """Find a file in the subfolder `name` of a folder, or in the folder itself."""
    spellings = (file.name, file.name.replace("-idx3", ".idx3"))  # some mirrors write a dot
    for place, spelling, suffix in product((folder / name, folder), spellings, ("", ".gz")):
        path = place / f"{spelling}{suffix}"
        if path.is_file():
            return path
    raise DataError(
        f"{name}: neither {folder / name} nor {folder} contains {file.name} (or .gz); {_by_hand(name)}"
    )


def _download(file: IdxFile, name: str) -> Path:
    """Download a file into the user's cache, unless it is there already, and return its path.

    pooch puts a file into the cache only when it is complete and its checksum is right.
    """
    import pooch

    gz, md5 = f"{file.name}.gz", f"md5:{file.gz_md5}"
    cache = pooch.os_cache("powerspherical") / name
    downloader = pooch.HTTPDownloader(stream=False)  # a failed stream would leave its connection open
    failures = []
    for mirror in SOURCES[name].mirrors:
        try:
            return Path(pooch.retrieve(mirror + gz, md5, gz, cache, downloader=downloader))
        except (OSError, ValueError) as error:  # network or folder; checksum
            # We name the type only: messages of network errors are long.
            reason = "wrong checksum" if type(error) is ValueError else type(error).__name__
            failures.append(f"{mirror}: {reason}")
    raise DataError(f"{name}: could not download {gz} into {cache} ({', '.join(failures)}); {_by_hand(name)}")


def _by_hand(name: str) -> str:
    """What to do about a missing file."""
    mirrors, train, test = SOURCES[name]
    return (
        f"put {train.name}.gz and {test.name}.gz from {mirrors[0]} into a folder and give it as --data-dir"
        f" or in the environment variable {VARIABLE}, or use --data digits"
    )


def _read(path: Path, file: IdxFile, name: str) -> Array:
    """Read the images of an idx file, gzipped or not, as bytes (count, rows, columns).

    The format is described at yann.lecun.com/exdb/mnist: four bytes for the type, then the length of each axis, then
    the pixels.
    """
    try:
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if raw.startswith(GZIP) else raw
        md5 = hashlib.md5(raw, usedforsecurity=False).hexdigest()
        if md5 != file.md5:
            raise ValueError(f"the MD5 of its {len(raw)} bytes, decompressed, is {md5}")
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(
            f"{path} is not the file of {name}: {error}; its MD5 should be {file.gz_md5} gzipped or {file.md5}"
            f" decompressed; replace it by {SOURCES[name].mirrors[0]}{file.name}.gz, or use --data digits"
        ) from error
    shape = np.frombuffer(raw, ">u4", count=3, offset=4)
    return np.frombuffer(raw, np.uint8, offset=16).reshape(shape)
