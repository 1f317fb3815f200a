"""``kgpu completion``: the script that makes a shell complete kgpu's commands and options."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from kgpu.base.files import write_atomic
from kgpu.cli._common import ExampleCommand

# Where each shell looks for a user's completions, below the home folder, and what makes it read them.
PLACES: Final = {
    "bash": (".local/share/bash-completion/completions/kgpu", "open a new shell (needs the bash-completion package)"),
    "zsh": (".zfunc/_kgpu", "put `fpath+=~/.zfunc; autoload -Uz compinit; compinit` into ~/.zshrc"),
    "fish": (".config/fish/completions/kgpu.fish", "open a new shell"),
}


@click.command(
    cls=ExampleCommand,
    examples="source <(kgpu completion bash)\nkgpu completion fish --install\nkgpu completion zsh > ~/.zfunc/_kgpu",
)
@click.argument("shell", type=click.Choice(tuple(PLACES)))
@click.option("--install", is_flag=True, help="Write it where the shell looks for it, instead of printing it.")
def completion(shell: str, install: bool) -> None:
    """Print the completion script for SHELL, or install it for this user."""
    from click.shell_completion import get_completion_class

    from kgpu.cli.main import cli

    generator = get_completion_class(shell)
    if generator is None:
        raise click.UsageError(f"click has no completion for {shell}")
    source = generator(cli, {}, "kgpu", "_KGPU_COMPLETE").source()
    if not install:
        click.echo(source)
        return
    below_home, remedy = PLACES[shell]
    target = Path.home() / below_home
    write_atomic(target, source + "\n")
    click.echo(f"wrote {target}; to use it: {remedy}")
