"""Log runs to TensorBoard, MLflow and Weights & Biases."""

from mopbt.trackers.base import Branch, Evaluation, PopulationMetrics, Tracker, follow, track
from mopbt.trackers.mlflow import MLflow, to_mlflow
from mopbt.trackers.tensorboard import TensorBoard, to_tensorboard
from mopbt.trackers.wandb import WandB, to_wandb

__all__ = [
    "Branch",
    "Evaluation",
    "MLflow",
    "PopulationMetrics",
    "TensorBoard",
    "Tracker",
    "WandB",
    "follow",
    "to_mlflow",
    "to_tensorboard",
    "to_wandb",
    "track",
]
