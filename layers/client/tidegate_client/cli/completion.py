"""The command completion: prints a completion script for bash, zsh or fish, generated from the argument parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from tidegate_client.cli.context import Context, Subparsers, add_command


def register(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "completion", _print, "print a completion script for your shell")
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    parser.epilog = 'bash: eval "$(tidegate completion bash)"'


def _print(context: Context, args: argparse.Namespace) -> None:
    from tidegate_client.cli import build_parser

    words = dict(words_of(build_parser()))
    context.output.line({"bash": bash, "zsh": zsh, "fish": fish}[args.shell](words))


def words_of(parser: argparse.ArgumentParser, path: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yields (words typed so far, words that can follow). Hidden commands are left out."""
    inner: dict[str, argparse.ArgumentParser] = {}
    options: list[str] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            shown = {choice.dest for choice in action._choices_actions}
            inner = {name: made for name, made in action.choices.items() if name in shown}
        else:
            options += [option for option in action.option_strings if option.startswith("--")]
            options += [str(choice) for choice in action.choices or () if not action.option_strings]
    yield path, [*inner, *options]
    for name, made in inner.items():
        yield from words_of(made, f"{path} {name}".strip())


def bash(words: dict[str, list[str]]) -> str:
    cases = "\n".join(f'    "{path}") words="{" ".join(found)}" ;;' for path, found in words.items())
    return f"""_tidegate() {{
  local path="" word words="" i
  for ((i = 1; i < COMP_CWORD; i++)); do
    word="${{COMP_WORDS[i]}}"
    case "$word" in -*) ;; *) path="${{path:+$path }}$word" ;; esac
  done
  while :; do
    case "$path" in
{cases}
    esac
    [ -n "$words" ] || [ -z "$path" ] && break
    case "$path" in *" "*) path="${{path% *}}" ;; *) path="" ;; esac
  done
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _tidegate tidegate"""


def zsh(words: dict[str, list[str]]) -> str:
    return f"autoload -U +X bashcompinit && bashcompinit\n{bash(words)}"


def fish(words: dict[str, list[str]]) -> str:
    lines = ["complete -c tidegate -f"]
    for path, found in words.items():
        parts = path.split()
        seen = "; and ".join(f"__fish_seen_subcommand_from {part}" for part in parts) or "__fish_use_subcommand"
        for word in found:
            kind = f"-l {word[2:]}" if word.startswith("--") else f"-a {word}"
            lines.append(f"complete -c tidegate -n '{seen}' {kind}")
    return "\n".join(lines)
