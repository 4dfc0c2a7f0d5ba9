"""A run with exploits, failures and a hyperparameter that is not a number."""

from dataclasses import dataclass

import pytest

import mopbt
from mopbt.tasks.toy import ToyTask


@dataclass(frozen=True)
class Wordy(ToyTask):
    """A toy task with a categorical hyperparameter; training fails where `weight` is 1."""

    @property
    def space(self):
        return {**super().space, "style": mopbt.Categorical(["round", "square"])}

    def train(self, model, hp, begin, end, seed):
        assert hp["style"]
        if hp["weight"] == 1:
            raise ZeroDivisionError
        return super().train(model, hp, begin, end, seed)


@pytest.fixture(scope="package")
def results(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "toy"
    return mopbt.run(Wordy(steps=12), out=out, population=8, engine="local", progress=False)
