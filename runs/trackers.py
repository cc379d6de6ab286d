"""Metrics sent elsewhere while a run trains: Weights & Biases, TensorBoard. Both are optional and off by default."""

from collections.abc import Callable
from pathlib import Path

from lengthlens.errors import UserError
from lengthlens.runs.config import RunConfig
from lengthlens.runs.training import Progress


def wandb_report(config: RunConfig, project: str = "lengthlens") -> Callable[[Progress], None]:
    """Send every look to Weights & Biases, under the run's own name, so that a resumed run goes on there too."""
    try:
        import wandb
    except ImportError:
        raise UserError("--wandb needs Weights & Biases: pip install 'lengthlens[wandb]'") from None
    sent = wandb.init(project=project, id=config.id, name=config.id, config=config.to_dict(), resume="allow")

    def report(progress: Progress) -> None:
        look = progress.look._asdict()
        sent.log({**look, "tokens_per_second": progress.tokens_per_second}, step=look["step"])

    return report


def tensorboard_report(directory: Path) -> Callable[[Progress], None]:
    """Write every look as TensorBoard events."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("--tensorboard needs TensorBoard: pip install 'lengthlens[tensorboard]'") from None
    writer = SummaryWriter(str(directory))

    def report(progress: Progress) -> None:
        for name, value in progress.look._asdict().items():
            if name != "step":
                writer.add_scalar(name, value, progress.look.step)
        writer.flush()

    return report
