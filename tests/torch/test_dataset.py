"""Train from a `Dataset`: the same members as from tensors, alone, stacked and on a device."""

import pytest
import torch
from tests.torch.nets import make_task, rows
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import mopbt
from mopbt.engines.seeding import global_seeds
from mopbt.errors import CannotStack
from mopbt.torch import Batches, DatasetBatches


class Rows(Dataset):
    """Rows that are made when they are read, as from files."""

    def __init__(self):
        self.x, self.y = rows()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index].numpy(), int(self.y[index])


class Ragged(Rows):
    """Rows of different lengths."""

    def __getitem__(self, index):
        return self.x[index, : 1 + index % 6], self.y[index]


def pad(samples):
    longest = max(len(x) for x, _ in samples)
    padded = [torch.nn.functional.pad(x, (0, longest - len(x))) for x, _ in samples]
    return torch.stack(padded), torch.stack([y for _, y in samples])


def pad_to_six(samples):
    padded = [torch.nn.functional.pad(x, (0, 6 - len(x))) for x, _ in samples]
    return torch.stack(padded), torch.stack([y for _, y in samples])


def batches_of(data, steps=(0, 3)):
    return [
        [t.tolist() for t in batch]
        for batch in data.iter_batches([7, 8][: len(steps)], list(steps))
    ]


class TestOrder:
    @pytest.mark.parametrize("options", [{}, {"updates": 7}, {"shared": True}])
    @pytest.mark.parametrize("steps", [(0,), (2, 2), (0, 3)])
    def test_batches_are_those_of_tensors(self, options, steps):
        expected = Batches(*rows(), batch_size=32, **options)
        data = DatasetBatches(Rows(), batch_size=32, **options)
        assert batches_of(data, steps) == batches_of(expected, steps)
        assert data.updates == expected.updates
        assert [t.tolist() for t in data.head(3)] == [t.tolist() for t in expected.head(3)]

    @pytest.mark.slow
    def test_loader_workers_change_nothing(self):
        data = DatasetBatches(Rows(), batch_size=32, loader_workers=2)
        expected = DatasetBatches(Rows(), batch_size=32)
        assert batches_of(data) == batches_of(expected)
        # A step that is abandoned after its first batch, and one that follows it.
        next(data.iter_batches([1], [1]))
        assert batches_of(data, (5, 5)) == batches_of(expected, (5, 5))

    def test_loading_draws_no_random_numbers_of_the_run(self):
        with global_seeds(1):
            expected = torch.rand(3).tolist()
        with global_seeds(1):
            batches_of(DatasetBatches(Rows(), batch_size=32))
            assert torch.rand(3).tolist() == expected


class TestTraining:
    def train(self, data, engine, out):
        task = make_task(data=data)
        results = mopbt.run(task, out=out, population=4, engine=engine, progress=False)
        return [point.scores for point in results.points()]

    @pytest.mark.parametrize(
        "engine",
        [
            "local",
            pytest.param("pool", marks=pytest.mark.slow),
            pytest.param("vectorized", marks=pytest.mark.slow),
        ],
    )
    def test_a_run_is_that_of_tensors(self, engine, tmp_path):
        expected = self.train(Batches(*rows(), batch_size=32), engine, tmp_path / "tensors")
        workers = 0 if engine == "local" else 1
        data = DatasetBatches(Rows(), batch_size=32, loader_workers=workers)
        assert self.train(data, engine, tmp_path / "dataset") == expected

    def test_members_with_unequal_batches_cannot_be_stacked(self):
        data = DatasetBatches(Ragged(), batch_size=1, collate_fn=pad, updates=3)
        with pytest.raises(CannotStack, match="batches of its members have the shapes"):
            make_task(data=data).check_stack()
        data = DatasetBatches(Ragged(), batch_size=8, collate_fn=pad_to_six)
        make_task(data=data).check_stack()


class TestMistakes:
    @pytest.mark.parametrize(
        "dataset",
        [
            DataLoader(TensorDataset(torch.ones(3))),
            type("Stream", (IterableDataset,), {"__iter__": lambda self: iter(())})(),
            5,
        ],
    )
    def test_what_has_no_numbered_rows(self, dataset):
        with pytest.raises(TypeError, match=r"`dataset` must have numbered rows"):
            DatasetBatches(dataset, batch_size=1)

    def test_options(self):
        with pytest.raises(ValueError, match="`batch_size` must be an integer from 1 to the"):
            DatasetBatches(Rows(), batch_size=97)
        with pytest.raises(ValueError, match="`loader_workers` must be an integer of at least 0"):
            DatasetBatches(Rows(), batch_size=8, loader_workers=-1)

    def test_a_batch_that_is_no_tensor(self):
        data = DatasetBatches(Rows(), batch_size=8, collate_fn=lambda samples: {"x": 1})
        with pytest.raises(TypeError, match="a batch must be a tensor or a tuple of tensors"):
            make_task(data=data).check()
