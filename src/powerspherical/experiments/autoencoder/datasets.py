"""The images the auto-encoders are trained on: small ones that come with scikit-learn, and two sets of idx files.

    digits          8×8, scikit-learn's own; the last fifth, in its order, is the test set
    mnist           28×28, LeCun, Cortes and Burges
    fashion-mnist   28×28, Xiao, Rasul and Vollgraf (2017)

The idx files are looked for in `data_dir`, else in the folder that the variable `POWERSPHERICAL_DATA` names: there or
in its subfolder of the data's name, gzipped or not. Where neither is given they are downloaded, once. Only the images
are needed, and whichever way they come, the bytes of the decompressed file must have the MD5 known for it.
"""

import gzip
import hashlib
import math
import os
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

VARIABLE = "POWERSPHERICAL_DATA"
GZIP = b"\x1f\x8b"  # how a gzipped file begins (RFC 1952), whatever its name
IDX_IMAGES = b"\0\0\x08\x03"  # how an idx file of unsigned bytes with three axes begins
IDX_HEADER = 16  # bytes: those four, then the length of each axis, big-endian

Array = np.ndarray[Any, np.dtype[Any]]


class DataError(Exception):
    """The data cannot be had, or are not what they should be; the message is one line and names the way out."""


class Images(NamedTuple):
    """A set of grey images.

    Attributes:
        name: of the data.
        train: one image a row, float32 intensities in [0, 1].
        test: likewise.
        shape: the rows and columns of an image.
    """

    name: str
    train: Tensor
    test: Tensor
    shape: tuple[int, int]


class IdxFile(NamedTuple):
    """A file of images as its authors publish it: its name without `.gz`, and the MD5 of its bytes."""

    name: str
    md5: str  # decompressed
    gz_md5: str  # as published; another gzip gives other bytes


class Source(NamedTuple):
    """Where a set of images is published: folders with the same two files, in the order they are tried."""

    mirrors: tuple[str, ...]
    train: IdxFile
    test: IdxFile


# The MD5 of the .gz files are those in the README of Fashion-MNIST and, for both, in torchvision's `datasets.mnist`.
SOURCES = {
    "mnist": Source(
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        train=IdxFile(
            "train-images-idx3-ubyte",
            md5="6bbc9ace898e44ae57da46a324031adb",
            gz_md5="f68b3c2dcbeaaa9fbdd348bbdeb94873",
        ),
        test=IdxFile(
            "t10k-images-idx3-ubyte",
            md5="2646ac647ad5339dbf082846283269ea",
            gz_md5="9fb629c4189551a2d022fa330f9573f3",
        ),
    ),
    "fashion-mnist": Source(
        mirrors=(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        train=IdxFile(
            "train-images-idx3-ubyte",
            md5="f4a8712d7a061bf5bd6d2ca38dc4d50a",
            gz_md5="8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        ),
        test=IdxFile(
            "t10k-images-idx3-ubyte",
            md5="8181f5470baa50b63fa0f6fddb340f0a",
            gz_md5="bef4ecab320f06d8554ea6380940ec79",
        ),
    ),
}
NAMES = ("digits", *SOURCES)


def load(name: str, data_dir: Path | str | None = None) -> Images:
    """The images of that name, one of `NAMES`.

    Args:
        name: "digits", "mnist" or "fashion-mnist".
        data_dir: the folder with the idx files, or with a subfolder `name` that has them. By default the folder that
            the variable `POWERSPHERICAL_DATA` names; where it is not set either, the files are downloaded into the
            user's cache.

    Raises:
        DataError: there is no such data, a file is missing or damaged, or the download failed.
    """
    if name == "digits":
        if data_dir is not None:
            raise DataError("the digits come with scikit-learn: leave out --data-dir, or name other --data")
        return _digits()
    if name not in SOURCES:
        raise DataError(f"there are no data {name!r}; choose from {', '.join(NAMES)}")
    files = (SOURCES[name].train, SOURCES[name].test)
    folder = data_dir or os.environ.get(VARIABLE)
    # Both files are there before the first is read.
    paths = [
        _find(file, name, Path(folder).expanduser()) if folder else _download(file, name) for file in files
    ]
    train, test = (_read(path, file, name) for path, file in zip(paths, files, strict=True))
    return Images(name, _intensities(train, 255), _intensities(test, 255), train.shape[1:])


def _digits() -> Images:
    from sklearn.datasets import load_digits

    images = load_digits().images
    held_out = math.ceil(len(images) / 5)
    train, test = images[:-held_out], images[-held_out:]
    return Images("digits", _intensities(train, 16), _intensities(test, 16), images.shape[1:])


def _intensities(images: Array, white: float) -> Tensor:
    """One image a row, as fractions of `white`."""
    fractions = np.divide(images, white, dtype=np.float32, casting="unsafe")
    return torch.from_numpy(fractions.reshape(len(images), -1))


def _find(file: IdxFile, name: str, folder: Path) -> Path:
    """Where the file lies in the folder or in its subfolder of the data's name, which goes first."""
    spellings = (file.name, file.name.replace("-idx3", ".idx3"))  # some mirrors write a dot
    for place in (folder / name, folder):
        for spelling in spellings:
            for path in (place / spelling, place / f"{spelling}.gz"):
                if path.is_file():
                    return path
    raise DataError(
        f"{name}: {file.name}, plain or with .gz, is neither in {folder / name} nor in {folder}; {_by_hand(name)}"
    )


def _download(file: IdxFile, name: str) -> Path:
    """The file in the user's cache, fetched from the first mirror that has it unless it is there already.

    pooch moves a file into the cache when it is whole and its checksum right, and not before.
    """
    import pooch

    gz, md5 = f"{file.name}.gz", f"md5:{file.gz_md5}"
    cache = pooch.os_cache("powerspherical") / name
    # Where it streams, pooch leaves the connection of a failed download open.
    downloader = pooch.HTTPDownloader(stream=False)
    failures = []
    for mirror in SOURCES[name].mirrors:
        try:
            return Path(pooch.retrieve(mirror + gz, md5, gz, cache, downloader=downloader))
        except (OSError, ValueError) as error:  # the network or the folder; the checksum
            # The messages of the network's errors are too long for a line.
            reason = "wrong checksum" if type(error) is ValueError else type(error).__name__
            failures.append(f"{mirror}: {reason}")
    raise DataError(f"{name}: could not download {gz} into {cache} ({', '.join(failures)}); {_by_hand(name)}")


def _by_hand(name: str) -> str:
    """The way out where a file is missing."""
    mirrors, train, test = SOURCES[name]
    return (
        f"put {train.name}.gz and {test.name}.gz from {mirrors[0]} into a folder and name it with --data-dir"
        f" or the variable {VARIABLE}, or take --data digits"
    )


def _read(path: Path, file: IdxFile, name: str) -> Array:
    try:
        return decode(path.read_bytes(), file.md5)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(
            f"{path} is not the file of {name}: {error}; its MD5 should be {file.gz_md5} gzipped or {file.md5}"
            f" decompressed: replace it by {SOURCES[name].mirrors[0]}{file.name}.gz, or take --data digits"
        ) from error


def decode(data: bytes, md5: str) -> Array:
    """The bytes of the images, in the shape (count, rows, columns), of an idx file, gzipped or not.

    The format is described on the MNIST page, yann.lecun.com/exdb/mnist.

    Raises:
        ValueError: it is not an idx file of images, not whole, or has another MD5.
        EOFError, OSError, zlib.error: it begins as a gzipped file does, but cannot be decompressed.
    """
    raw = gzip.decompress(data) if data.startswith(GZIP) else data
    if len(raw) < IDX_HEADER:
        raise ValueError(f"it ends after {len(raw)} bytes")
    if not raw.startswith(IDX_IMAGES):
        raise ValueError("it is not an idx file of images")
    shape = np.frombuffer(raw, ">u4", count=3, offset=len(IDX_IMAGES)).tolist()
    promised = IDX_HEADER + math.prod(shape)
    if len(raw) != promised:
        raise ValueError(f"it has {len(raw)} bytes where its header promises {promised}")
    found = hashlib.md5(raw, usedforsecurity=False).hexdigest()
    if found != md5:
        raise ValueError(f"its MD5 is {found} decompressed")
    return np.frombuffer(raw, np.uint8, offset=IDX_HEADER).reshape(shape)
