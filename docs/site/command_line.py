"""Write the reference of the command line from the commands themselves."""

import re

import typer.core
import typer.main

from mopbt.cli import app

HEAD = """# Command line

Every command has `--help`, and `--traceback` anywhere on the line shows where an error comes from.
`mopbt --install-completion` lets your shell complete commands, tasks and options (tried in bash).

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | a problem with the run or its directory |
| 2 | wrong arguments |
| 3 | the budget was exhausted before the run was done; rerun with a larger one to resume |
| 130, 143 | interrupted, terminated; rerun the same command to resume |

"""


def cell(text: str | None) -> str:
    """Return text for a cell of a table."""
    return re.sub(r"\s+", " ", text or "").replace("|", "\\|").replace("<", "&lt;").strip()


def rows(command: typer.core.TyperCommand) -> list[str]:
    """Return a row for each argument and option of a command."""
    lines = []
    for parameter in command.params:
        if getattr(parameter, "hidden", False) or parameter.name == "help":
            continue
        if parameter.param_type_name == "argument":
            name = f"`{(parameter.metavar or parameter.name).upper()}`"
        else:
            name = ", ".join(f"`{option}`" for option in parameter.opts)
        default = parameter.default
        shown = "" if default in (None, False, (), []) or callable(default) else f"`{default}`"
        lines.append(f"| {name} | {cell(getattr(parameter, 'help', ''))} | {shown} |\n")
    return lines


def page() -> str:
    """Return the page as Markdown."""
    root = typer.main.get_command(app)
    parts = [HEAD]
    for name, command in root.commands.items():
        if command.hidden:
            continue
        table = "| argument or option | meaning | default |\n|---|---|---|\n"
        text = (command.help or "").replace("\b", "").replace("\f", "").strip()
        text = re.sub(r"^Example: (.+)$", r"```sh\n\1\n```", text, flags=re.MULTILINE)
        parts.append(f"## mopbt {name}\n\n{text}\n\n{table}{''.join(rows(command))}\n")
    return "".join(parts)
