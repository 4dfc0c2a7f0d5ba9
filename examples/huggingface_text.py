"""Trade precision against recall of a small BERT from Hugging Face's transformers.

The model is built from its configuration, so nothing is downloaded.
"""

import sys

import torch
from torch.nn.functional import cross_entropy
from transformers import BertConfig, BertForSequenceClassification

import mopbt

generator = torch.Generator().manual_seed(0)
TOKENS = torch.randint(1, 60, (1200, 16), generator=generator)
# Positive texts have many words of one kind.
LABELS = ((TOKENS < 12).sum(1) + torch.randn(1200, generator=generator) > 3.5).long()
TRAIN = slice(0, 800)
VALIDATION = slice(800, 1200)
SMALL = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}


def train(m):
    model = BertForSequenceClassification(
        BertConfig(**SMALL, max_position_embeddings=16, num_labels=2)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    m.track(model=model, optimizer=optimizer)
    m.bind(optimizer, lr="lr")
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = m.hp["dropout"]
    weight = torch.tensor([1 - m.hp["positive"], m.hp["positive"]])
    for _ in m.steps():
        model.train()
        for rows in torch.randperm(800).split(50):
            logits = model(TOKENS[TRAIN][rows]).logits
            loss = cross_entropy(logits, LABELS[TRAIN][rows], weight=weight)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        predicted = model(TOKENS[VALIDATION]).logits.argmax(1)
    positive = LABELS[VALIDATION]
    hits = (predicted & positive).sum()
    m.report(precision=hits / predicted.sum().clamp(min=1), recall=hits / positive.sum())


if __name__ == "__main__":
    population = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    results = mopbt.run(
        train,
        out=f"runs/huggingface-text-{population}",
        population=population,
        space={
            "lr": mopbt.LogGrid(1e-4, 1e-2, 10),
            "dropout": mopbt.Grid(0, 0.5, 6),
            "positive": mopbt.Grid(0.1, 0.9, 9),
        },
        objectives={"precision": "max", "recall": "max"},
        steps=4,
    )
    for point in results.front().spread(6):
        print("  ".join(f"{name} {score:.3f}" for name, score in point.scores.items()))
