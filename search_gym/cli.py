"""`search-gym`: the commands of the environment."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

# A command is a module with `add_arguments(parser)` and `run(args) -> exit code`. Only the one that is called is
# imported: --help answers at once, and nothing of the environment loads torch unless someone asks for the algorithms.
COMMANDS = {
    "algos": ("algos.listing", "the algorithms, with their papers and options"),
    "index": ("search_gym.index", "build what a corpus is searched with"),
    "play": ("search_gym.play", "answer a question yourself, by searching"),
    "score": ("search_gym.score", "exact match and F1 of recorded responses"),
    "serve": ("search_gym.serve", "search for other processes and machines, over HTTP"),
    "view": ("search_gym.viewer.command", "look at trajectories and recorded dialogues in a browser"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line.

    Args:
        argv: the words after `search-gym`; None: those of the process.

    Returns:
        The exit code: 0, or 2 for an input that cannot be used, which one line on stderr explains.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="search-gym", description="An environment that answers questions by searching."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (path, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if words[:1] == [name]:
            try:
                module = import_module(path)
            except ModuleNotFoundError as error:
                parser.exit(2, f"search-gym: error: {name} needs {error.name}: pip install 'search-gym[train]'\n")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    args = parser.parse_args(words)
    try:
        return args.run(args)
    except (ValueError, OSError, ImportError) as error:
        print(f"search-gym: error: {_reason(error)}", file=sys.stderr)
        return 2


def _reason(error: ValueError | OSError | ImportError) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


if __name__ == "__main__":
    sys.exit(main())
