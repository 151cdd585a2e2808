"""`search-gym play`: a person answers a question in the terminal, by the rules that a policy has."""

from __future__ import annotations

import argparse
import random

from search_gym import tokenizers
from search_gym.episode import Answer, Episode, Event, Invalid, Rules, Search, Truncated
from search_gym.questions import Question
from search_gym.retrieval import Hit, Retriever
from search_gym.sources import open_questions, open_retriever

HELP = """Type words to search for them.
Type = and words to answer, for example: = Oslo
Type q to leave."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `search-gym play`."""
    parser.add_argument(
        "--questions", default="embedded:test", help="embedded, embedded:dev, embedded:test or a FlashRAG JSONL file"
    )
    parser.add_argument("--corpus", default="embedded", help="embedded or a FlashRAG JSONL file")
    parser.add_argument("--question", metavar="ID", help="the question with this id; a random one unless given")
    parser.add_argument("--max-searches", type=int, default=4, help="how many searches there are (default: 4)")
    parser.add_argument("--top-k", type=int, default=3, help="how many passages a search brings (default: 3)")
    parser.add_argument("--seed", type=int, help="of the random choice of a question")


def run(args: argparse.Namespace) -> int:
    """Play one question; exit status 0, or 1 if the player left before the end."""
    questions = open_questions(args.questions)
    retriever = open_retriever("bm25", args.corpus)
    rules = Rules(max_searches=args.max_searches, top_k=args.top_k)
    question = _choose(questions, args.question, args.seed)
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
            hits = retriever.search([event.query], episode.rules.top_k)[0]
            print(_passages(hits))
            for later in episode.observe(hits):
                print(_words(later, episode))
        else:
            print(_words(event, episode))


def _choose(questions: list[Question], identifier: str | None, seed: int | None) -> Question:
    if identifier is None:
        return random.Random(seed).choice(questions)
    for question in questions:
        if question.id == identifier:
            return question
    raise ValueError(f"no question has the id {identifier!r}; the first one is {questions[0].id!r}")


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


def _passages(hits: list[Hit]) -> str:
    if not hits:
        return "Nothing was found."
    return "\n".join(f"\n{rank}. {hit.title}\n   {hit.text}" for rank, hit in enumerate(hits, start=1))


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
