"""``verniermq completion``: what a shell needs to complete our commands, made by click."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print what SHELL needs to complete commands and options.

    \b
    source <(verniermq completion bash)               in ~/.bashrc
    source <(verniermq completion zsh)                in ~/.zshrc
    verniermq completion fish > ~/.config/fish/completions/verniermq.fish
    """
    from verniermq.cli import main

    found = get_completion_class(shell)
    assert found is not None  # click has all three
    click.echo(found(main, {}, "verniermq", "_VERNIERMQ_COMPLETE").source())
