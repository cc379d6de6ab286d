"""Tasks and schemes from outside are checked once, before anything is trained with them."""

import dataclasses
from typing import Any

from lengthlens.errors import UserError
from lengthlens.models.config import JsonConfig
from lengthlens.models.schemes.contract import check_scheme
from lengthlens.tasks import TASKS
from lengthlens.tasks.contract import Breach, check_task

_sound: set[tuple[str, str]] = set()  # what this process has found to be sound: kind and fingerprint


def require_sound(config: JsonConfig) -> None:
    """Refuse a task or scheme from outside that does not keep to its contract; ours are checked by the tests."""
    again: Any = dataclasses.replace(config)  # refuses a definition that was changed meanwhile
    for kind, origin in again.plugins.items():
        if (kind, origin["fingerprint"]) not in _sound:
            found = breaches_of(kind, origin["name"], again)
            if found:
                more = f"; lengthlens check has {len(found) - 1} more" if len(found) > 1 else ""
                raise UserError(f"{kind} '{origin['name']}' does not keep to its contract: {found[0]}{more}")
            _sound.add((kind, origin["fingerprint"]))


def breaches_of(kind: str, name: str, config: Any) -> list[Breach]:
    if kind == "task":
        return check_task(TASKS[name])
    own = {field.name for field in dataclasses.fields(config.spec.scheme.Options)}
    options = {key: value for key, value in config.spec.options.items() if key in own}
    return check_scheme(name, TASKS.get(str(config.task)), options)
