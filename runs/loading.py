"""One way to a trained model, wherever it is: in the package, a run, its name, its directory, or a saved model."""

from pathlib import Path

from lengthlens.errors import UserError
from lengthlens.models.saved import load_saved
from lengthlens.models.transformer import HookedModel
from lengthlens.runs.run import MANIFEST, Run
from lengthlens.runs.shipped import is_shipped_name, shipped_run
from lengthlens.runs.store import RunStore
from lengthlens.tasks import Task


def load(
    source: str | Path | Run,
    task: Task | None = None,
    *,
    store: RunStore | str | Path = "runs",
    device: str = "cpu",
    step: int | None = None,
) -> HookedModel:
    """A trained or imported model, ready for evaluation.

    Arguments:
        source: a trained model of the package (``"copy/lbpe"``), a run, the directory of a run, the name of a run in
            `store` (or how it begins), or a directory that `HookedModel.save_pretrained` wrote.
        task: the task itself, where it is not registered; for saved models.
        store: where a name is looked up.
        device: where the model is to be.
        step: of a run that kept checkpoints, the training step after which the model is wanted; the end if None.

    Errors: UserError where there is nothing of that kind, where a file is damaged, and where a plug-in is not loaded
    (the sentence says which). Nothing is unpickled, and no code that came with the model is run.

    >>> load("copy/lbpe").predict("^ 7 3 5 =")
    '7 3 5 $'
    >>> import tempfile
    >>> from lengthlens.runs.config import RunConfig
    >>> from lengthlens.runs.training import train
    >>> store = RunStore(tempfile.mkdtemp())
    >>> run = train(RunConfig(task="copy", scheme="rope", steps=2, batch=2, train_max=2), store).run
    >>> load("copy_rope", store=store).config == load(run.path).config == load(run).config
    True
    """
    if isinstance(source, Run):
        return source.model(device, step)
    if not isinstance(source, str | Path):
        raise UserError(
            f"ll.load takes a run, a path or a name, not {type(source).__name__}; what ll.train gives has a .model"
        )
    folder = Path(source)
    if (folder / MANIFEST).exists():
        return Run(folder.resolve()).model(device, step)
    if folder.is_dir():
        if step is not None:
            raise UserError(f"'{source}' is a saved model, which has no checkpoints of its training: leave step out")
        model: HookedModel = load_saved(folder, task).to(device).eval()
        return model
    if is_shipped_name(source):
        return shipped_run(str(source)).model(device, step)
    place = store if isinstance(store, RunStore) else RunStore(store)
    if isinstance(source, Path) or len(folder.parts) > 1 or not any(place.runs()):
        raise UserError(f"'{source}' is no directory of a run or a saved model, and no run in '{place.path}' either")
    return place.find(str(source)).model(device, step)
