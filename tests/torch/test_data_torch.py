import pytest
import torch

from mopbt.torch import Batches

X = torch.arange(20.0).view(20, 1)
Y = torch.arange(20)


def seen(batches, seeds, steps):
    return [tuple(t.clone() for t in batch) for batch in batches.iter_batches(seeds, steps)]


def test_a_step_is_one_pass_over_the_rows():
    (x, y), *rest = all_of = seen(Batches(X, Y, batch_size=5), [3], [0])
    assert (x.shape, y.shape, len(all_of)) == ((1, 5, 1), (1, 5), 4)
    rows = torch.cat([b[1].flatten() for b in all_of])
    assert sorted(rows.tolist()) == list(range(20))
    assert rows.tolist() != list(range(20))
    assert all(torch.equal(x.flatten(), y.flatten().float()) for x, y in all_of)
    assert rest


def test_an_incomplete_last_batch_is_left_out():
    rows = torch.cat([b[0].flatten() for b in seen(Batches(Y, batch_size=8), [0], [0])])
    assert len(rows) == 16 == len(set(rows.tolist()))


@pytest.mark.parametrize(
    ("rows", "size", "updates"),
    [(19, 10, 10), (20, 20, 3), (20, 7, 1), (20, 7, 9), (3, 2, 50), (20, 1, 100)],
)
def test_any_number_of_updates(rows, size, updates):
    all_of = seen(Batches(torch.arange(rows), batch_size=size, updates=updates), [0, 1], [0, 0])
    assert [b[0].shape for b in all_of] == [(2, size)] * updates
    for (batch,) in all_of:
        assert all(len(set(own.tolist())) == size for own in batch), "a row twice in a batch"


def test_order_depends_on_seed_and_step_only():
    batches = Batches(Y, batch_size=5)
    alone = seen(batches, [7], [2])
    together = seen(batches, [1, 7, 3], [2, 2, 5])
    assert all(torch.equal(a[0][0], b[0][1]) for a, b in zip(alone, together, strict=True))
    assert not torch.equal(alone[0][0], seen(batches, [8], [2])[0][0])
    assert not torch.equal(alone[0][0], seen(batches, [7], [3])[0][0])
    torch.manual_seed(0)
    assert torch.equal(alone[0][0], seen(batches, [7], [2])[0][0])


def test_shared_batches_are_read_once_if_all_members_are_at_the_same_step():
    batches = Batches(X, Y, batch_size=5, shared=True)
    once = seen(batches, [1, 2], [3, 3])
    assert [b[0].shape for b in once] == [(5, 1)] * 4
    apart = seen(batches, [1, 2], [3, 4])
    assert apart[0][1].shape == (2, 5)
    assert all(torch.equal(a[1], b[1][0]) for a, b in zip(once, apart, strict=True))
    assert not torch.equal(apart[0][1][0], apart[0][1][1])


def test_moving_to_a_device_keeps_all_settings():
    def augment(batch, hp):
        return batch

    moved = Batches(X, Y, batch_size=5, updates=7, shared=True, augment=augment).to(
        torch.device("cpu")
    )
    assert (moved.batch_size, moved.updates, moved.shared, moved.augment) == (5, 7, True, augment)


def test_bad_arguments_raise_an_error():
    with pytest.raises(ValueError, match="same number of rows, .*, got .20, 19."):
        Batches(X, Y[:19], batch_size=5)
    for tensors in ((), ([1, 2],), (torch.tensor(1.0),)):
        with pytest.raises(ValueError, match="takes tensors with rows"):
            Batches(*tensors, batch_size=1)
    for size in (0, 21, 2.5):
        with pytest.raises(
            ValueError, match=f"`batch_size` must be an integer from 1 to .* 20, got {size}"
        ):
            Batches(X, batch_size=size)
    for updates in (0, -1, 1.5):
        with pytest.raises(
            ValueError, match=f"`updates` must be a positive integer.*, got {updates}"
        ):
            Batches(X, batch_size=5, updates=updates)
