"""The command line: parse, call, print, save; nothing else. What is heavy is imported inside the commands."""

from importlib.metadata import version

import click

from lengthlens.commands.options import plugin_option
from lengthlens.commands.probes import PROBE_COMMANDS
from lengthlens.commands.runs import RUN_COMMANDS, SHARING_COMMANDS
from lengthlens.commands.studies import STUDY_COMMANDS
from lengthlens.commands.terminal import Group
from lengthlens.commands.theory import THEORY_COMMANDS

SECTIONS = {
    "Before any training": THEORY_COMMANDS,
    "Trained runs": (*RUN_COMMANDS, *PROBE_COMMANDS, *SHARING_COMMANDS),
    "Studies of many runs": STUDY_COMMANDS,
}


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("lengthlens"), prog_name="lengthlens")
def main() -> None:
    """Why Transformers fail, or do not fail, on inputs longer than those they were trained on."""


main.params.append(plugin_option())
main.sections = SECTIONS
for command in (each for commands in SECTIONS.values() for each in commands):
    main.add_command(command)


if __name__ == "__main__":
    main()
