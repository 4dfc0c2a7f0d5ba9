"""Fine-tune a BERT with Hugging Face's Trainer, for precision and recall at once.

The model is built from its configuration and saved, so nothing is downloaded. In your program,
`from_pretrained` names a model of the Hub.
"""

import sys
from functools import cache

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
)

import mopbt
from mopbt.integrations.transformers import TrainerTask

generator = torch.Generator().manual_seed(0)
TOKENS = torch.randint(1, 60, (1200, 16), generator=generator)
# Positive texts have many words of one kind.
LABELS = ((TOKENS < 12).sum(1) + torch.randn(1200, generator=generator) > 3.5).long()
ROWS = [{"input_ids": t, "labels": y} for t, y in zip(TOKENS, LABELS, strict=True)]
SMALL = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 16,
}


@cache
def pretrained():
    """Save a model as a stand-in for one of the Hub, and return its folder."""
    BertForSequenceClassification(BertConfig(**SMALL)).save_pretrained("tiny-bert")
    return "tiny-bert"


class WeightedTrainer(Trainer):
    positive = 0.5

    def compute_loss(self, model, inputs, return_outputs=False, **unused):
        outputs = model(input_ids=inputs["input_ids"])
        weight = torch.tensor([1 - self.positive, self.positive])
        loss = torch.nn.functional.cross_entropy(outputs.logits, inputs["labels"], weight=weight)
        return (loss, outputs) if return_outputs else loss


def metrics(prediction):
    said = prediction.predictions.argmax(1) == 1
    hits = (said & (prediction.label_ids == 1)).sum()
    return {
        "precision": hits / max(said.sum(), 1),
        "recall": hits / np.sum(prediction.label_ids == 1),
    }


def build():  # once in each process
    arguments = TrainingArguments(
        "trainer-output",
        lr_scheduler_type="constant",
        save_strategy="no",
        per_device_train_batch_size=50,
        per_device_eval_batch_size=400,
        report_to="none",
        use_cpu=True,
    )
    model = BertForSequenceClassification.from_pretrained(pretrained())
    rows = {"train_dataset": ROWS[:800], "eval_dataset": ROWS[800:]}
    return WeightedTrainer(model, arguments, compute_metrics=metrics, **rows)


def apply(trainer, hp):
    trainer.positive = hp["positive"]


task = TrainerTask(
    build,
    apply=apply,
    space={
        "learning_rate": mopbt.LogGrid(1e-4, 1e-2, 10),
        "weight_decay": mopbt.LogGrid(1e-4, 0.1, 4, zero=True),
        "positive": mopbt.Grid(0.1, 0.9, 9),
    },
    objectives={"eval_precision": "max", "eval_recall": "max"},
    steps=160,
    interval=16,
)

if __name__ == "__main__":
    population = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    results = mopbt.run(
        task, out=f"runs/huggingface-trainer-{population}", population=population, engine="local"
    )
    print(results.front())
