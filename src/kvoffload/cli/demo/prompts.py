"""Long prompts of real prose: chapters of the Python reference that ship with every interpreter, and a question.

Nothing is copied into this project, and the same interpreter always gives the same prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kvoffload.cli.demo.client import Message
from kvoffload.errors import KvError

Messages = tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Subject:
    """What one prompt is about."""

    title: str
    topics: tuple[str, ...]
    """Chapters of `pydoc_data.topics`, in the order of use."""
    tokens: int
    """The prompt is cut to at most so many tokens."""
    question: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation, ready to be sent."""

    title: str
    messages: Messages
    tokens: int


# What does not fill a block is in no cache and is computed every time. With blocks of 128 tokens that is 100 to 120
# tokens of each of these prompts, so that their times can be compared.
SUBJECTS = (
    Subject("Debugger", ("debugger",), 2160, "How do I set a breakpoint in the debugger?"),
    Subject(
        "Formatting",
        ("formatstrings",),
        2290,
        "Which characters align a field to the left, to the right and in the centre?",
    ),
    Subject("Sequences", ("typesseq",), 2420, "What is the difference between a list and a tuple?"),
    Subject("Strings", ("string-methods",), 2680, "What does the method capitalize() return?"),
    Subject("Statements", ("compound",), 3700, "What does the with statement do?"),
)
WARM_UP = Subject("Warm-up", ("with",), 400, "What is a context manager?")

_INTRODUCTION = "{title}. Read this chapter of the Python reference and answer the question at its end."
_SHORTEST = 0.98


class PromptError(KvError):
    """The interpreter does not ship the text that the prompts are made of."""


def load_topics() -> Mapping[str, str]:
    """The chapters that ship with this interpreter.

    Raises:
        PromptError: there are none (some distributions leave them out).
    """
    try:
        from pydoc_data.topics import topics  # noqa: PLC0415
    except ImportError:
        raise PromptError(
            "this Python ships without pydoc_data.topics, which the demo's prompts are made of; use another interpreter"
        ) from None
    return topics


def build_prompt(
    subject: Subject, topics: Mapping[str, str], count_tokens: Callable[[Messages], int]
) -> Prompt:
    """The longest prompt of whole lines within `subject.tokens`.

    Args:
        subject: What to ask about.
        topics: Chapter → text.
        count_tokens: Tokens of a conversation after the chat template.

    Raises:
        PromptError: the chapters of this interpreter are too short.
    """
    lines = _lines(subject, topics)
    fits, too_many = 0, len(lines) + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if count_tokens(_messages(subject, lines[:middle])) <= subject.tokens:
            fits = middle
        else:
            too_many = middle
    messages = _messages(subject, lines[:fits])
    tokens = count_tokens(messages)
    if tokens < subject.tokens * _SHORTEST:
        raise PromptError(
            f"{subject.title!r} has {tokens} tokens in this Python's reference; {subject.tokens} are needed"
        )
    return Prompt(subject.title, messages, tokens)


def _lines(subject: Subject, topics: Mapping[str, str]) -> list[str]:
    # Chapters were moved and renamed between versions of Python: what follows fills up what is missing.
    order = [name for name in subject.topics if name in topics]
    order += [name for name in sorted(topics) if name not in order]
    lines: list[str] = []
    for name in order:
        lines += topics[name].splitlines()
        if sum(map(len, lines)) > subject.tokens * 8:  # more than 8 characters a token do not occur in prose
            break
    return lines


def _messages(subject: Subject, lines: Sequence[str]) -> Messages:
    # The title stands first, so that no two prompts share a whole block of tokens.
    text = "\n".join(lines)
    introduction = _INTRODUCTION.format(title=subject.title)
    return ({"role": "user", "content": f"{introduction}\n\n{text}\n\nQuestion: {subject.question}"},)
