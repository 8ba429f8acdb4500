"""The `kvoffload` command itself: its subcommands, and the one place where errors become a line and an exit code.

Nothing heavy is imported here or at the top of a subcommand's file: `kvoffload --help` needs neither torch nor an
engine.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from kvoffload import __version__
from kvoffload.cli.demo.command import demo
from kvoffload.cli.doctor.command import doctor
from kvoffload.cli.plan import plan
from kvoffload.cli.record import record
from kvoffload.cli.serve import ServeCommand, serve
from kvoffload.cli.sim import sim
from kvoffload.cli.simulate import simulate
from kvoffload.cli.store.collection import gc
from kvoffload.cli.store.inspection import stat
from kvoffload.cli.store.listing import ls
from kvoffload.cli.store.purging import purge
from kvoffload.cli.store.usage import du
from kvoffload.cli.store.verification import verify
from kvoffload.cli.verify_layout import verify_layout
from kvoffload.errors import KvError

EXIT_WRONG_USE = 2


class _OneLineErrors(TyperGroup):
    """Errors of the world are one line on stderr; only bugs show a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the subcommand."""
        try:
            return super().invoke(ctx)
        except KvError as error:
            line = f"[bold red]kvoffload: error:[/] {escape(str(error))}"
            Console(stderr=True, soft_wrap=True, highlight=False).print(line)
            raise typer.Exit(EXIT_WRONG_USE) from None


app = typer.Typer(
    cls=_OneLineErrors,
    help="KV-cache offloading for LLM serving: evicted KV comes back instead of being recomputed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"kvoffload {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Options that hold for every subcommand."""


app.command(cls=ServeCommand, context_settings={"allow_interspersed_args": True})(serve)
app.command()(demo)
app.command()(doctor)
app.command()(sim)
app.command()(record)
app.command()(simulate)
app.command()(plan)
app.command()(verify_layout)
for _tool in (ls, du, stat, verify, gc, purge):
    app.command(rich_help_panel="Store tools")(_tool)

if __name__ == "__main__":
    app()
