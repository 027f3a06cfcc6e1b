"""Elements of HTML and SVG. Text and attributes are escaped by the serialiser, in one place, whoever wrote them."""

import re
from xml.etree import ElementTree as ET

Element = ET.Element
Child = Element | str | None

# Controls, marks that turn the direction of text or take no room, halves of a pair: all of them can hide code from a
# reader, and some end a document early.
HIDING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """Return a text with everything that cannot be seen replaced by a mark that can."""
    return HIDING.sub("\ufffd", text)


def tag(name: str, /, *children: Child, **attributes: str | float | None) -> Element:
    """Return an element; `stroke_width` is written `stroke-width`, `class_` is `class`, None is left out."""
    element = Element(name)
    for key, value in attributes.items():
        if value is not None:
            element.set(key.rstrip("_").replace("_", "-"), _spelled(value))
    add(element, *children)
    return element


def add(element: Element, *children: Child) -> Element:
    """Append children and text to an element, and return it."""
    for child in children:
        if isinstance(child, str):
            _add_text(element, visible(child))
        elif child is not None:
            element.append(child)
    return element


def _add_text(element: Element, text: str) -> None:
    if len(element):
        element[-1].tail = (element[-1].tail or "") + text
    else:
        element.text = (element.text or "") + text


def _spelled(value: str | float) -> str:
    return visible(value) if isinstance(value, str) else f"{round(value, 2):g}"


def rendered(element: Element) -> str:
    """Return an element as HTML."""
    return ET.tostring(element, encoding="unicode", method="html")
