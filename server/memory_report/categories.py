"""What kind of disagreement a pair is, told from its two tokens' text by simple rules, the first that fits:

    control        either is a control token (end of turn, tool markers): never loosened
    formatting     the same but for white space, or both nothing but white space and Markdown's marks
    case           the same but for capitals
    punctuation    neither has a letter or a digit
    number         both have digits and no letter
    connective     both are words of the closed list below: articles, conjunctions, prepositions, pronouns, auxiliaries
    mixed          one of them is
    word form      both are words that share at least three letters and three fifths of the longer one: use, used
    name           either looks like an identifier: a letter with a digit, an underscore, or a capital inside
    synonym        one whole word for another; whether they mean the same is not looked up
    word piece     letters that go on with a word, for others
    mixed          anything else, such as a word for a full stop

The list is English; in other languages connectives count as synonyms.
"""

import re

CATEGORIES = (
    "control", "formatting", "case", "punctuation", "number", "connective", "word form", "name", "synonym",
    "word piece", "mixed",
)  # fmt: skip

_WORDS = """
a an the this that these those and or but nor so yet if then else than as when while where because since although though
unless until also however therefore thus hence first next finally for of in on at by to from with without into onto over
under between through about after before during here there i you he she it we they me him her us them my your his its
our their which who whom whose what is are was were be been being am do does did has have had can could will would shall
should may might must not no let all any each some both such very just only more most
"""
_CONNECTIVES = frozenset(_WORDS.split())
_MARKS = re.compile(r"[\s*#_`~>|=-]*")
_IDENTIFIER = re.compile(r"\w*(?:[^\W\d_]\d|\d[^\W\d_]|[^\W_]_+[^\W_]|[a-z][A-Z])\w*")


def category(draft: str, target: str, control: bool = False) -> str:
    """One of CATEGORIES. control: whether either is a control token."""
    if control:
        return "control"
    one, two = draft.strip(), target.strip()
    if one == two or (_MARKS.fullmatch(draft) and _MARKS.fullmatch(target)):
        return "formatting"
    if one.casefold() == two.casefold():
        return "case"
    if not _has_letter(draft + target):
        digits = [any(map(str.isdigit, text)) for text in (one, two)]
        if all(digits):
            return "number"
        return "mixed" if any(digits) else "punctuation"
    if known := _CONNECTIVES.intersection((one.casefold(), two.casefold())):
        return "connective" if len(known) == 2 else "mixed"
    if _IDENTIFIER.fullmatch(one) or _IDENTIFIER.fullmatch(two):
        return "name"
    if not (one.isalpha() and two.isalpha()):
        return "mixed"
    match _begins_word(draft), _begins_word(target):
        case True, True:
            return "word form" if _same_stem(one.casefold(), two.casefold()) else "synonym"
        case False, False:
            return "word piece"
    return "mixed"


def _has_letter(text: str) -> bool:
    return any(map(str.isalpha, text))


def _begins_word(text: str) -> bool:
    """Behind a space, or with a capital, or in a script without spaces between words."""
    return text[:1].isspace() or text.strip()[:1].isupper() or not text.isascii()


def _same_stem(one: str, two: str) -> bool:
    shared = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    return shared >= 3 and shared >= 0.6 * max(len(one), len(two))
