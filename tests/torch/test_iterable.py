"""Train from an iterable `Dataset`: each member has its own order, the same on all engines."""

import itertools

import pytest
import torch
from tests.torch.nets import make_task, rows
from torch.utils.data import IterableDataset, TensorDataset, get_worker_info

import mopbt
from mopbt.errors import CannotStack
from mopbt.torch import IterableBatches

ROWS = 96


class Numbers(IterableDataset):
    """The numbers of rows, split between loader processes."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, ROWS, step))


class Shuffled(IterableDataset):
    """The numbers of rows in an order that follows from an epoch."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(self.epoch))
        yield from order.tolist()


class Stream(IterableDataset):
    """Rows as from a file that is read from its begin to its end."""

    def __iter__(self):
        return zip(*rows(), strict=True)


def numbers(data, seeds, steps):
    return [batch[0].tolist() for batch in data.iter_batches(seeds, steps)]


def flat(batches):
    return list(itertools.chain.from_iterable(batches))


class TestOrder:
    @pytest.mark.parametrize("dataset", [Numbers(), Shuffled()])
    @pytest.mark.parametrize("buffer", [20, 1000])
    def test_it_follows_from_the_member_and_the_step(self, dataset, buffer):
        data = IterableBatches(dataset, batch_size=8, updates=4, buffer=buffer)
        alone = [numbers(data, [seed], [step]) for seed, step in ((7, 2), (8, 2), (7, 3))]
        # The orders differ, and repeat themselves.
        assert len({str(order) for order in alone}) == 3
        assert numbers(data, [7], [2]) == alone[0]
        # In a stack each member has the rows that it has alone.
        stacked = numbers(data, [7, 8], [2, 2])
        assert [batch[:1] for batch in stacked] == alone[0]
        assert [batch[1:] for batch in stacked] == alone[1]

    def test_steps_read_on_and_begin_again_at_the_end(self):
        data = IterableBatches(Numbers(), batch_size=8, updates=5, buffer=4)
        steps = [flat(flat(numbers(data, [1], [step]))) for step in range(4)]
        seen = [row % ROWS for row in range(160)]
        assert [sorted(step) for step in steps] == [
            sorted(seen[40 * k : 40 * (k + 1)]) for k in range(4)
        ]

    def test_a_reshuffled_dataset_is_read_from_its_begin_in_a_new_order(self):
        data = IterableBatches(Shuffled(), batch_size=32, updates=4, buffer=0)
        (first, second) = (flat(flat(numbers(data, [1], [step]))) for step in (0, 1))
        # A step that is longer than the data set has its rows again.
        assert sorted(first[:ROWS]) == list(range(ROWS))
        assert first[ROWS:] == first[: 128 - ROWS]
        assert first != second

    def test_shared_batches_are_read_once(self):
        data = IterableBatches(Numbers(), batch_size=8, updates=2, buffer=0, shared=True)
        assert numbers(data, [7, 8], [0, 0]) == [list(range(8)), list(range(8, 16))]
        apart = numbers(data, [7, 8], [0, 1])
        assert [batch[0] for batch in apart] == [list(range(8)), list(range(8, 16))]
        assert [batch[1] for batch in apart] == [list(range(16, 24)), list(range(24, 32))]

    @pytest.mark.slow
    @pytest.mark.parametrize("workers", [1, 2])
    def test_loader_workers_split_the_rows(self, workers):
        data = IterableBatches(
            Numbers(), batch_size=8, updates=12, buffer=50, loader_workers=workers
        )
        order = numbers(data, [7], [0])
        assert sorted(flat(flat(order))) == list(range(ROWS))
        assert numbers(data, [7], [0]) == order
        if workers == 1:
            alone = IterableBatches(Numbers(), batch_size=8, updates=12, buffer=50)
            assert numbers(alone, [7], [0]) == order


class TestTraining:
    def train(self, engine, out, **options):
        data = IterableBatches(Stream(), batch_size=32, updates=3, buffer=40, **options)
        results = mopbt.run(
            make_task(data=data), out=out, population=4, engine=engine, progress=False
        )
        assert not results.failures
        return [point.scores for point in results.points()]

    @pytest.mark.slow
    def test_a_run_is_the_same_in_processes_and_with_loader_workers(self, tmp_path):
        expected = self.train("local", tmp_path / "local")
        assert self.train("pool", tmp_path / "pool", loader_workers=1) == expected
        stacked = self.train("vectorized", tmp_path / "vectorized", loader_workers=1)
        for one, other in zip(stacked, expected, strict=True):
            assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)

    def test_it_learns(self, tmp_path):
        losses = [scores["loss"] for scores in self.train("local", tmp_path / "run")]
        assert min(losses) < 0.69


def pad(samples):
    longest = max(len(x) for x, _ in samples)
    padded = [torch.nn.functional.pad(x, (0, longest - len(x))) for x, _ in samples]
    return torch.stack(padded), torch.stack([y for _, y in samples])


class Ragged(IterableDataset):
    """Rows of different lengths."""

    def __iter__(self):
        for number, (x, y) in enumerate(zip(*rows(), strict=True)):
            yield x[: 1 + number % 6], y


class TestMistakes:
    def test_members_with_unequal_batches_cannot_be_stacked(self):
        data = IterableBatches(Ragged(), batch_size=1, updates=30, collate_fn=pad)
        with pytest.raises(CannotStack, match="batches of its members have the shapes"):
            list(data.iter_batches([0, 1], [0, 0]))

    def test_a_dataset_with_numbered_rows(self):
        with pytest.raises(TypeError, match="pass one with numbered rows to DatasetBatches"):
            IterableBatches(TensorDataset(torch.ones(3)), batch_size=1, updates=1)

    @pytest.mark.parametrize(
        ("name", "value"),
        [("batch_size", 0), ("updates", 0), ("updates", None), ("buffer", -1)],
    )
    def test_options(self, name, value):
        options = {"batch_size": 4, "updates": 2} | {name: value}
        with pytest.raises(ValueError, match=f"`{name}` must be an integer of at least"):
            IterableBatches(Numbers(), **options)

    def test_the_same_order_for_all_members(self):
        with pytest.raises(ValueError, match="`buffer` must be at least 1 for a dataset without"):
            IterableBatches(Numbers(), batch_size=4, updates=2, buffer=0)

    def test_a_dataset_without_rows(self):
        empty = type("Empty", (IterableDataset,), {"__iter__": lambda self: iter(())})()
        data = IterableBatches(empty, batch_size=4, updates=2)
        with pytest.raises(ValueError, match="has no rows"):
            numbers(data, [0], [0])
