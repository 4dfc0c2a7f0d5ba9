"""The code, the documentation and the help texts use one vocabulary and American spelling."""

import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from mopbt.cli import app

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "docs", "examples", "benchmarks", "baselines", "experiments", "results", "tests")
# Their subject is a word that the project does not use.
ABOUT_WORDS = {"tests/test_vocabulary.py", "tests/mistakes/test_engines.py"}
# What to write instead of a word, by the expression that finds the word.
WORDS = {
    "crews?": "workers",
    "told": "reported",
    "anew": "again, or a verb with re-: restart, recompute, rebuild",
    "mend(s|ed|ing)?": "fix or repair",
    "whoever": "the actor",
    "(go|goes|going|went|gone) on": "resume or continue",
    "at hand": "available",
    "own sense": "in their original direction",
    "(take|takes|taken|taking|took) home": "export",
    "bur(y|ies|ied|ying|ial)": "reap or remove",
    "hope(s|d|ful|less)?": "a statement",
    "(some|no|every)body": "the actor",
    "doors?": "integrations",
    "its like": "its equivalent",
}
STEMS = (
    "author|categor|character|color|custom|discret|emphas|equal|factor|final|general|initial|"
    "local|material|maxim|memor|minim|normal|optim|organ|parallel|penal|priorit|quant|random|"
    "real|recogn|regular|scalar|serial|special|stabil|standard|summar|synchron|token|util|"
    "vector|visual"
)
ENDING = "is(e|ed|er|ers|es|ing|able)"
BRITISH = {
    # Looking for the ending first takes a sixth of the time.
    rf"(?=[a-z]*{ENDING}(?![a-z]))[a-z]*({STEMS}){ENDING}": "-ize",
    "[a-z]+isations?": "-ization",
    "colour(s|ed|ing)?": "color",
    "neighbour(s|ing|hood|hoods)?": "neighbor",
    "behaviours?": "behavior",
    "centre[sd]?": "center",
    "grey(s|ish)?": "gray",
    "licences?": "license",
    "catalogue[sd]?": "catalog or registry",
}
# A parameter of moocore.
ALLOWED = "maximise="
# What may be between two words: a line break in a comment, or the end and the start of a string.
GAP = r"""(?:[\s_#"'-]|\bf(?="))+"""


def compile_words(pattern):
    return re.compile(rf"(?<![a-z])({pattern.replace(' ', GAP)})(?![a-z])", re.IGNORECASE)


EXPRESSIONS = {compile_words(word): better for word, better in (WORDS | BRITISH).items()}
# Most files have none of the words, which one search shows.
ANY = compile_words("|".join(WORDS | BRITISH))


def find_words(text):
    """Return the line of each word that the project does not use, with the word to write."""
    text = text.replace(ALLOWED, "")
    # Separate the words of names in camel case.
    text = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)
    found = []
    if ANY.search(text) is None:
        return found
    for pattern, better in EXPRESSIONS.items():
        for match in pattern.finditer(text):
            word = " ".join(match[0].split())
            found.append((text.count("\n", 0, match.start()) + 1, f"{word!r}: write {better}"))
    return sorted(found)


def scanned_files():
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    for folder in FOLDERS:
        for ending in ("py", "md", "js", "css", "html", "toml"):
            files += sorted((ROOT / folder).rglob(f"*.{ending}"))
    return [file for file in files if file.relative_to(ROOT).as_posix() not in ABOUT_WORDS]


def test_files_use_the_vocabulary_of_the_project():
    files = scanned_files()
    assert len(files) > 300
    found = [
        f"{file.relative_to(ROOT)}:{line}: {advice}"
        for file in files
        for line, advice in find_words(file.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


def test_names_in_tests_use_the_vocabulary_of_the_project():
    files = sorted((ROOT / "tests").rglob("*.py"))
    names = {
        (file, match[1])
        for file in files
        for match in re.finditer(r"^ *(?:def|class) (\w+)", file.read_text(encoding="utf-8"), re.M)
    }
    assert len(names) > 2000
    found = [
        f"{file.relative_to(ROOT)}: {name}: {advice}"
        for file, name in sorted(names)
        for _, advice in find_words(name)
    ]
    assert not found, "\n".join(found)


def test_help_texts_use_the_vocabulary_of_the_project():
    commands = ["", *typer.main.get_command(app).commands]
    assert len(commands) > 10
    found = []
    for command in commands:
        result = CliRunner().invoke(app, [*command.split(), "--help"])
        assert result.exit_code == 0, result.output
        for line, advice in find_words(result.output):
            found.append(f"mopbt {command} --help:{line}: {advice}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "what it was told",
        "Begin anew.",
        "once mended",
        "Whoever reads this",
        "run the same again to go on",
        "the run goes on",
        "it says how to go\n    # on with it",
        'f"how to go "\n    f"on"',
        "def go_on():",
        "in their own sense",
        "def _bury(self):",
        "class WorkerCrew:",
        "class Crew:",
        "def _check_hope():",
        "nobody needs it",
        "vectorised",
        "a regularisation term",
        "COLOURS = 8",
        "colour",
        "def centre_of():",
        "neighbouring",
        "grey",
    ],
)
def test_a_word_of_the_old_vocabulary_is_found(text):
    ((line, _),) = find_words(f"\n{text}\n")
    assert line == 2


@pytest.mark.parametrize(
    "text",
    [
        "vectorized",
        "raise an otherwise precise noise",
        "colors, colored",
        "recommend, amend",
        "an undertold story",
        "a realistic specialist",
        "going once",
        "hypervolume(points, maximise=False)",
    ],
)
def test_other_words_are_not_found(text):
    assert not find_words(text)
