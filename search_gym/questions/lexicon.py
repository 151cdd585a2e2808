"""The words of the embedded world: names to draw from, and the sentences that tell and ask of them.

The embedded tokenizer has one token for each word here, so a change to this file changes its ids: run
`python experiments/warm_start.py` afterwards, for the embedded policy knows the old ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FIRST_NAMES = tuple(
    """Ada Bruno Clara Dmitri Elena Felix Greta Hugo Ines Jonas Kira Luca Marta Nils Olga Pavel Rosa Sven Talia
    Ursula Viktor Wanda Yusuf Zoe Amir Bella Cyrus Dora Emil Freya Gideon Hanna Igor Juno Karl Leila""".split()
)
LAST_NAMES = tuple(
    """Abbott Barlow Castell Devlin Eberhart Fontaine Garrick Holloway Ivanov Jansen Kessler Lindgren Moreau
    Novak Okafor Petrov Quiroga Rinaldi Sorensen Tanaka Ulrich Varga Weston Yilmaz Zeller Ashdown Brandt Corvin
    Dubois Ellery Farrow Grimaldi Hartmann Isaksen Jarvis Kovacs Lombard Mercer Nakamura Ortega""".split()
)
CITY_PREFIXES = tuple("Port North South East West Old New Saint Upper Lower Fort Mount".split())
CITY_STEMS = tuple(
    """Alderly Benwick Carrow Dunmore Elmford Fairhaven Glenrock Harwell Ilmouth Kingsley Larkhill Merrow
    Norwood Oakham Penrith Ravenna Selby Thornbury Underhill Verano Wexley Yarrow Ashford Brigham Colmere
    Dalton Eastleigh Frome Galloway Hexham""".split()
)
COUNTRY_FORMS = tuple("Republic Federation Union Emirate".split())
COUNTRY_STEMS = tuple(
    """Arvonia Belmark Caldoria Drevna Estmere Fennmark Gorvia Halmark Istrava Jorveth Korvath Lorania Morvia
    Nordavia""".split()
)
FILM_ADJECTIVES = tuple(
    """Silver Crimson Silent Broken Golden Hidden Frozen Burning Distant Hollow Velvet Bitter Gentle Lonely
    Savage Scarlet Secret Wandering Eternal Fallen Amber Quiet Restless Sacred""".split()
)
FILM_NOUNS = tuple(
    """Harbor Garden Mirror River Empire Orchard Lantern Mountain Shadow Bridge Crown Desert Forest Island
    Journey Kingfisher Lighthouse Meadow Ocean Palace Raven Summer Tower Winter""".split()
)
BOOK_NOUNS = tuple(
    """Letters Songs Secrets Ashes Echoes Daughters Voices Maps Dreams Stones Children Gardens Tales Keepers
    Rivers Sons""".split()
)
BOOK_TOPICS = tuple(
    """Autumn Glass Thunder Salt Midnight Iron Snow Dust Honey Smoke Silence Copper Rain Sorrow Starlight
    Marble""".split()
)
COMPANY_STEMS = tuple(
    """Acorn Beacon Cobalt Delta Ember Falcon Granite Horizon Ivory Juniper Keystone Lotus Meridian Nimbus
    Onyx Pioneer Quartz Redwood Summit Titan""".split()
)
COMPANY_FORMS = tuple("Motors Press Foods Steel Airlines Labs Studios Shipping Textiles Energy Games Books".split())
PROFESSIONS = tuple("painter lawyer engineer singer teacher chemist writer pilot actor architect".split())
FIRST_YEAR, LAST_YEAR = 1980, 2009


@dataclass(frozen=True)
class Relation:
    """A fact that leads from an entity to another one, or to a year."""

    subject: str
    """The kind of entity that has it."""
    object: str
    """The kind that it leads to; "year" ends every chain."""
    ask: str
    """A question about it; {} stands for the subject, named or described."""
    describe: str
    """A description of its object by its subject; empty for years, which have no facts of their own."""


RELATIONS: dict[str, Relation] = {
    "director": Relation("film", "person", "Who directed {}?", "the director of {}"),
    "release": Relation("film", "year", "In which year was {} released?", ""),
    "author": Relation("book", "person", "Who wrote {}?", "the author of {}"),
    "publisher": Relation("book", "company", "Which company published {}?", "the publisher of {}"),
    "birthplace": Relation("person", "city", "In which city was {} born?", "the birthplace of {}"),
    "employer": Relation("person", "company", "Which company does {} work for?", "the employer of {}"),
    "founder": Relation("company", "person", "Who founded {}?", "the founder of {}"),
    "base": Relation("company", "city", "In which city is {} based?", "the home city of {}"),
    "founding": Relation("company", "year", "In which year was {} founded?", ""),
    "country": Relation("city", "country", "In which country is {}?", "the country of {}"),
    "mayor": Relation("city", "person", "Who is the mayor of {}?", "the mayor of {}"),
    "capital": Relation("country", "city", "Which city is the capital of {}?", "the capital of {}"),
}

# How a question calls an entity, and its passage tells its facts; several ways each, so that reading takes more than
# counting words.
MENTIONS = {
    "film": "the film {}", "book": "the book {}", "person": "{}", "company": "{}", "city": "{}", "country": "the {}",
}  # fmt: skip
PASSAGES: dict[str, tuple[str, ...]] = {
    "film": (
        "{name} is a {release} film directed by {director}.",
        "{name} is a film by the director {director}. It was released in {release}.",
    ),
    "book": (
        "{name} is a book by {author}, published by {publisher}.",
        "{name} was published by {publisher}. The author of the book is {author}.",
    ),
    "person": (
        "{name} is a {profession} born in {birthplace}, who works for {employer}.",
        "{name} was born in {birthplace}. The {profession} works for {employer}.",
    ),
    "company": (
        "{name} is a company based in {base}. It was founded in {founding} by {founder}.",
        "{name} was founded by {founder} in {founding}. The company is based in {base}.",
    ),
    "city": (
        "{name} is a city in the {country}. The mayor is {mayor}.",
        "{name} lies in the {country}. {mayor} is the mayor of the city.",
    ),
    "country": (
        "The {name} is a country. The capital is {capital}.",
        "The capital of the {name} is the city {capital}.",
    ),
}

# What else is said around questions and passages: instructions, notices, a policy's short thoughts. Words that are
# not here are still encoded, byte by byte.
COMMON = """Question: Answer: Doc Title: Title I need know the answer is to of a an and or in on by it It you You your
    can not could be read as action this This no No search Search is left Answer answer now Write write think Think
    first then inside between after each time new with Use use for passages question query results returns between
    short ends when what What that are found find may many times often like more one two three first last give Give
    final directly without explanation example need do if If know enough here Here found nothing Nothing was failed
    . , ? ! : ; ( ) " ' - 1 2 3 4 5 6 7 8 9 0"""


def words() -> list[str]:
    """Every word of the embedded world and its dialogues, each once, in a fixed order."""
    names = (
        FIRST_NAMES + LAST_NAMES + CITY_PREFIXES + CITY_STEMS + COUNTRY_FORMS + COUNTRY_STEMS + FILM_ADJECTIVES
        + FILM_NOUNS + BOOK_NOUNS + BOOK_TOPICS + COMPANY_STEMS + COMPANY_FORMS + PROFESSIONS
    )  # fmt: skip
    years = tuple(str(year) for year in range(FIRST_YEAR, LAST_YEAR + 1))
    sentences = [r.ask for r in RELATIONS.values()] + [r.describe for r in RELATIONS.values()] + list(MENTIONS.values())
    sentences += [sentence for variants in PASSAGES.values() for sentence in variants]
    told = re.findall(r"[A-Za-z]+", re.sub(r"\{\w*\}", " ", " ".join(sentences)))
    return list(dict.fromkeys([*names, *years, *told, *COMMON.split()]))
