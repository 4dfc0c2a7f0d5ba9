"""Verify a run: `mopbt verify`."""

from typing import Annotated

import typer

from mopbt.cli.application import JsonOption, RunArgument, TrustOption, app
from mopbt.cli.output import out, print_json
from mopbt.cli.run import find_task_of
from mopbt.messages import counted
from mopbt.run_directory import read_run_config
from mopbt.verify import verify

CodeOption = Annotated[
    bool,
    typer.Option("--code", help="Load the task, and check whether its code has changed."),
]


@app.command("verify", epilog="Exit codes: 0 nothing is lost; 1 something is; 2 wrong arguments.")
def verify_run(
    path: RunArgument,
    code: CodeOption = False,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Check that a run is intact, and say how to fix what is not.

    The command reads the journal and every required checkpoint with their checksums, and the
    record of the storage. Nothing is changed.

    Example: mopbt verify runs/demo
    """
    task = find_task_of(path, read_run_config(path), trust=trust) if code else None
    verification = verify(path, task)
    if as_json:
        print_json(verification.to_json())
    else:
        for finding in verification.findings:
            style = "red" if finding.severity == "error" else "yellow"
            text = f"{finding.severity}: {finding.where}: {finding.what}; {finding.remedy}"
            out.print(text, style=style, soft_wrap=True)
        reports = counted(verification.reports, "report")
        models = counted(verification.checkpoints, "checkpoint")
        verdict = "nothing is lost" if verification.ok else "something is lost"
        out.print(f"{reports} and {models} verified: {verdict}.", soft_wrap=True)
        if verification.code == "not compared":
            out.print("The code of the task was not compared; --code does so.", soft_wrap=True)
    if not verification.ok:
        raise typer.Exit(1)
