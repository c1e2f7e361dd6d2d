"""The subcommands: arguments in, one call each, exit codes out. What they do lies in the modules beside this one.

Heavy imports live inside functions; ``airflow-spot --help`` loads typer and nothing else.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airflow_spot import __version__
from airflow_spot.cli import where
from airflow_spot.cli.where import Access, Connect, NoTrainingRun, Reach
from airflow_spot.durations import duration
from airflow_spot.errors import ConfigurationError, SpotError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

FAILED, BAD_INPUT, NOT_FOUND, OTHERWISE, INTERRUPTED = 1, 2, 3, 4, 130
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_PIPE_WIDTH = 160

app = typer.Typer(
    name="airflow-spot",
    help="Training runs on AWS Batch: rehearse them, look at them, promote and stop them.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Names = Annotated[
    list[str],
    typer.Argument(
        metavar="DAG_ID RUN_ID TASK_ID | RUN_DIRECTORY",
        help="As Airflow shows them; or the run directory: its URI, or its run key as 'airflow-spot runs' shows it.",
    ),
]
MapIndex = Annotated[int | None, typer.Option("--map-index", help="Which one of a mapped task.", min=0)]
RunRoot = Annotated[
    str | None,
    typer.Option(
        "--run-root",
        help="Where the run directories lie, such as s3://bucket/prefix; else $AIRFLOW_SPOT_RUN_ROOT, "
        "else Airflow's [airflow_spot] run_root.",
    ),
]
Connection = Annotated[
    str | None,
    typer.Option(
        "--aws-conn-id",
        envvar="AIRFLOW_SPOT_AWS_CONN_ID",
        help="Airflow connection to reach AWS by; else the AWS environment.",
    ),
]
Region = Annotated[str | None, typer.Option("--region", help="AWS region; else $AWS_DEFAULT_REGION or the profile's.")]
Endpoint = Annotated[
    str | None, typer.Option("--endpoint-url", help="Where a local cloud answers; else $AWS_ENDPOINT_URL.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Why = Annotated[str, typer.Option("--why", help="The reason, kept in the record and shown to others.")]


def run(argv: list[str], *, connect: Connect = where.connect) -> int:
    """Run a command line and return its exit code; errors are one sentence on stderr.

    :param connect: how a run directory is reached; tests give their own.
    """
    try:
        return app(args=argv, prog_name="airflow-spot", standalone_mode=False, obj=connect) or 0
    except (_UsageError, ConfigurationError) as error:
        return _refuse(error, BAD_INPUT)
    except NoTrainingRun as error:
        return _refuse(error, NOT_FOUND)
    except (SpotError, OSError) as error:
        return _refuse(error, FAILED)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception as error:
        # AWS's and Airflow's own errors (no region, no such connection) say enough; anything else is a bug of ours.
        if type(error).__module__.startswith(("botocore.", "airflow.")):
            return _refuse(error, FAILED)
        raise


def _refuse(error: Exception, code: int) -> int:
    say = getattr(error, "format_message", None)
    text = say() if callable(say) else str(error)
    print(f"airflow-spot: {' '.join(text.split())}", file=sys.stderr)
    return code


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        print(f"airflow-spot {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    short_help="Serve a local AWS to rehearse on.",
)
def localcloud(context: typer.Context) -> int:
    """Hand all arguments to the local cloud's own command, which is loaded only now."""
    from airflow_spot.cli.mount import mounted

    return mounted("airflow_spot.localcloud.cli", "localcloud", context.args)


@app.command(short_help="Copy the example DAGs and trainers.")
def examples(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A DAGs folder, or a new directory.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
    json: Json = False,
) -> int:
    """Copy the example DAGs and their trainers into a directory."""
    from airflow_spot.cli import examples as copying

    written = copying.copy(directory, force=force)
    if json:
        _print_json({"directory": str(directory), "files": [str(path) for path in written]})
    else:
        print(f"{len(written)} files in {directory}; read {directory / 'README.md'} next")
    return 0


@app.command(short_help="List training runs.")
def runs(
    context: typer.Context,
    dag_id: Annotated[str | None, typer.Argument(help="Only training runs of this DAG.")] = None,
    still_open: Annotated[bool, typer.Option("--open", help="Only those that have not ended.")] = False,
    run_root: RunRoot = None,
    aws_conn_id: Connection = None,
    region: Region = None,
    endpoint_url: Endpoint = None,
    json: Json = False,
) -> int:
    """List the training runs under a run root."""
    from airflow_spot.cli import listing

    access = Access(aws_conn_id=aws_conn_id, region=region, endpoint_url=endpoint_url)
    reach = _reach(context, where.run_root(run_root), access)
    rows = listing.rows(reach, dag_id=dag_id, still_open=still_open)
    if json:
        _print_json(rows)
        return 0
    from airflow_spot.cli import render

    _print(render.runs_table(rows, where.now(reach.backend), zone=None) if rows else f"no training runs at {reach.uri}")
    return 0


@app.command(short_help="Show one training run.")
def show(
    context: typer.Context,
    names: Names,
    map_index: MapIndex = None,
    run_root: RunRoot = None,
    aws_conn_id: Connection = None,
    region: Region = None,
    endpoint_url: Endpoint = None,
    json: Json = False,
) -> int:
    """Show one training run: attempts, why each ended, deadline, slack and cost."""
    from airflow_spot.cli import facts

    access = Access(aws_conn_id=aws_conn_id, region=region, endpoint_url=endpoint_url)
    reach = _reach(context, where.run_uri(names, map_index=map_index, root=run_root), access)
    record = where.load(reach).record
    beats, now = where.heartbeats(reach.store, record), where.now(reach.backend)
    if json:
        _print_json(facts.document(record, beats, now, uri=reach.uri))
        return 0
    from airflow_spot.cli import render

    _print(render.training_run(record, beats, now, uri=reach.uri, zone=None))
    return 0


@app.command(short_help="Follow one until it ends.")
def watch(
    context: typer.Context,
    names: Names,
    map_index: MapIndex = None,
    every: Annotated[str, typer.Option("--every", help="How often to look, such as 5s.")] = "5s",
    run_root: RunRoot = None,
    aws_conn_id: Connection = None,
    region: Region = None,
    endpoint_url: Endpoint = None,
    json: Json = False,
) -> int:
    """Follow one training run until it ends; exit code 0 if it succeeded, 4 if it ended otherwise."""
    from airflow_spot.cli import watching

    interval = _interval(every)
    access = Access(aws_conn_id=aws_conn_id, region=region, endpoint_url=endpoint_url)
    reach = _reach(context, where.run_uri(names, map_index=map_index, root=run_root), access)
    where.load(reach)
    if json:
        record = watching.follow_json(reach, interval=interval, out=_print_line)
    else:
        record = watching.follow(reach, _console(), interval=interval)
    return 0 if record.result is not None and record.result.outcome == "SUCCEEDED" else OTHERWISE


@app.command(short_help="Move one to dependable capacity.")
def promote(
    context: typer.Context,
    names: Names,
    map_index: MapIndex = None,
    tier: Annotated[
        str | None, typer.Option("--tier", help="Name of the tier to move to; else the first that is not spot.")
    ] = None,
    why: Why = "asked for on the command line",
    run_root: RunRoot = None,
    aws_conn_id: Connection = None,
    region: Region = None,
    endpoint_url: Endpoint = None,
    json: Json = False,
) -> int:
    """Ask that a training run moves to dependable capacity now; whoever waits in Airflow does it at its next look."""
    from airflow_spot.cli import acting

    access = Access(aws_conn_id=aws_conn_id, region=region, endpoint_url=endpoint_url)
    reach = _reach(context, where.run_uri(names, map_index=map_index, root=run_root), access)
    return _answer(acting.promote(reach, tier=tier, why=why), as_json=json)


@app.command(short_help="Stop one and end its jobs.")
def stop(
    context: typer.Context,
    names: Names,
    map_index: MapIndex = None,
    why: Why = "asked for on the command line",
    run_root: RunRoot = None,
    aws_conn_id: Connection = None,
    region: Region = None,
    endpoint_url: Endpoint = None,
    json: Json = False,
) -> int:
    """Stop a training run and end its jobs; the task fails, and only a Clear goes on from the last checkpoint."""
    from airflow_spot.cli import acting

    access = Access(aws_conn_id=aws_conn_id, region=region, endpoint_url=endpoint_url)
    reach = _reach(context, where.run_uri(names, map_index=map_index, root=run_root), access)
    return _answer(acting.stop(reach, why=why), as_json=json)


@app.command(short_help="List and end jobs nobody waits for.")
def orphans(
    context: typer.Context,
    queue: Annotated[
        list[str] | None,
        typer.Option("--queue", help="Job queue to search, may be repeated; else those that the records name."),
    ] = None,
    older_than: Annotated[
        str, typer.Option("--older-than", help="How long nobody has waited for a training run, such as 1h.")
    ] = "1h",
    end: Annotated[bool, typer.Option("--end", help="Terminate what is listed.")] = False,
    run_root: RunRoot = None,
    aws_conn_id: Connection = None,
    region: Region = None,
    endpoint_url: Endpoint = None,
    json: Json = False,
) -> int:
    """List jobs that nobody waits for in Airflow, and end them; exit code 4 if some still live."""
    from airflow_spot.cli import orphans as looking

    bound = duration(older_than, name="--older-than")
    access = Access(aws_conn_id=aws_conn_id, region=region, endpoint_url=endpoint_url)
    reach = _reach(context, where.run_root(run_root), access)
    found = looking.find(reach, queues=queue or (), older_than=bound)
    rows = [looking.end(reach, orphan) if end else orphan.row() for orphan in found]
    if json:
        _print_json(rows)
    elif not rows:
        print("no orphans: every job of ours has someone waiting for it")
    else:
        from airflow_spot.cli import render

        _print(render.orphans_table(rows))
    return OTHERWISE if any(row["lives"] for row in rows) else 0


def _reach(context: typer.Context, uri: str, access: Access) -> Reach:
    connect: Connect = context.obj
    return connect(uri, access)


def _interval(text: str) -> timedelta:
    interval = duration(text, name="--every")
    if interval < timedelta(seconds=0.2):
        raise ConfigurationError(f"--every={text} is too often; give 0.2s or more")
    return interval


def _answer(answer: Any, *, as_json: bool) -> int:
    """Print what was done, and give 4 where the training run had ended already."""
    if as_json:
        _print_json(answer.document)
    else:
        print(answer.sentence)
    return 0 if answer.done else OTHERWISE


def _console() -> Console:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def _print(what: RenderableType) -> None:
    _console().print(what)


def _print_json(value: object) -> None:
    import json

    print(json.dumps(value, indent=2))


def _print_line(value: object) -> None:
    import json

    print(json.dumps(value), flush=True)
