"""`search-gym play`: a person answers a question in the terminal, by the rules that a policy has."""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence

from search_gym import tokenizers
from search_gym.episode import Episode
from search_gym.retrieval import Hit, Retriever, SearchFailed
from search_gym.rules import Answer, Event, Invalid, Rules, Search, Truncated
from search_gym.sources import list_questions, open_retriever

HELP = """Type words to search for them.
Type = and words to answer, for example: = Oslo
Type q to leave."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `search-gym play`."""
    parser.add_argument(
        "--questions",
        default="embedded:test",
        help="embedded, embedded:dev, embedded:test, a JSONL or parquet file, or hf:NAME:SPLIT",
    )
    parser.add_argument("--corpus", help="embedded (the default), a file or data set of passages")
    parser.add_argument(
        "--retriever",
        default="bm25",
        help="bm25, dense or hybrid; a folder that search-gym index made; a server's http://host:port (default: bm25)",
    )
    parser.add_argument("--question", metavar="ID", help="the question with this id; a random one unless given")
    parser.add_argument("--max-searches", type=int, default=4, help="how many searches there are (default: 4)")
    parser.add_argument("--top-k", type=int, default=3, help="how many passages a search brings (default: 3)")
    parser.add_argument("--seed", type=int, help="of the random choice of a question")


def run(args: argparse.Namespace) -> int:
    """Play one question; exit status 0, or 1 if the player left before the end."""
    questions = list_questions(args.questions)
    retriever = open_retriever(args.retriever, args.corpus)
    rules = Rules(max_searches=args.max_searches, top_k=args.top_k)
    question = random.Random(args.seed).choice(questions) if args.question is None else questions.find(args.question)
    episode = Episode(question, tokenizers.embedded(), rules)
    print(f"Question: {question.text}\n\n{HELP}")
    while not episode.done:
        turn = _read_turn(episode)
        if turn is None:
            print("You left before answering.")
            return 1
        play_turn(episode, turn, retriever)
    print(f"\nAccepted: {' / '.join(question.golds)}")
    print(f"Reward: {episode.reward:g}    exact match {episode.em:g}, F1 {episode.f1:.2f}")
    return 0


def play_turn(episode: Episode, turn: str, retriever: Retriever) -> None:
    """Feed one turn of text, carry out the search that it asks for, and show what happened."""
    for event in episode.feed(episode.tokenizer.encode(turn)[: episode.room]):
        if isinstance(event, Search):
            found = retriever.search([event.query], episode.rules.top_k)[0]
            print(_passages(found))
            for later in episode.observe(found):
                print(_words(later, episode))
        else:
            print(_words(event, episode))


def _read_turn(episode: Episode) -> str | None:
    """One turn as a policy would write it; None when the player leaves."""
    left = episode.rules.max_searches - episode.searches
    while True:
        try:
            typed = input(f"\n[{left} {'search' if left == 1 else 'searches'} left] > ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return None
        if typed in ("q", "quit", "exit"):
            return None
        if typed.startswith("="):
            return f"<answer> {typed[1:].strip()} </answer>"
        if typed:
            return f"<search> {typed} </search>"
        print(HELP)


def _passages(found: Sequence[Hit] | SearchFailed) -> str:
    if isinstance(found, SearchFailed):
        return f"The search failed: {found.reason}"
    if not found:
        return "Nothing was found."
    return "\n".join(f"\n{rank}. {hit.title}\n   {hit.text}" for rank, hit in enumerate(found, start=1))


def _words(event: Event, episode: Episode) -> str:
    match event:
        case Answer():
            return "Right." if episode.em else "Not the accepted answer."
        case Invalid(reason):
            return f"That was not carried out: {reason}."
        case Truncated("turns"):
            return "No turn is left."
        case _:
            return "The dialogue has become too long."
