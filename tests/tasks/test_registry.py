"""Test data sets: the real files if available, and small ones in the publishers' formats."""

import gzip
import hashlib
import io
import json
import os
import pickle
import tarfile
from dataclasses import fields, replace
from email.message import Message
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lanes import examples
from mopbt.errors import DataMissing, MissingExtra, MopbtError
from mopbt.tasks import image_io, registry, tabular_io
from mopbt.tasks.adult import CATEGORICAL, load_adult
from mopbt.tasks.datasets import PARTS, ImageRows, Tabular, TabularRows, subset
from mopbt.tasks.image_io import ArrayUnpickler
from mopbt.tasks.registry import explain, load_images, load_tabular, state
from mopbt.tasks.tabular_io import Columns, prepare

SHARED = Path(
    os.environ.get("MOPBT_DATA") or Path(__file__).resolve().parents[2].parent / "shared" / "data"
)
COMPACT = {
    "higgs": "higgs_small_part.npz",
    "click": "click_prediction_small.csv.gz",
    "cifar10": "cifar10_12k.npz",
    "cifar100": "cifar100_12k.npz",
    "celeba": "celeba_15k_39x32.npz",
}
TABLES, PICTURES = ("adult", "higgs", "click"), ("cifar10", "cifar100", "celeba")


def refuse(*_, **__):
    raise URLError("no network")


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """Isolate a test: its own cache, no network, no environment variables."""
    import sklearn.datasets._openml as openml

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MOPBT_DATA", raising=False)
    monkeypatch.setattr(registry, "urlopen", refuse)
    monkeypatch.setattr(openml, "urlopen", refuse)
    monkeypatch.setattr("time.sleep", lambda seconds: None)


def load(name, folder=None):
    return (load_tabular if name in TABLES else load_images)(name, folder)


def parts(found):
    return [getattr(found, part) for part in PARTS]


def columns(part):
    return {field.name: getattr(part, field.name) for field in fields(part)}


def assert_same(one, other):
    assert type(one) is type(other)
    for mine, theirs in zip(parts(one), parts(other), strict=True):
        for name, column in columns(mine).items():
            np.testing.assert_array_equal(column, columns(theirs)[name])
            assert column is None or column.dtype == columns(theirs)[name].dtype
    if isinstance(one, Tabular):
        assert (one.cardinalities, one.substituted) == (other.cardinalities, other.substituted)


def cached():
    return sorted((registry.cache_folder() / "prepared").iterdir())


# The real data.


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Return a function that loads a compact file once, or skips the test if it is missing."""
    kept, place = {}, tmp_path_factory.mktemp("cache")

    def get(name):
        if name in COMPACT and not (SHARED / COMPACT[name]).is_file():
            pytest.skip(f"{COMPACT[name]} is not in {SHARED}")
        if name not in kept:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("XDG_CACHE_HOME", str(place))
                kept[name] = load(name, SHARED)
        return kept[name]

    return get


@pytest.mark.slow
def test_adult_has_the_papers_sizes_and_shares(real):
    found = real("adult")
    assert [len(part.target) for part in parts(found)] == [26_048, 6_513, 16_281]
    assert [part.target.sum() for part in parts(found)] == [6_273, 1_568, 3_846]
    every = [
        np.concatenate([columns(part)[name] for part in parts(found)])
        for name in ("target", "sensitive")
    ]
    assert every[1].mean() == pytest.approx(0.6685, abs=5e-5)
    assert every[0][every[1] == 1].mean() == pytest.approx(0.304, abs=5e-4)
    assert every[0][every[1] == 0].mean() == pytest.approx(0.109, abs=5e-4)
    assert found.train.numeric.shape[1] == 6
    assert not found.substituted


def test_adult_rows_are_those_of_the_published_split(real):
    if not (SHARED / "adult_split.npz").is_file():
        pytest.skip(f"the published split is not in {SHARED}")
    import pandas as pd

    table, found = pd.read_csv(SHARED / "adult.csv.gz"), real("adult")
    with np.load(SHARED / "adult_split.npz") as split:
        for part, name in zip(parts(found), ("train", "val", "test"), strict=True):
            rows = table.iloc[split[name]]
            np.testing.assert_array_equal(part.target, rows["income"] == ">50K")
            np.testing.assert_array_equal(part.sensitive, rows["sex"] == "Male")
            order = np.argsort(rows["age"].to_numpy(), kind="stable")
            # Quantiles keep the order.
            assert (np.diff(part.numeric[order, 0]) >= 0).all()


def test_adult_codes_are_the_categories_of_training_in_order_and_0_for_others(real):
    import pandas as pd

    found, raw = real("adult"), load_adult()
    for j, name in enumerate(CATEGORICAL):
        known = sorted(set(raw.categorical[raw.train, j].tolist()))
        assert found.cardinalities[j] == len(known) + 1
        for part, rows in zip(parts(found), (raw.train, raw.val, raw.test), strict=True):
            codes = pd.Categorical(raw.categorical[rows, j], categories=known).codes + 1
            np.testing.assert_array_equal(part.categorical[:, j], codes, err_msg=name)
    assert "?" in raw.categorical[raw.train, CATEGORICAL.index("occupation")]
    np.testing.assert_array_equal(
        found.train.sensitive, found.train.categorical[:, CATEGORICAL.index("sex")] - 1
    )


def test_higgs_validation_and_test_are_the_papers_and_training_is_marked_as_substituted(real):
    found = real("higgs")
    assert [part.numeric.shape for part in parts(found)] == [
        (15_716, 28),
        (15_688, 28),
        (19_610, 28),
    ]
    assert [part.target.sum() for part in parts(found)[1:]] == [8_292, 10_365]
    assert found.substituted
    assert found.cardinalities == ()
    assert found.train.categorical.shape == (15_716, 0)


def test_click_is_split_three_to_one_to_one(real):
    found = real("click")
    assert [part.numeric.shape for part in parts(found)] == [(23_968, 11), (7_990, 11), (7_990, 11)]
    assert [part.target.mean() for part in parts(found)] == pytest.approx([0.1684] * 3, abs=1e-4)
    assert not found.substituted


def test_click_is_split_as_the_authors_split_what_is_not_for_testing(real):
    import pandas as pd
    from sklearn.model_selection import StratifiedShuffleSplit
    from sklearn.preprocessing import QuantileTransformer

    found = real("click")
    table = pd.read_csv(SHARED / COMPACT["click"])
    y = table["click"].to_numpy()
    rest, test = next(StratifiedShuffleSplit(1, test_size=7_990, random_state=0).split(y, y))
    train, val = (
        rest[rows]
        for rows in next(
            StratifiedShuffleSplit(1, test_size=7_990, random_state=0).split(rest, y[rest])
        )
    )
    x = table.drop(columns="click").to_numpy(float)
    fitted = QuantileTransformer(
        n_quantiles=798, output_distribution="normal", subsample=10**9, random_state=42
    ).fit(x[train])
    for part, rows in zip(parts(found), (train, val, test), strict=True):
        np.testing.assert_array_equal(part.target, y[rows])
        np.testing.assert_array_equal(part.numeric, fitted.transform(x[rows]).astype(np.float32))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_cifar_is_split_by_class_and_its_images_are_whole(real, name, classes):
    from sklearn.model_selection import StratifiedShuffleSplit

    found = real(name)
    assert [part.x.shape for part in parts(found)] == [
        (8_000, 3, 32, 32),
        (2_000, 3, 32, 32),
        (2_000, 3, 32, 32),
    ]
    for part in parts(found):
        assert (np.bincount(part.y, minlength=classes) == len(part.y) // classes).all()
        assert part.sensitive is None
    with np.load(SHARED / COMPACT[name]) as file:
        x, y = file["x_train"], file["y_train"]
        test = file["x_test"]
    train, val = next(StratifiedShuffleSplit(1, test_size=2_000, random_state=0).split(y, y))
    for part, rows in ((found.train, train), (found.validation, val)):
        np.testing.assert_array_equal(part.y, y[rows])
        np.testing.assert_array_equal(part.x.transpose(0, 2, 3, 1), x[rows])
    np.testing.assert_array_equal(found.test.x.transpose(0, 2, 3, 1), test)


def test_celeba_has_its_sizes_and_shares(real):
    found = real("celeba")
    assert [part.x.shape for part in parts(found)] == [
        (10_000, 3, 39, 32),
        (2_000, 3, 39, 32),
        (3_000, 3, 39, 32),
    ]
    y, male = found.train.y, found.train.sensitive
    assert (y.mean(), male.mean()) == pytest.approx((0.487, 0.444), abs=5e-4)
    assert (y[male == 1].mean(), y[male == 0].mean()) == pytest.approx((0.258, 0.671), abs=5e-4)
    with np.load(SHARED / COMPACT["celeba"]) as file:
        np.testing.assert_array_equal(found.validation.x[7, 1], file["x_val"][7, :, :, 1])


@pytest.mark.parametrize("name", [*TABLES, *PICTURES])
def test_arrays_have_the_promised_types_and_rows(real, name):
    kinds = {"numeric": np.float32, "x": np.uint8}
    for part in parts(real(name)):
        given = {field: column for field, column in columns(part).items() if column is not None}
        assert {field: column.dtype for field, column in given.items()} == {
            f: kinds.get(f, np.int64) for f in given
        }
        assert len({len(column) for column in given.values()}) == 1
        assert ("sensitive" in given) == (name in ("adult", "celeba"))
        if name in TABLES:
            assert np.isfinite(part.numeric).all()


@pytest.mark.parametrize("name", list(COMPACT))
def test_compact_files_are_found_through_the_environment(name, monkeypatch, tmp_path):
    monkeypatch.setenv("MOPBT_DATA", str(tmp_path))
    assert state(name) == "missing"
    (tmp_path / COMPACT[name]).write_bytes(b"")
    assert state(name) == "present"
    assert explain(name).startswith(COMPACT[name])
    with pytest.raises(
        DataMissing, match=f"{COMPACT[name]} is damaged or a different file: its sha256 is e3b0c"
    ):
        load(name)


# Preparation.


def table(numeric, categorical=None, target=None, sensitive=None):
    numeric = np.asarray(numeric, float)
    categorical = (
        np.empty((len(numeric), 0), np.str_) if categorical is None else np.asarray(categorical)
    )
    return Columns(
        numeric,
        categorical,
        np.zeros(len(numeric)) if target is None else np.asarray(target),
        sensitive,
    )


def drawn(seed, n=60):
    rng = np.random.default_rng(seed)
    numeric = rng.lognormal(size=(n, 3))
    numeric[rng.random((n, 3)) < 0.1] = np.nan
    return table(
        numeric,
        rng.choice(["?", "a", "b", "nan"], (n, 2)),
        rng.integers(0, 2, n),
        rng.integers(0, 2, n),
    )


@pytest.mark.parametrize(("n", "quantiles"), [(60, 10), (900, 30), (31_000, 1000)])
def test_numbers_are_imputed_and_made_normal_as_scikit_learn_does_it(n, quantiles):
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import QuantileTransformer

    raw = [drawn(seed, n) for seed in range(3)]
    normal = QuantileTransformer(
        n_quantiles=quantiles, output_distribution="normal", subsample=10**9, random_state=42
    )
    direct = make_pipeline(SimpleImputer(), normal).fit(raw[0].numeric)
    for part, columns in zip(parts(prepare(*raw)), raw, strict=True):
        np.testing.assert_allclose(
            part.numeric, direct.transform(columns.numeric), rtol=1e-6, atol=1e-6
        )


def test_missing_categories_are_categories_and_unseen_ones_are_0():
    train = table(np.arange(12)[:, None], [["?"], ["b"], ["nan"]] * 4)
    other = table(np.arange(5)[:, None], [["nan"], ["?"], ["c"], [""], ["b"]])
    found = prepare(train, other, other)
    assert found.train.categorical[:3, 0].tolist() == [1, 2, 3]
    assert found.validation.categorical[:, 0].tolist() == [3, 1, 0, 0, 2]
    assert found.cardinalities == (4,)


@examples(25)
@given(st.integers(0, 1000), st.integers(0, 1000))
def test_what_is_learned_comes_from_the_training_rows_alone(seed, other):
    train, test = drawn(1), drawn(2)
    ours = prepare(train, drawn(3), test)
    strange = drawn(seed, 30)._replace(categorical=np.full((30, 2), f"new{other}"))
    theirs = prepare(train, strange._replace(numeric=strange.numeric * 1e6 + other), test)
    for mine, same in ((ours.train, theirs.train), (ours.test, theirs.test)):
        for name, column in columns(mine).items():
            np.testing.assert_array_equal(column, columns(same)[name])
    assert ours.cardinalities == theirs.cardinalities
    assert not theirs.validation.categorical.any()


def test_a_table_may_have_categories_only():
    train = table(np.empty((3, 0)), [["a"], ["b"], ["a"]])
    assert prepare(train, train, train).train.numeric.shape == (3, 0)


# Publishers' formats.


class OldPickler(pickle._Pickler):
    """Pickle like Python 2, which CIFAR was published with.

    Strings are bytes, and numpy's modules have their old names.
    """

    dispatch = dict(pickle._Pickler.dispatch)

    def save_string(self, value):
        self.write(b"T" + len(value).to_bytes(4, "little") + value)
        self.memoize(value)

    dispatch[bytes] = save_string


def old_pickle(value):
    file = io.BytesIO()
    OldPickler(file, 2).dump(value)
    return file.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def cifar_batches(name, seed=0):
    """Return pixels and labels by batch.

    CIFAR-10 has 100 images of each class, CIFAR-100 has five.
    """
    rng = np.random.default_rng(seed)
    if name == "cifar10":
        names = {f"data_batch_{i}": (40, "labels") for i in range(1, 6)} | {
            "test_batch": (20, "labels")
        }
    else:
        names = {"train": (500, "fine_labels"), "test": (100, "fine_labels")}
    classes, batches = 10 if name == "cifar10" else 100, {}
    for batch, (n, labels) in names.items():
        y = rng.permutation(np.arange(n) % classes)
        batches[batch] = {
            b"data": rng.integers(0, 256, (n, 3072), np.uint8),
            labels.encode(): y.tolist(),
            b"batch_label": b"a batch",
            b"filenames": [b"leptodactylus_pentadactylus_s_%06d.png" % i for i in range(n)],
        }
        if name == "cifar100":
            batches[batch][b"coarse_labels"] = (y // 5).tolist()
    return batches


FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
ARCHIVES = {"cifar10": "cifar-10-python.tar.gz", "cifar100": "cifar-100-python.tar.gz"}


def write_unpacked(folder, name, batches):
    (folder / FOLDERS[name]).mkdir(parents=True)
    for batch, content in batches.items():
        (folder / FOLDERS[name] / batch).write_bytes(
            content if isinstance(content, bytes) else old_pickle(content)
        )


def archive(name, batches):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as made:
        for batch, content in {"readme.html": b"<html>", **batches}.items():
            packed = content if isinstance(content, bytes) else old_pickle(content)
            member = tarfile.TarInfo(f"{FOLDERS[name]}/{batch}")
            member.size = len(packed)
            made.addfile(member, io.BytesIO(packed))
    return file.getvalue()


def expect(monkeypatch, name, sha256):
    """Replace the checksum of the published archive by that of a generated one."""
    known = registry.DATASETS[name]
    fetch = registry.partial(registry._download, known.fetch.args[0], sha256)
    changed = replace(
        known, forms=(replace(known.forms[0], sha256=sha256), *known.forms[1:]), fetch=fetch
    )
    monkeypatch.setattr(registry, "DATASETS", {**registry.DATASETS, name: changed})


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def test_a_made_batch_is_what_python_2_wrote():
    import pickletools

    codes = [
        code.name
        for code, *_ in pickletools.genops(old_pickle(cifar_batches("cifar10")["data_batch_1"]))
    ]
    assert "BINSTRING" in codes
    assert not any("BYTES" in code for code in codes)
    assert b"cnumpy.core.multiarray\n_reconstruct\n" in old_pickle(np.zeros(3, np.uint8))


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_as_it_is_published_packed_and_unpacked(name, monkeypatch, tmp_path):
    from sklearn.model_selection import StratifiedShuffleSplit

    batches = cifar_batches(name)
    write_unpacked(tmp_path / "unpacked", name, batches)
    packed = archive(name, batches)
    expect(monkeypatch, name, sha256(packed))
    (tmp_path / ARCHIVES[name]).write_bytes(packed)
    found = load_images(name, tmp_path)
    assert_same(found, load_images(name, tmp_path / "unpacked"))
    *train, test = batches.values()
    label = b"labels" if name == "cifar10" else b"fine_labels"
    x = np.concatenate([batch[b"data"] for batch in train])
    y = np.concatenate([batch[label] for batch in train])
    rows, held = next(StratifiedShuffleSplit(1, test_size=len(y) // 5, random_state=0).split(y, y))
    for part, pixels, labels in (
        (found.train, x[rows], y[rows]),
        (found.validation, x[held], y[held]),
        (found.test, test[b"data"], test[label]),
    ):
        np.testing.assert_array_equal(part.y, labels)
        assert part.x.shape == (len(labels), 3, 32, 32)
        # A row of pixels has the red, green and blue planes, each row by row.
        assert part.x[3, 1, 5, 7] == pixels[3, 1024 + 5 * 32 + 7]
        np.testing.assert_array_equal(part.x.reshape(len(labels), -1), pixels)


def test_a_folder_counts_when_all_its_files_are_there(tmp_path):
    write_unpacked(tmp_path, "cifar10", cifar_batches("cifar10"))
    assert state("cifar10", tmp_path) == "present"
    (tmp_path / FOLDERS["cifar10"] / "test_batch").unlink()
    assert state("cifar10", tmp_path) == "missing"


def test_the_whole_data_set_is_preferred_to_a_part(tmp_path):
    (tmp_path / COMPACT["cifar10"]).write_bytes(b"")
    assert (
        explain("cifar10", tmp_path)
        == "cifar10_12k.npz, 10,000 of the training and 2,000 of the test images"
    )
    write_unpacked(tmp_path, "cifar10", cifar_batches("cifar10"))
    assert explain("cifar10", tmp_path) == "cifar-10-batches-py, all 60,000 images"


class Touch:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize(
    "pickled", [lambda value: old_pickle(value), pickle.dumps], ids=["old", "new"]
)
def test_a_pickle_that_would_run_code_is_refused_and_runs_none(pickled, tmp_path):
    batches, marker = cifar_batches("cifar100"), tmp_path / "was-here"
    evil = pickled({b"x": Touch(marker), **batches["train"]})
    write_unpacked(tmp_path, "cifar100", batches | {"train": evil})
    with pytest.raises(
        DataMissing,
        match=r"cannot read .*cifar-100-python: .*(posix|nt)\.mkdir; only arrays",
    ):
        load_images("cifar100", tmp_path)
    assert not marker.exists()
    # The standard unpickler runs the same bytes.
    pickle.loads(evil, encoding="bytes")
    assert marker.exists()


@pytest.mark.parametrize(
    "named",
    [
        "os system",
        "builtins eval",
        "builtins getattr",
        "numpy load",
        "numpy.core.multiarray scalar",
        "_codecs encode",
    ],
)
def test_only_what_arrays_are_made_of_may_be_named(named):
    module, name = named.split()
    with pytest.raises(pickle.UnpicklingError, match=f"refers to {module}.{name}; only arrays"):
        ArrayUnpickler(io.BytesIO(f"c{module}\n{name}\n.".encode())).load()
    array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    for protocol in (3, 4):
        np.testing.assert_array_equal(
            ArrayUnpickler(io.BytesIO(pickle.dumps([array, 1, "a", 2.5], protocol))).load()[0],
            array,
        )


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_batch_is_an_error(share, tmp_path):
    batches = cifar_batches("cifar100")
    complete = old_pickle(batches["train"])
    write_unpacked(
        tmp_path, "cifar100", batches | {"train": complete[: int(share * len(complete))]}
    )
    with pytest.raises(
        DataMissing, match=r"cannot read .*cifar-100-python: .*; download it again or delete it"
    ):
        load_images("cifar100", tmp_path)


def test_a_batch_of_another_shape_is_an_error(tmp_path):
    batches = cifar_batches("cifar100")
    batches["train"][b"data"] = batches["train"][b"data"][:, :-1]
    write_unpacked(tmp_path, "cifar100", batches)
    with pytest.raises(
        DataMissing, match=r"must be uint8 of shape \(500, 3072\), got uint8 of shape \(500, 3071\)"
    ):
        load_images("cifar100", tmp_path)


def test_an_archive_without_a_batch_is_an_error(monkeypatch, tmp_path):
    batches = cifar_batches("cifar10")
    del batches["data_batch_3"]
    packed = archive("cifar10", batches)
    expect(monkeypatch, "cifar10", sha256(packed))
    (tmp_path / ARCHIVES["cifar10"]).write_bytes(packed)
    with pytest.raises(DataMissing, match="has no cifar-10-batches-py/data_batch_3"):
        load_images("cifar10", tmp_path)


@pytest.fixture
def celeba(tmp_path):
    """Write a small CelebA in the publisher's layout; return its folder and contents."""
    from PIL import Image

    rng, place = np.random.default_rng(0), tmp_path / "celeba"
    (place / "img_align_celeba").mkdir(parents=True)
    names = ["5_o_Clock_Shadow", "Arched_Eyebrows", "Attractive", "Bald", "Male", "Young"]
    signs = np.where(rng.random((12, len(names))) < 0.5, 1, -1)
    pixels = np.kron(rng.integers(0, 256, (12, 12, 10, 3)), np.ones((1, 19, 19, 1)))[
        :, :218, :178
    ].astype(np.uint8)
    lines = ["12", " ".join(names) + " "]
    partition = []
    for i in range(12):
        name = f"{i + 1:06d}.{'png' if i == 4 else 'jpg'}"
        Image.fromarray(pixels[i]).save(
            place / "img_align_celeba" / name, **({} if i == 4 else {"quality": 95})
        )
        lines.append(name + " " + " ".join(f"{sign:2d}" for sign in signs[i]))
        partition.append(f"{name} {(0, 0, 1, 2)[i % 4]}")
    (place / "list_attr_celeba.txt").write_text("\n".join(lines) + "\n")
    (place / "list_eval_partition.txt").write_text("\n".join(partition) + "\n")
    return place, signs


def test_celeba_as_it_is_published(celeba):
    import torch
    from PIL import Image

    place, signs = celeba
    found = load_images("celeba", place.parent)
    assert state("celeba", place.parent) == "present"
    for part, wanted in zip(parts(found), ((0, 1), (2,), (3,)), strict=True):
        rows = [i for i in range(12) if i % 4 in wanted]
        assert part.x.shape == (len(rows), 3, 39, 32)
        np.testing.assert_array_equal(part.y, signs[rows, 2] == 1)
        np.testing.assert_array_equal(part.sensitive, signs[rows, 4] == 1)
        for x, i in zip(part.x, rows, strict=True):
            (file,) = (place / "img_align_celeba").glob(f"{i + 1:06d}.*")
            complete = (
                torch.from_numpy(np.array(Image.open(file).convert("RGB")))
                .permute(2, 0, 1)[None]
                .float()
            )
            small = torch.nn.functional.interpolate(
                complete, (39, 32), mode="bilinear", antialias=True
            )[0]
            # Pillow rounds twice.
            assert np.abs(x - small.numpy()).max() <= 1.01


def test_the_short_side_of_an_image_becomes_32(tmp_path):
    from PIL import Image

    for size, shape in (
        ((178, 218), (39, 32)),
        ((218, 178), (32, 39)),
        ((64, 64), (32, 32)),
        ((100, 199), (63, 32)),
    ):
        Image.new("L", size, 7).save(tmp_path / "x.png")
        x = image_io._resize([tmp_path / "x.png"])
        assert x.shape == (1, 3, *shape)
        assert (x == 7).all()


def test_celeba_with_missing_lists_or_images_is_an_error(celeba):
    place, _ = celeba
    (place / "img_align_celeba" / "000003.jpg").unlink()
    with pytest.raises(DataMissing, match=r"cannot read .*000003\.jpg"):
        load_images("celeba", place.parent)
    attributes = place / "list_attr_celeba.txt"
    attributes.write_text("".join(attributes.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(DataMissing, match="must have 12 rows, as its first line says, got 11"):
        load_images("celeba", place.parent)
    attributes.unlink()
    assert state("celeba", place.parent) == "missing"


def test_without_pillow_the_package_is_named(celeba, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(MissingExtra, match="pip install pillow"):
        load_images("celeba", celeba[0].parent)


# OpenML.


def openml_arff(name, n=80):
    """Return a small file in OpenML's format and its contents; Higgs has a missing value."""
    rng = np.random.default_rng(1)
    target, features = (
        ("class", ["lepton_pT", "lepton_eta"])
        if name == "higgs"
        else ("click", ["impression", "url_hash", "ad_id"])
    )
    y = rng.permutation(np.arange(n) % 4 == 0).astype(int)
    x = (
        rng.normal(size=(n, len(features)))
        if name == "higgs"
        else np.floor(rng.random((n, len(features))) * 1.8e19)
    )
    if name == "higgs":
        x[5, 1] = np.nan
    heads = [
        f"@ATTRIBUTE {target} {{0,1}}",
        *(f"@ATTRIBUTE {feature} NUMERIC" for feature in features),
    ]
    cells = [
        [str(label), *("?" if np.isnan(v) else repr(float(v)) for v in row)]
        for label, row in zip(y, x, strict=True)
    ]
    text = "\n".join(
        [f"% {name}", f"@RELATION {name}", "", *heads, "", "@DATA", *map(",".join, cells), ""]
    )
    return text.encode(), x, y


NUMBERS = {"higgs": 23512, "click": 1220}


class Answer(io.BytesIO):
    def info(self):
        return Message()


def serve_openml(monkeypatch, name, arff, md5=None):
    """Answer scikit-learn's requests as OpenML does."""
    import sklearn.datasets._openml as openml

    number = NUMBERS[name]
    _, x, _ = openml_arff(name)
    lines = [
        line.split()[1] for line in arff.decode().splitlines() if line.startswith("@ATTRIBUTE")
    ]
    address = f"https://api.openml.org/data/v1/download/{number}0/{name}.arff"
    common = {"is_ignore": "false", "is_row_identifier": "false", "number_of_missing_values": "0"}
    kinds = [{"data_type": "nominal", "nominal_value": ["0", "1"], "is_target": "true"}]
    kinds += [{"data_type": "numeric", "is_target": "false"}] * x.shape[1]
    described = {
        "id": str(number),
        "name": name,
        "version": "1",
        "format": "ARFF",
        "status": "active",
        "url": address,
    }
    described |= {
        "md5_checksum": md5 or hashlib.md5(arff).hexdigest(),
        "description": name,
        "file_id": f"{number}0",
    }
    listed = [
        {"index": str(i), "name": line, **common, **kind}
        for i, (line, kind) in enumerate(zip(lines, kinds, strict=True))
    ]
    qualities = [{"name": "NumberOfInstances", "value": f"{len(x)}.0"}]
    answers = {
        f"data/{number}": json.dumps({"data_set_description": described}).encode(),
        f"data/features/{number}": json.dumps({"data_features": {"feature": listed}}).encode(),
        f"data/qualities/{number}": json.dumps({"data_qualities": {"quality": qualities}}).encode(),
        f"{number}0/{name}.arff": arff,
    }

    def answer(request, **_):
        (found,) = [content for end, content in answers.items() if request.full_url.endswith(end)]
        return Answer(found)

    monkeypatch.setattr(openml, "urlopen", answer)


@pytest.mark.parametrize("name", ["higgs", "click"])
def test_openml_is_asked_once_and_gives_what_its_file_gives(name, monkeypatch, tmp_path):
    arff, x, y = openml_arff(name)
    serve_openml(monkeypatch, name, arff)
    assert state(name, tmp_path / "web") == "missing"
    fetched = load_tabular(name, tmp_path / "web")
    monkeypatch.setattr("sklearn.datasets._openml.urlopen", refuse)
    assert state(name, tmp_path / "web") == "present"
    assert_same(fetched, load_tabular(name, tmp_path / "web"))
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / f"openml-{NUMBERS[name]}.arff").write_bytes(arff)
    assert_same(fetched, load_tabular(name, tmp_path / "file"))
    sizes = [len(part.target) for part in parts(fetched)]
    assert sizes == ([52, 12, 16] if name == "higgs" else [48, 16, 16])
    assert sum(part.target.sum() for part in parts(fetched)) == y.sum() == 20
    assert [path.name for path in (tmp_path / "web").iterdir()] == [f"openml-{NUMBERS[name]}.npz"]
    with np.load(tmp_path / "web" / f"openml-{NUMBERS[name]}.npz") as file:
        np.testing.assert_array_equal(file["x"], x)
        np.testing.assert_array_equal(file["y"], y)


def test_the_sizes_of_the_papers_higgs_come_out():
    y = np.arange(98_050) < 51_827
    x = np.random.default_rng(0).normal(size=(98_050, 1))
    found = tabular_io._split_in_three(x, y.astype(float), as_large_as_test=False)
    assert [len(part.target) for part in parts(found)] == [62_752, 15_688, 19_610]
    assert [part.target.sum() for part in parts(found)] == [33_170, 8_292, 10_365]


def published_split():
    """Return the files of a small table in the format of the FT-Transformer's archive."""
    rng = np.random.default_rng(0)
    files = {}
    for part, n in (("train", 90), ("val", 30), ("test", 40)):
        x = rng.normal(size=(n, 28)).astype(np.float32)
        if part == "train":
            x[3, 5] = np.nan
        for kind, array in (("N", x), ("y", rng.integers(0, 2, n)), ("idx", np.arange(n))):
            file = io.BytesIO()
            np.save(file, array)
            files[f"{kind}_{part}.npy"] = file.getvalue()
    return files


def pack(path, files, folder):
    with tarfile.open(path, "w:gz") as archive:
        for name, data in {**files, "../adult/N_train.npy": b"another table"}.items():
            about = tarfile.TarInfo(f"{folder}/{name}")
            about.size = len(data)
            archive.addfile(about, io.BytesIO(data))


@pytest.mark.parametrize("folder", ["data/higgs_small", "./data/higgs_small"])
def test_higgs_in_the_papers_own_split_packed_and_unpacked(folder, tmp_path):
    files = published_split()
    packed = tmp_path / "packed"
    packed.mkdir()
    pack(packed / "data.tar.gz", files, folder)
    # The paper's split is preferred to others.
    (packed / "openml-23512.arff").touch()
    (packed / "higgs_small_part.npz").touch()
    found = load("higgs", packed)
    assert [len(part.target) for part in parts(found)] == [90, 30, 40]
    for part, name in zip(parts(found), ("train", "val", "test"), strict=True):
        expected = np.load(io.BytesIO(files[f"y_{name}.npy"]))
        np.testing.assert_array_equal(part.target, expected)
        # The quantile transform is monotone, so the order of a column stays.
        x = np.load(io.BytesIO(files[f"N_{name}.npy"]))[:, 0]
        assert (np.diff(part.numeric[np.argsort(x), 0]) >= 0).all()
    assert np.isfinite(found.train.numeric).all()
    assert not found.substituted
    assert not registry.partial_data("higgs", packed)
    for place in ("data/higgs_small", "higgs_small"):
        unpacked = tmp_path / place.replace("/", "-")
        (unpacked / place).mkdir(parents=True)
        for name, data in files.items():
            (unpacked / place / name).write_bytes(data)
        assert_same(load("higgs", unpacked), found)


def test_an_archive_without_higgs_is_an_error(tmp_path):
    pack(tmp_path / "data.tar.gz", published_split(), "data/covtype")
    with pytest.raises(DataMissing, match="the archive has no higgs_small/N_train.npy"):
        load("higgs", tmp_path)


def test_what_openml_sends_is_checked(monkeypatch, tmp_path):
    serve_openml(monkeypatch, "click", openml_arff("click")[0], md5="0" * 32)
    with pytest.raises(
        DataMissing,
        match="'click' not found, and the download failed .*md5 checksum.*openml-1220.arff",
    ):
        load_tabular("click", tmp_path)
    assert list(tmp_path.glob("openml*")) == []


# Downloads, missing data, the cache.


def serve(monkeypatch, content):
    asked = []

    def answer(url, timeout):
        asked.append(url)
        return io.BytesIO(content)

    monkeypatch.setattr(registry, "urlopen", answer)
    return asked


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_is_downloaded_once(name, monkeypatch, tmp_path):
    packed = archive(name, cifar_batches(name))
    expect(monkeypatch, name, sha256(packed))
    asked = serve(monkeypatch, packed)
    folder = tmp_path / "made" / "here"
    found = load_images(name, folder)
    assert_same(found, load_images(name, folder))
    assert asked == [f"https://www.cs.toronto.edu/~kriz/{ARCHIVES[name]}"]
    assert [path.name for path in folder.iterdir()] == [ARCHIVES[name]]


@pytest.mark.parametrize("cut", [0, 1000, -1])
def test_a_truncated_download_is_an_error_and_not_kept(cut, monkeypatch, tmp_path):
    packed = archive("cifar10", cifar_batches("cifar10"))
    expect(monkeypatch, "cifar10", sha256(packed))
    serve(monkeypatch, packed[:cut])
    with pytest.raises(
        DataMissing,
        match=f"'cifar10' not found, and .* failed .*{sha256(packed)}.*: put cifar-10",
    ):
        load_images("cifar10", tmp_path)
    assert list(tmp_path.glob("cifar*")) == []


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_an_archive_with_another_checksum_is_refused(name, tmp_path):
    (tmp_path / ARCHIVES[name]).write_bytes(archive(name, cifar_batches(name)))
    with pytest.raises(
        DataMissing,
        match=f"{ARCHIVES[name]} is damaged or a different file: .*; download it again",
    ):
        load_images(name, tmp_path)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("higgs", "openml.org/d/23512, saved as openml-23512.arff"),
        ("click", "openml.org/d/1220, saved as openml-1220.arff"),
        ("cifar10", "cifar-10-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html"),
        ("cifar100", "cifar-100-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html"),
        (
            "celeba",
            "a folder celeba with img_align_celeba/, list_attr_celeba.txt and "
            "list_eval_partition.txt from https://mmlab",
        ),
    ],
)
def test_without_a_network_the_message_says_what_to_put_where(name, wanted, tmp_path):
    assert state(name, tmp_path) == "missing"
    assert wanted in explain(name, tmp_path)
    with pytest.raises(DataMissing) as raised:
        load(name, tmp_path)
    message = str(raised.value)
    assert f"data set {name!r} not found" in message
    assert ("no network" in message) == (name != "celeba")
    assert f"put {registry.DATASETS[name].wanted} into {tmp_path}" in message
    assert "MOPBT_DATA" in message
    assert isinstance(raised.value, MopbtError)


def test_adult_comes_with_the_package(tmp_path):
    assert state("adult", tmp_path) == "shipped"
    assert explain("adult", tmp_path) == "adult.csv.gz, the paper's split of 48,842 rows"


def test_the_folder_is_the_argument_or_the_environments_or_the_cache(monkeypatch, tmp_path):
    assert registry.data_folder(None) == tmp_path / "cache" / "mopbt"
    monkeypatch.setenv("MOPBT_DATA", "/there")
    assert registry.data_folder(None) == Path("/there")
    assert registry.data_folder("here") == Path("here")
    assert registry.data_folder("~/data") == Path.home() / "data"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert registry.cache_folder() == Path.home() / ".cache" / "mopbt"


def test_unknown_names_are_errors():
    with pytest.raises(
        ValueError,
        match="one of 'adult', 'higgs', 'click', 'cifar10', 'cifar100', 'celeba', got 'x'",
    ):
        state("x")
    with pytest.raises(
        ValueError, match="`name` must be one of 'adult', 'higgs', 'click', got 'cifar10'"
    ):
        load_tabular("cifar10")
    with pytest.raises(
        ValueError, match="`name` must be one of 'cifar10', 'cifar100', 'celeba', got 'adult'"
    ):
        load_images("adult")


def test_every_data_set_says_where_it_is_from_and_under_which_license():
    assert set(registry.DATASETS) == {*TABLES, *PICTURES}
    for known in registry.DATASETS.values():
        assert known.source.startswith("https://")
        assert known.license
        assert known.shipped or known.wanted
        # The checksum of what a user downloads by hand is unknown.
        by_hand = ("openml", "data.tar.gz")
        assert all(
            form.needs or form.sha256 or form.path.startswith(by_hand) for form in known.forms
        )


@pytest.fixture
def click(tmp_path):
    """Write a small Click prediction file and return its folder."""
    (tmp_path / "openml-1220.arff").write_bytes(openml_arff("click")[0])
    return tmp_path


def test_what_is_prepared_is_kept_and_used(click, celeba, monkeypatch):
    first = load_tabular("click", click), load_images("celeba", click)
    assert [path.name.rpartition("-")[0] for path in cached()] == ["celeba-1", "click-1"]
    for name in ("click", "celeba"):
        known = registry.DATASETS[name]
        unread = tuple(replace(form, read=refuse) for form in known.forms)
        monkeypatch.setattr(
            registry, "DATASETS", {**registry.DATASETS, name: replace(known, forms=unread)}
        )
    for one, name in zip(first, ("click", "celeba"), strict=True):
        assert_same(one, load(name, click))


@pytest.mark.parametrize("substituted", [True, False])
def test_the_cache_remembers_everything(substituted, tmp_path):
    found = prepare(drawn(0), drawn(1), drawn(2), substituted=substituted)
    registry._write_cache(tmp_path / "x.npz", found)
    assert_same(found, registry._read_cache(tmp_path / "x.npz", Tabular))
    assert found.cardinalities == (5, 5)


def test_other_files_and_other_recipes_are_prepared_again(click, celeba, monkeypatch):
    before = load_tabular("click", click)
    arff = click / "openml-1220.arff"
    arff.write_bytes(
        arff.read_bytes().replace(b"@DATA\n0,", b"@DATA\n1,").replace(b"@DATA\n1,1", b"@DATA\n1,2")
    )
    changed = load_tabular("click", click)
    assert any(
        (mine.numeric != other.numeric).any()
        for mine, other in zip(parts(before), parts(changed), strict=True)
    )
    load_images("celeba", click)
    (celeba[0] / "list_attr_celeba.txt").touch()
    os.utime(celeba[0] / "list_attr_celeba.txt", ns=(1, 1))
    load_images("celeba", click)
    assert len(cached()) == 4
    monkeypatch.setattr(registry, "RECIPE", 2)
    load_tabular("click", click)
    assert len(cached()) == 5


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), cut=st.booleans())
def test_a_damaged_cache_is_rebuilt(click, where, bit, cut):
    intact = load_tabular("click", click)
    (file,) = cached()
    content = bytearray(file.read_bytes())
    at = int(where * len(content))
    if cut:
        del content[at:]
    else:
        content[at] ^= 1 << bit
    file.write_bytes(content)
    assert_same(intact, load_tabular("click", click))
    assert_same(intact, load_tabular("click", click))
    assert cached() == [file]


def test_a_cache_that_is_no_archive_of_arrays_is_not_unpickled(click, tmp_path):
    intact = load_tabular("click", click)
    (file,) = cached()
    file.write_bytes(pickle.dumps(Touch(tmp_path / "was-here")))
    assert_same(intact, load_tabular("click", click))
    assert not (tmp_path / "was-here").exists()


def test_without_a_writable_cache_loading_works(click, monkeypatch, tmp_path):
    intact = load_tabular("click", click)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert_same(intact, load_tabular("click", click))


def test_nothing_half_written_is_left(click, monkeypatch):
    def fail(file, **arrays):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", fail)
    load_tabular("click", click)
    assert cached() == []


def test_a_folder_that_cannot_be_written_to_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataMissing, match="'cifar10' not found, and the download failed"):
        load_images("cifar10", tmp_path / "file")


def test_a_click_file_with_columns_in_any_order_is_read(monkeypatch, tmp_path):
    _, x, y = openml_arff("click")
    rows = [
        ",".join([str(int(row[0])), str(label), *(str(int(v)) for v in row[1:])])
        for row, label in zip(x, y, strict=True)
    ]
    content = gzip.compress("\n".join(["impression,click,url_hash,ad_id", *rows, ""]).encode())
    (tmp_path / COMPACT["click"]).write_bytes(content)
    known = registry.DATASETS["click"]
    forms = (*known.forms[:2], replace(known.forms[2], sha256=sha256(content)))
    monkeypatch.setattr(
        registry, "DATASETS", {**registry.DATASETS, "click": replace(known, forms=forms)}
    )
    (tmp_path / "arff").mkdir()
    (tmp_path / "arff" / "openml-1220.arff").write_bytes(openml_arff("click")[0])
    assert_same(load_tabular("click", tmp_path), load_tabular("click", tmp_path / "arff"))


# Subsets.


def rows_of(labels, sensitive=None):
    n = len(labels)
    return TabularRows(
        np.arange(n, dtype=np.float32)[:, None],
        np.empty((n, 0), np.int64),
        np.array(labels),
        sensitive,
    )


@given(st.integers(0, 1000), st.integers(0, 50), st.floats(0, 1), st.booleans())
def test_a_subset_has_the_shares_of_the_whole(seed, n, share, grouped):
    rng = np.random.default_rng(seed)
    labels, sensitive = rng.integers(0, 3, n + 5), rng.integers(0, 2, n + 5) if grouped else None
    wanted = 1 + int(share * (n + 4))
    found = subset(rows_of(labels, sensitive), wanted, seed)
    chosen = found.numeric[:, 0].astype(int)
    assert len(set(chosen.tolist())) == len(found.target) == wanted
    assert (np.diff(chosen) > 0).all()
    np.testing.assert_array_equal(found.target, labels[chosen])
    for label in range(3):
        for group in (0, 1) if grouped else (None,):
            complete = (labels == label) & (True if group is None else sensitive == group)
            assert abs(complete[chosen].sum() - complete.sum() * wanted / (n + 5)) < 1


def test_a_subset_is_the_same_each_time_and_another_with_another_seed():
    complete = rows_of(np.arange(100) % 2)
    ones = [subset(complete, 30, seed).numeric[:, 0].tolist() for seed in (0, 0, 1)]
    assert ones[0] == ones[1] != ones[2]
    assert subset(complete, 100, 5).numeric[:, 0].tolist() == list(range(100))


def test_images_have_subsets_too():
    y, male = np.arange(40) % 2, np.arange(40) // 20
    complete = ImageRows(np.arange(40, dtype=np.uint8).reshape(40, 1, 1, 1), y, male)
    found = subset(complete, 8, 0)
    assert isinstance(found, ImageRows)
    chosen = found.x.ravel()
    assert sorted(zip(found.y.tolist(), found.sensitive.tolist(), strict=True)) == sorted(
        [(0, 0), (0, 1), (1, 0), (1, 1)] * 2
    )
    np.testing.assert_array_equal(found.y, y[chosen])
    assert complete.x.shape[0] == 40


@pytest.mark.parametrize("n", [0, -1, 11])
def test_a_subset_that_is_too_large_or_empty_is_an_error(n):
    with pytest.raises(ValueError, match=f"`n` must be from 1 to the number of rows 10, got {n}"):
        subset(rows_of(np.arange(10) % 2), n, 0)
