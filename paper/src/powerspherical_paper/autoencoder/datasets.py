"""The images that the auto-encoders are trained on.

    digits   8×8, from scikit-learn; the last fifth is the test set
    mnist    28×28, LeCun, Cortes and Burges

MNIST is two gzipped idx files, as published. We look for them in `data_dir`, or else in the folder named by the
environment variable `POWERSPHERICAL_DATA`, directly or in a subfolder `mnist`. If neither is given, they are downloaded
once. Their MD5 is always checked.
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
#: Where MNIST is published, in the order we try.
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
#: As in torchvision's `datasets.mnist`.
MD5 = {TRAIN: "f68b3c2dcbeaaa9fbdd348bbdeb94873", TEST: "9fb629c4189551a2d022fa330f9573f3"}
BY_HAND = (
    f"put {TRAIN} and {TEST} from {MIRRORS[0]} into a folder and give it as --data-dir or in the environment variable"
    f" {VARIABLE}, or use --data digits"
)

Array = np.ndarray[Any, np.dtype[Any]]


class DataError(Exception):
    """Data are missing or damaged. The message is one line and says what to do."""


class Images(NamedTuple):
    """A data set of grey images.

    Attributes:
        name: the name of the data.
        train: (images, pixels), float32 intensities in [0, 1].
        test: likewise.
    """

    name: str
    train: Tensor
    test: Tensor


def load(name: str, data_dir: Path | str | None = None) -> Images:
    """Load "digits" or "mnist".

    Args:
        name: the name of the data.
        data_dir: the folder with the files of MNIST, or with a subfolder `mnist` that has them. Default: the folder in
            `POWERSPHERICAL_DATA`; if that is not set, the files are downloaded into the user's cache.

    Raises:
        DataError: a file is missing or damaged, or the download failed.
    """
    if name == "digits":
        if data_dir is not None:
            raise DataError("the digits come with scikit-learn; leave out --data-dir or choose --data mnist")
        from sklearn.datasets import load_digits

        images = load_digits().images
        held_out = math.ceil(len(images) / 5)
        return _images(name, images[:-held_out], images[-held_out:], white=16)
    if name != "mnist":
        raise DataError(f"unknown data {name!r}; choose digits or mnist")
    folder = data_dir or os.environ.get(VARIABLE)
    # Locate both files before reading the first, so that a missing one is reported at once.
    train, test = (
        _find(file, Path(folder).expanduser()) if folder else _download(file) for file in (TRAIN, TEST)
    )
    return _images(name, _read(train), _read(test), white=255)


def _images(name: str, train: Array, test: Array, *, white: int) -> Images:
    """Scale images (count, rows, columns) to [0, 1], with `white` as 1, and flatten them."""
    train_rows, test_rows = (
        torch.from_numpy(np.divide(each, white, dtype=np.float32, casting="unsafe")).flatten(1)
        for each in (train, test)
    )
    return Images(name, train_rows, test_rows)


def _find(file: str, folder: Path) -> Path:
    """Find a file in a folder or in its subfolder `mnist`, and check its MD5."""
    import pooch

    path = next((path for path in (folder / "mnist" / file, folder / file) if path.is_file()), None)
    if path is None:
        raise DataError(f"neither {folder / 'mnist'} nor {folder} contains {file}; {BY_HAND}")
    if (found := pooch.file_hash(path, "md5")) != MD5[file]:
        raise DataError(f"{path} is not the published file: its MD5 is {found}, not {MD5[file]}; {BY_HAND}")
    return path


def _download(file: str) -> Path:
    """Download a file into the user's cache, unless it is there already, and return its path.

    pooch puts a file into the cache only when it is complete and its MD5 is right.
    """
    import pooch

    cache = pooch.os_cache("powerspherical") / "mnist"
    downloader = pooch.HTTPDownloader(stream=False)  # a failed stream would leave its connection open
    failures = []
    for mirror in MIRRORS:
        try:
            return Path(pooch.retrieve(mirror + file, f"md5:{MD5[file]}", file, cache, downloader=downloader))
        except (OSError, ValueError) as error:  # network or folder; checksum
            # We name the type only: messages of network errors are long.
            reason = "wrong checksum" if type(error) is ValueError else type(error).__name__
            failures.append(f"{mirror}: {reason}")
    raise DataError(f"could not download {file} into {cache} ({', '.join(failures)}); {BY_HAND}")


def _read(path: Path) -> Array:
    """Read the images of a gzipped idx file as bytes (count, rows, columns).

    The format is described at yann.lecun.com/exdb/mnist: four bytes for the type, then the length of each axis, then
    the pixels.
    """
    raw = gzip.decompress(path.read_bytes())
    shape = np.frombuffer(raw, ">u4", count=3, offset=4)
    return np.frombuffer(raw, np.uint8, offset=16).reshape(shape)
