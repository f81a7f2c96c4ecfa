"""The images that the auto-encoders are trained on.

    digits          8×8, from scikit-learn; the last fifth is the test set
    mnist           28×28, LeCun, Cortes and Burges
    fashion-mnist   28×28, Xiao, Rasul and Vollgraf (2017)

The last two are gzipped idx files, as published. We look for them in `data_dir`, or else in the folder named by the
environment variable `POWERSPHERICAL_DATA`, directly or in a subfolder with the name of the data. If neither is given,
they are downloaded once. Their MD5 is always checked.
"""

import gzip
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

VARIABLE = "POWERSPHERICAL_DATA"
TRAIN, TEST = "train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz"

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


class Source(NamedTuple):
    """Where a data set is published: its mirrors, in the order we try them, and the MD5 of each file."""

    mirrors: tuple[str, ...]
    md5: dict[str, str]


# The MD5 sums are those in torchvision's `datasets.mnist` and in the README of Fashion-MNIST.
SOURCES = {
    "mnist": Source(
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        md5={TRAIN: "f68b3c2dcbeaaa9fbdd348bbdeb94873", TEST: "9fb629c4189551a2d022fa330f9573f3"},
    ),
    "fashion-mnist": Source(
        mirrors=(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        md5={TRAIN: "8d4fb7e6c68d591d4c3dfef9ec88bf0d", TEST: "bef4ecab320f06d8554ea6380940ec79"},
    ),
}
NAMES = ("digits", *SOURCES)


def load(name: str, data_dir: Path | str | None = None) -> Images:
    """Load a data set.

    Args:
        name: "digits", "mnist" or "fashion-mnist".
        data_dir: the folder with the files, or with a subfolder `name` that has them. Default: the folder in
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
    folder = data_dir or os.environ.get(VARIABLE)
    # Locate both files before reading the first, so that a missing one is reported at once.
    paths = [
        _find(file, name, Path(folder).expanduser()) if folder else _download(file, name)
        for file in (TRAIN, TEST)
    ]
    train, test = map(_read, paths)
    return _images(name, train, test, white=255)


def _images(name: str, train: Array, test: Array, *, white: int) -> Images:
    """Scale images (count, rows, columns) to [0, 1], with `white` as 1, and flatten them."""
    train_rows, test_rows = (
        torch.from_numpy(np.divide(each, white, dtype=np.float32, casting="unsafe")).flatten(1)
        for each in (train, test)
    )
    return Images(name, train_rows, test_rows, train.shape[1:])


def _find(file: str, name: str, folder: Path) -> Path:
    """Find a file in the subfolder `name` of a folder, or in the folder itself, and check its MD5."""
    import pooch

    path = next((path for path in (folder / name / file, folder / file) if path.is_file()), None)
    if path is None:
        raise DataError(f"{name}: neither {folder / name} nor {folder} contains {file}; {_by_hand(name)}")
    found, published = pooch.file_hash(path, "md5"), SOURCES[name].md5[file]
    if found != published:
        raise DataError(
            f"{path} is not the published file of {name}: its MD5 is {found}, not {published}; {_by_hand(name)}"
        )
    return path


def _download(file: str, name: str) -> Path:
    """Download a file into the user's cache, unless it is there already, and return its path.

    pooch puts a file into the cache only when it is complete and its MD5 is right.
    """
    import pooch

    mirrors, md5 = SOURCES[name]
    cache = pooch.os_cache("powerspherical") / name
    downloader = pooch.HTTPDownloader(stream=False)  # a failed stream would leave its connection open
    failures = []
    for mirror in mirrors:
        try:
            return Path(pooch.retrieve(mirror + file, f"md5:{md5[file]}", file, cache, downloader=downloader))
        except (OSError, ValueError) as error:  # network or folder; checksum
            # We name the type only: messages of network errors are long.
            reason = "wrong checksum" if type(error) is ValueError else type(error).__name__
            failures.append(f"{mirror}: {reason}")
    raise DataError(
        f"{name}: could not download {file} into {cache} ({', '.join(failures)}); {_by_hand(name)}"
    )


def _by_hand(name: str) -> str:
    """What to do about a file that is missing or damaged."""
    return (
        f"put {TRAIN} and {TEST} from {SOURCES[name].mirrors[0]} into a folder and give it as --data-dir"
        f" or in the environment variable {VARIABLE}, or use --data digits"
    )


def _read(path: Path) -> Array:
    """Read the images of a gzipped idx file as bytes (count, rows, columns).

    The format is described at yann.lecun.com/exdb/mnist: four bytes for the type, then the length of each axis, then
    the pixels.
    """
    raw = gzip.decompress(path.read_bytes())
    shape = np.frombuffer(raw, ">u4", count=3, offset=4)
    return np.frombuffer(raw, np.uint8, offset=16).reshape(shape)
