"""Finding files: the named folder, the cache, the download, and the sentence when all fail."""

import gzip
import hashlib
import io
import tarfile

import pytest

from atoll.data import BadData, DataMissing, load
from atoll.data.files import File, cache, download, find, read
from atoll.data.tabular import HOUSING

CONTENT = b"1,2,3\n"
FILE = File("toy/toy.data.gz", "https://example.org/toy.data", hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture(autouse=True)
def _nowhere(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ATOLL_DATA", raising=False)
    monkeypatch.setenv("ATOLL_OFFLINE", "1")


def test_the_named_folder_comes_first_then_the_cache(tmp_path, monkeypatch):
    here = cache() / "toy"
    here.mkdir(parents=True)
    (here / "toy.data").write_bytes(b"cache")
    assert read(FILE) == b"cache"
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy/toy.data.gz").write_bytes(gzip.compress(b"named"))
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path))
    assert read(FILE) == b"named"


def test_a_download_is_checked_and_kept(monkeypatch):
    monkeypatch.delenv("ATOLL_OFFLINE")
    asked = []

    def opener(url):
        asked.append(url)
        return CONTENT

    path = find(FILE, opener)
    assert path == cache() / "toy/toy.data"
    assert path.read_bytes() == CONTENT
    assert find(FILE, opener) == path
    assert asked == [FILE.url]
    assert [p.name for p in path.parent.iterdir()] == ["toy.data"]  # no half-written file beside it


def test_of_an_archive_the_member_is_kept(monkeypatch):
    monkeypatch.delenv("ATOLL_OFFLINE")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in (("Toy/readme", b"no"), ("Toy/toy.data", CONTENT)):
            about = tarfile.TarInfo(name)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    sha256 = hashlib.sha256(packed.getvalue()).hexdigest()
    file = File("toy/toy.data.gz", "https://example.org/toy.tgz", sha256, member="Toy/toy.data")
    with pytest.raises(BadData, match="sha256"):
        find(file, lambda _: packed.getvalue()[:-1])
    assert find(file, lambda _: packed.getvalue()) == cache() / "toy/toy.data"
    assert read(file) == CONTENT


def test_california_housing_is_the_archive_of_scikit_learn():
    from sklearn.datasets._california_housing import ARCHIVE

    assert (HOUSING.url, HOUSING.sha256) == (ARCHIVE.url, ARCHIVE.checksum)


def test_a_wrong_download_is_refused_and_not_kept(monkeypatch):
    monkeypatch.delenv("ATOLL_OFFLINE")
    with pytest.raises(BadData, match="sha256"):
        find(FILE, lambda _: b"something else")
    assert not cache().exists()


def test_without_network_the_sentence_says_which_file_goes_where(monkeypatch):
    with pytest.raises(DataMissing, match=r"mnist/train-images-idx3-ubyte\.gz .* put it at .*cache/atoll/data/mnist"):
        load("mnist")
    with pytest.raises(DataMissing, match=r"cannot be downloaded: put it at .* \(home: shakespeare\.mit\.edu"):
        load("shakespeare")
    with pytest.raises(DataMissing, match=r"UCI_Credit_Card\.csv\.gz .* put it at .* \(home: https://archive\.ics"):
        load("credit_default")
    monkeypatch.delenv("ATOLL_OFFLINE")

    def broken(url):
        raise OSError("no route")

    with pytest.raises(DataMissing, match=r"could not be had from https://example.org/toy.data \(no route\): put it"):
        find(FILE, broken)


def test_only_https():
    with pytest.raises(BadData, match="not https"):
        download("http://example.org/x")


def test_damaged_files(tmp_path, monkeypatch):
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    path = tmp_path / "mnist/t10k-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(bytes(1000))[:-9])
    with pytest.raises(BadData, match="damaged gzip"):
        load("mnist_t10k")
    path.write_bytes(gzip.compress(b"hello there"))
    with pytest.raises(BadData, match="not an IDX file"):
        load("mnist_t10k")
    path.write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x05abc"))
    with pytest.raises(BadData, match="cut short"):
        load("mnist_t10k")
    (tmp_path / "california_housing").mkdir()
    (tmp_path / "california_housing/cal_housing.data").write_text("1,2,3\n")
    with pytest.raises(BadData, match="9 cells a line"):
        load("california_housing")
